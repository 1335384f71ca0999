//! Many clients, many requests, many comings and goings.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xy_testkit::{Heard, Wire};

use crate::{SOON, home_with_one, kill};
#[cfg(target_os = "linux")]
use crate::{home, hostile::memory};

/// What the guide promises.
const MAX_CONNECTIONS: usize = 256;

#[test]
fn a_crowd_is_served_up_to_the_limit_and_the_rest_is_told_why_not() {
    let home = home_with_one();
    // The one that waited for `running` may not have left yet.
    let mut crowd: Vec<Wire> = Vec::new();
    home.wait_until("a full house", || {
        let mut wire = home.connect();
        let asked = wire.try_send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"version\"}\n");
        let is_in = wire.next(SOON)["id"] == 1;
        assert!(asked.is_ok() || !is_in, "whoever is turned away may notice before it asks");
        if is_in {
            crowd.push(wire);
        }
        !is_in && crowd.len() == MAX_CONNECTIONS
    });
    for _ in 0..44 {
        let mut wire = home.connect();
        let refused = wire.next(SOON);
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32008)));
        assert_eq!(refused["error"]["message"], "the daemon has no room for you");
        assert_eq!(wire.hear(SOON), Heard::Closed);
    }
    for wire in &mut crowd {
        assert!(wire.call("list", Value::Null).is_ok(), "whoever is in is served");
    }
    drop(crowd);
    home.wait_for_state("one", "running"); // It connects until it is let in.
    home.finish();
}

#[test]
fn two_hundred_requests_in_flight_on_one_connection_are_all_answered() {
    let home = home_with_one();
    let stubborn = home.kdl_command("xy-test-ignore-term", &[]);
    home.server("stubborn", &format!("{stubborn}stop {{ grace \"60s\" }}\n"));
    home.call("reload", Value::Null).unwrap();
    let pid = home.wait_for_state("stubborn", "running")["pid"].clone();

    let mut wire = home.connect();
    for id in 0..200 {
        let params = json!({ "name": "stubborn" });
        wire.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "stop", "params": params }));
    }
    home.wait_for_state("stubborn", "stopping");
    assert!(home.call("status", json!({ "name": "one" })).is_ok(), "others are served");
    kill(&pid);
    let answered: BTreeSet<u64> = (0..200)
        .map(|_| {
            let answer = wire.next(SOON);
            assert!(answer["result"].is_object(), "{answer}");
            answer["id"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(answered.len(), 200);
    home.finish();
}

#[test]
fn what_was_asked_is_done_even_if_the_asker_hangs_up_at_once() {
    let home = home_with_one();
    for _ in 0..15 {
        for (method, state) in [("stop", "stopped"), ("start", "running")] {
            let mut asker = home.connect();
            let params = json!({ "name": "one" });
            asker.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
            drop(asker);
            home.wait_for_state("one", state);
        }
    }
    home.finish();
}

#[test]
fn a_reload_is_carried_out_even_if_the_asker_hangs_up_at_once() {
    let home = home_with_one();
    let sleeper = home.kdl_command("xy-test-sleep-server", &["--every", "600000"]);
    for name in ["two", "three", "four", "five", "six"] {
        home.server(name, &sleeper);
        let mut asker = home.connect();
        asker.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reload" }));
        drop(asker);
        home.wait_for_state(name, "running");
    }
    home.finish();
}

#[test]
fn an_operation_under_way_goes_on_when_the_asker_leaves() {
    let home = home_with_one();
    let stubborn = home.kdl_command("xy-test-ignore-term", &[]);
    home.server("stubborn", &format!("{stubborn}stop {{ grace \"60s\" }}\n"));
    home.call("reload", Value::Null).unwrap();
    let first = home.wait_for_state("stubborn", "running")["pid"].clone();

    let mut asker = home.connect();
    let params = json!({ "name": "stubborn" });
    asker.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "restart", "params": params }));
    home.wait_for_state("stubborn", "stopping");
    drop(asker);
    kill(&first);
    let second = home.wait_for_state("stubborn", "running")["pid"].clone();
    assert_ne!(first, second);
    home.call("stop", json!({ "name": "stubborn", "wait": false })).unwrap();
    kill(&second);
    home.wait_for_state("stubborn", "stopped");
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_storm_of_checks_is_a_queue_and_not_a_thread_for_each() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    for n in 0..50 {
        home.server(&format!("s{n}"), "command \"/bin/true\"\nrestart { policy \"never\" }\n");
    }
    let daemon = home.daemon();
    let mut storm: Vec<Wire> = (0..8).map(|_| home.connect()).collect();
    for wire in &mut storm {
        for id in 0..16 {
            wire.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "check" }));
        }
    }
    // Others are answered in the middle of it.
    home.call("stop", json!({ "name": "one" })).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap().count();
    // One of them may write the journal, and one the records of HTTP sessions.
    assert!(threads <= 10, "{threads} threads");
    for wire in &mut storm {
        assert_eq!(wire.next(SOON)["result"]["valid"], true);
    }
    drop(storm);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_thousand_comings_and_goings_leave_nothing_in_the_daemon() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "5"]));
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let come_and_go = |count: usize| {
        for number in 0..count {
            let mut wire = home.connect();
            let follow = json!({ "name": "one", "tail": 5, "follow": true });
            wire.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "logs", "params": follow }));
            wire.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "events" }));
            if number % 2 == 0 {
                wire.next(SOON); // The others leave before they hear anything.
            }
        }
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid)).unwrap().count();
    let before = descriptors();
    come_and_go(200); // The allocator has what it wants after this.
    home.wait_until("all have left", || descriptors() <= before);
    let resident = memory(daemon.pid, "VmRSS:").unwrap();
    come_and_go(1000);
    home.wait_until("all have left", || descriptors() <= before);
    let grown = memory(daemon.pid, "VmRSS:").unwrap().saturating_sub(resident);
    assert!(grown < 4_000, "the daemon grew by {grown} kB");
    home.finish();
}
