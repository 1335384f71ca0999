//! Homes with the test fixture as their server: one shares it, the other isolates it per client. An
//! HTTP server has one port and so one instance, hence two homes.

use xy_testkit::{Home, free_port};

use super::{Era, Peer, Transport};
use crate::fixtures::{home, ready};
use crate::support::status;

/// Returns a home with a daemon and an isolated fixture, for one client.
#[track_caller]
pub(super) fn isolated_home(server: Peer) -> Home {
    let home = home();
    let own = format!("{}isolation \"client\"\n", kdl(&home, server));
    home.write_config("servers/fixture.kdl", &own);
    home.daemon();
    home
}

/// Returns a home with a daemon and a shared fixture, which runs.
#[track_caller]
pub(super) fn shared_home(server: Peer) -> Home {
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

fn kdl(home: &Home, (era, transport): Peer) -> String {
    let era = match era {
        Era::Legacy => ["--era", "legacy"],
        Era::Modern => ["--era", "modern"],
    };
    let port = free_port().to_string();
    match transport {
        Transport::Stdio => home.kdl_command("xy-test-fixture", &[&["--stdio"], &era[..]].concat()),
        Transport::Http => {
            let args = [&["--http", &port], &era[..]].concat();
            let command = home.kdl_command("xy-test-fixture", &args);
            format!("{command}transport \"http\"\nport {port}\npath \"/mcp\"\n")
        }
    }
}
