//! Daemons and servers that are killed while clients go on.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::fixtures::{
    assert_echo, bridge_client, error_code, error_message, home, home_of_two, http_client, linger,
    local_client, ready, received, received_of, serve, serve_recorded, who, who_once_up,
};
use crate::rng::Rng;
use crate::support::{running, signal};

/// Asserts that no request id was used twice at a server.
#[track_caller]
fn no_id_was_used_twice(home: &Home, name: &str) {
    let mut seen = BTreeSet::new();
    for message in received(home, name) {
        if message.get("method").is_some() && message.get("id").is_some() {
            let id = message["id"].as_u64().unwrap();
            assert!(seen.insert(id), "{id} was used twice: {message}");
        }
    }
}

#[test]
fn clients_and_servers_survive_a_killed_daemon() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let clients = [bridge_client(&home), bridge_client(&home)];
    for client in &clients {
        client.tool_names(); // Otherwise, what happens to a call depends on the next daemon's tools.
    }
    let pid = who(&clients[0], "a__who")["pid"].clone();
    let calls: Vec<u64> =
        clients.iter().map(|client| client.start_call("a__never", json!({}))).collect();
    home.wait_until("both are with the server", || {
        received_of(&home, "a", "tools/call").len() == 3
    });
    daemon.kill9();
    for (client, id) in clients.iter().zip(calls) {
        let lost = client.wait_answer(id);
        assert_eq!(error_code(&lost), -32010, "{lost}");
        assert!(error_message(&lost).contains("outcome unknown"), "{lost}");
    }
    home.daemon();
    for client in &clients {
        assert_eq!(who(client, "a__who")["pid"], pid, "the server lives on");
        assert!(client.tool_names().contains(&"a__echo".to_owned()));
        assert_echo(client, "a");
    }
    assert_eq!(received_of(&home, "a", "initialize").len(), 1, "it was greeted once");
    assert_eq!(received_of(&home, "a", "notifications/initialized").len(), 1);
    no_id_was_used_twice(&home, "a");
    drop(clients);
    home.finish();
}

#[test]
fn answer_without_a_daemon_is_dropped() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = bridge_client(&home);
    client.start_call("a__slow_echo", json!({ "message": "late", "ms": 400 }));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").len() == 1);
    daemon.kill9();
    linger();
    linger();
    home.daemon();
    assert_echo(&client, "a");
    let id = client.start_call("a__slow_echo", json!({ "message": "new", "ms": 1 }));
    assert_eq!(client.wait_answer(id)["result"]["content"][0]["text"], "new");
    assert_eq!(received_of(&home, "a", "initialize").len(), 1);
    no_id_was_used_twice(&home, "a");
    drop(client);
    home.finish();
}

#[test]
fn clients_and_servers_survive_a_replaced_daemon() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    serve_recorded(&home, "noisy", &["--garbage-first"]);
    home.daemon();
    ready(&home, &["a", "noisy"]);
    let client = bridge_client(&home);
    let pids = ["a__who", "noisy__who"].map(|tool| who(&client, tool)["pid"].clone());
    for round in 1..=3 {
        let call = client.start_call("a__never", json!({}));
        home.wait_until("the server has the call", || {
            let calls = received_of(&home, "a", "tools/call");
            calls.iter().filter(|it| it["params"]["name"] == "never").count() == round
        });
        home.daemon_with(&["--replace"]);
        let lost = client.wait_answer(call);
        assert_eq!(error_code(&lost), -32010, "{lost}");
        let now = ["a__who", "noisy__who"].map(|tool| who(&client, tool)["pid"].clone());
        assert_eq!(now, pids, "the servers live on");
        assert_echo(&client, "a");
        assert_echo(&client, "noisy");
    }
    for name in ["a", "noisy"] {
        assert_eq!(received_of(&home, name, "initialize").len(), 1, "it was greeted once");
        no_id_was_used_twice(&home, name);
    }
    drop(client);
    home.finish();
}

#[test]
fn clients_of_the_next_daemon_can_subscribe_again() {
    let home = home_of_two();
    let client = local_client(&home);
    let subscribed =
        client.request("resources/subscribe", json!({ "uri": "xy://a/test://counter" }));
    assert!(subscribed.get("result").is_some());
    home.daemon_with(&["--replace"]);
    client.wait_closed();
    let client = local_client(&home);
    let web = http_client(&home);
    client.request("resources/subscribe", json!({ "uri": "xy://a/test://counter" }));
    web.call_text("a__bump", json!({}));
    client.wait_notification("notifications/resources/updated");
    home.finish();
}

