//! Homes with our fixture behind them: one in which it is shared, and one in which it is a
//! single client's. They are two, since a server over HTTP has one port, and so one instance.

use xy_testkit::{Home, free_port};

use super::{Era, Peer, Way};
use crate::stage::{home, ready};
use crate::support::status;

/// A home with a daemon and a fixture that speaks like this, for the only client that comes.
#[track_caller]
pub(super) fn home_of_one(server: Peer) -> Home {
    let home = home();
    let own = format!("{}isolation \"client\"\n", kdl(&home, server));
    home.write_config("servers/fixture.kdl", &own);
    home.daemon();
    home
}

/// The same for all clients; the fixture runs.
#[track_caller]
pub(super) fn home_of(server: Peer) -> Home {
    let home = home();
    home.write_config("servers/fixture.kdl", &kdl(&home, server));
    home.daemon();
    ready(&home, &["fixture"]);
    let version = match server.0 {
        Era::Legacy => "2025-11-25",
        Era::Modern => "2026-07-28",
    };
    assert_eq!(status(&home, "fixture")["protocol"], version);
    home
}

fn kdl(home: &Home, (era, way): Peer) -> String {
    let era = match era {
        Era::Legacy => ["--era", "legacy"],
        Era::Modern => ["--era", "modern"],
    };
    let port = free_port().to_string();
    match way {
        Way::Stdio => home.kdl_command("xy-test-fixture", &[&["--stdio"], &era[..]].concat()),
        Way::Http => {
            let args = [&["--http", &port], &era[..]].concat();
            let command = home.kdl_command("xy-test-fixture", &args);
            format!("{command}transport \"http\"\nport {port}\npath \"/mcp\"\n")
        }
    }
}
