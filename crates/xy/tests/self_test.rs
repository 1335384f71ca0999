//! The self-test and the report, with real servers that are healthy, dead or hanging.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

#[path = "self_test/broken.rs"]
mod broken;
#[path = "self_test/interrupted.rs"]
mod interrupted;
#[path = "self_test/places.rs"]
mod places;
#[path = "self_test/ready.rs"]
mod ready;
#[path = "self_test/redact.rs"]
mod redact;
#[path = "self_test/reports.rs"]
mod reports;
#[path = "self_test/silent.rs"]
mod silent;
#[path = "self_test/tools.rs"]
mod tools;
#[path = "self_test/ways.rs"]
mod ways;

use serde_json::{Value, json};
use support::{ask, home};
use xy_testkit::Home;

/// Runs the self-test with repairs.
#[track_caller]
fn run_self_test(home: &Home) -> Value {
    ask(home, "self_test", json!({}))
}

/// Returns the self-test's result for one server.
#[track_caller]
fn worker<'t>(tested: &'t Value, name: &str) -> &'t Value {
    let all = tested["health"]["worker"].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("no `{name}`: {tested:#}"))
}

/// Returns a home without a gateway, whose port would differ each time.
fn home_without_gateway() -> Home {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"off\"; }\n");
    home
}
