//! Many clients, many requests, and many short connections.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xy_testkit::{Wire, WireEvent};

use crate::{TIMEOUT, home_with_one, kill};
#[cfg(target_os = "linux")]
use crate::{home, hostile::memory};

/// The limit in the guide.
const MAX_CONNECTIONS: usize = 256;

#[test]
fn connections_over_the_limit_are_refused_with_the_reason() {
    let home = home_with_one();
    // The connection that waited for `running` may still be open.
    let mut clients: Vec<Wire> = Vec::new();
    home.wait_until("the limit is reached", || {
        let mut wire = home.connect();
        let sent = wire.try_send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"version\"}\n");
        let is_in = wire.next(TIMEOUT)["id"] == 1;
        assert!(sent.is_ok() || !is_in, "a refused client may notice before it sends");
        if is_in {
            clients.push(wire);
        }
        !is_in && clients.len() == MAX_CONNECTIONS
    });
    for _ in 0..44 {
        let mut wire = home.connect();
        let refused = wire.next(TIMEOUT);
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32008)));
        assert_eq!(refused["error"]["message"], "the daemon has too many connections");
        assert_eq!(wire.receive(TIMEOUT), WireEvent::Closed);
    }
    for wire in &mut clients {
        assert!(wire.call("list", Value::Null).is_ok(), "an admitted client is served");
    }
    drop(clients);
    home.wait_for_state("one", "running"); // It reconnects until it is admitted.
    home.finish();
}

#[test]
fn two_hundred_pipelined_requests_are_answered() {
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
            let answer = wire.next(TIMEOUT);
            assert!(answer["result"].is_object(), "{answer}");
            answer["id"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(answered.len(), 200);
    home.finish();
}

#[test]
fn request_completes_after_client_disconnects() {
    let home = home_with_one();
    for _ in 0..15 {
        for (method, state) in [("stop", "stopped"), ("start", "running")] {
            let mut client = home.connect();
            let params = json!({ "name": "one" });
            client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
            drop(client);
            home.wait_for_state("one", state);
        }
    }
    home.finish();
}

#[test]
fn reload_completes_after_client_disconnects() {
    let home = home_with_one();
    let sleeper = home.kdl_command("xy-test-sleep-server", &["--every", "600000"]);
    for name in ["two", "three", "four", "five", "six"] {
        home.server(name, &sleeper);
        let mut client = home.connect();
        client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reload" }));
        drop(client);
        home.wait_for_state(name, "running");
    }
    home.finish();
}

#[test]
fn running_operation_survives_client_disconnect() {
    let home = home_with_one();
    let stubborn = home.kdl_command("xy-test-ignore-term", &[]);
    home.server("stubborn", &format!("{stubborn}stop {{ grace \"60s\" }}\n"));
    home.call("reload", Value::Null).unwrap();
    let first = home.wait_for_state("stubborn", "running")["pid"].clone();

    let mut client = home.connect();
    let params = json!({ "name": "stubborn" });
    client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "restart", "params": params }));
    home.wait_for_state("stubborn", "stopping");
    drop(client);
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
fn storm_of_checks_is_queued() {
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
    // The daemon answers other requests meanwhile.
    home.call("stop", json!({ "name": "one" })).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap().count();
    // One thread may write the journal, and one the records of HTTP sessions.
    assert!(threads <= 10, "{threads} threads");
    for wire in &mut storm {
        assert_eq!(wire.next(TIMEOUT)["result"]["valid"], true);
    }
    drop(storm);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn thousand_connections_leak_nothing() {
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
                wire.next(TIMEOUT); // The other clients leave before they receive anything.
            }
        }
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid)).unwrap().count();
    // The daemon may open a few more of its own files meanwhile.
    let most = descriptors() + 10;
    come_and_go(200); // The allocator has grown to its final size after this.
    home.wait_until("all connections are closed", || descriptors() <= most);
    let resident = memory(daemon.pid, "VmRSS:").unwrap();
    come_and_go(1000);
    home.wait_until("all connections are closed", || descriptors() <= most);
    let grown = memory(daemon.pid, "VmRSS:").unwrap().saturating_sub(resident);
    assert!(grown < 4_000, "the daemon grew by {grown} kB");
    home.finish();
}