#[test]
fn http_clients_survive_killed_servers() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &[]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let clients = [http_client(&home), http_client(&home)];
    for _ in 0..5 {
        let calls: Vec<u64> = clients
            .iter()
            .map(|client| client.start_call("a__slow_echo", json!({ "message": "x", "ms": 3000 })))
            .collect();
        home.wait_until("both are with the server", || {
            crate::fixtures::metrics(&home).contains("xy_server_calls_open{server=\"a\"} 2\n")
        });
        signal(running(&home, "a"), Signal::KILL);
        for (client, id) in clients.iter().zip(calls) {
            // If the dead process has not read the call, the next one executes it.
            let lost = client.wait_answer(id);
            assert!(lost.get("result").is_some() || error_code(&lost) == -32010, "{lost}");
            assert_echo(client, "b");
            who_once_up(&home, client, "a__who");
        }
    }
    home.finish();
}

/// Calls until the test ends. Every answer must belong to its call.
fn call_on(client: &McpClient, who: usize, is_over: &AtomicBool, answered: &AtomicU64) {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let server = ["a", "b"][number % 2];
        let text = format!("client {who} call {number}");
        let answer = client.call(&format!("{server}__echo"), json!({ "message": text }));
        match answer["result"]["content"][0]["text"].as_str() {
            Some(spoken) => {
                assert_eq!(spoken, text, "another call's answer");
                answered.fetch_add(1, Ordering::Relaxed);
            }
            None => assert!([-32010, -32005].contains(&error_code(&answer)), "{answer}"),
        }
        number += 1;
    }
}

#[test]
fn rounds_of_kills_mix_up_no_answers() {
    let home = home();
    for name in ["a", "b"] {
        serve_recorded(&home, name, &[]);
    }
    let mut daemon = home.daemon();
    ready(&home, &["a", "b"]);
    let clients: Vec<_> = (0..4).map(|_| bridge_client(&home)).collect();
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rng = Rng::new();
    std::thread::scope(|scope| {
        for (who, client) in clients.iter().enumerate() {
            let (is_over, answered) = (&is_over, &answered);
            scope.spawn(move || call_on(client, who, is_over, answered));
        }
        for _ in 0..20 {
            let before = answered.load(Ordering::Relaxed);
            home.wait_until("calls are answered", || {
                answered.load(Ordering::Relaxed) > before + 20
            });
            pause(rng.millis_below(30));
            if rng.one_in(4) {
                daemon.kill9();
                daemon = home.daemon();
            } else if rng.one_in(3) {
                daemon = home.daemon_with(&["--replace"]);
            } else {
                let name: &&str = rng.pick(&["a", "b"]);
                signal(running(&home, name), Signal::KILL);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for client in &clients {
        who_once_up(&home, client, "a__who");
        who_once_up(&home, client, "b__who");
        assert_eq!(client.unclaimed_answers(), [""; 0], "nothing was answered twice");
        assert_eq!(client.strays(), [""; 0]);
    }
    crate::print_figure(&format!("{} calls", answered.load(Ordering::Relaxed)));
    drop(clients);
    home.finish();
}

#[expect(clippy::disallowed_methods, reason = "an instant at random is what is wanted")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn noisy_server_is_greeted_once_across_daemons() {
    let home = home();
    // Enough noise at once to fill any queue.
    serve_recorded(&home, "a", &["--garbage-first"]);
    let mut daemon = home.daemon();
    ready(&home, &["a"]);
    let pid = running(&home, "a");
    for _ in 0..3 {
        let client = local_client(&home);
        client.call("a__garbage", json!({ "lines": 2000 }));
        daemon.kill9();
        daemon = home.daemon();
        assert_eq!(running(&home, "a"), pid);
    }
    let client = local_client(&home);
    assert_echo(&client, "a");
    let greetings: Vec<Value> = received_of(&home, "a", "initialize");
    assert_eq!(greetings.len(), 1);
    no_id_was_used_twice(&home, "a");
    home.finish();
}
