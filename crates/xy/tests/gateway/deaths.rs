//! Daemons and servers that are killed under clients which go on.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::chance::Chance;
use crate::stage::{
    bridged, code, echoes, heard, heard_of, home, home_of_two, linger, local, ready, serve,
    serve_noting, web, who, who_at_last, words,
};
use crate::support::{running, signal};

/// Every id that a server was asked under is there once.
#[track_caller]
fn no_id_was_used_twice(home: &Home, name: &str) {
    let mut seen = BTreeSet::new();
    for message in heard(home, name) {
        if message.get("method").is_some() && message.get("id").is_some() {
            let id = message["id"].as_u64().unwrap();
            assert!(seen.insert(id), "{id} was used twice: {message}");
        }
    }
}

#[test]
fn a_killed_daemon_is_survived_by_clients_and_servers() {
    let home = home();
    serve_noting(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let clients = [bridged(&home), bridged(&home)];
    let pid = who(&clients[0], "a__who")["pid"].clone();
    let calls: Vec<u64> =
        clients.iter().map(|client| client.start_call("a__never", json!({}))).collect();
    home.wait_until("both are with the server", || heard_of(&home, "a", "tools/call").len() == 3);
    daemon.kill9();
    for (client, id) in clients.iter().zip(calls) {
        let lost = client.wait_answer(id);
        assert_eq!(code(&lost), -32010, "{lost}");
        assert!(words(&lost).contains("outcome unknown"), "{lost}");
    }
    home.daemon();
    for client in &clients {
        assert_eq!(who(client, "a__who")["pid"], pid, "the server lives on");
        assert!(client.tool_names().contains(&"a__echo".to_owned()));
        echoes(client, "a");
    }
    assert_eq!(heard_of(&home, "a", "initialize").len(), 1, "it was greeted once");
    assert_eq!(heard_of(&home, "a", "notifications/initialized").len(), 1);
    no_id_was_used_twice(&home, "a");
    drop(clients);
    home.finish();
}

#[test]
fn an_answer_that_comes_while_no_daemon_is_there_goes_to_nobody() {
    let home = home();
    serve_noting(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = bridged(&home);
    client.start_call("a__slow_echo", json!({ "message": "late", "ms": 400 }));
    home.wait_until("it is there", || heard_of(&home, "a", "tools/call").len() == 1);
    daemon.kill9();
    linger();
    linger();
    home.daemon();
    echoes(&client, "a");
    let id = client.start_call("a__slow_echo", json!({ "message": "new", "ms": 1 }));
    assert_eq!(client.wait_answer(id)["result"]["content"][0]["text"], "new");
    assert_eq!(heard_of(&home, "a", "initialize").len(), 1);
    no_id_was_used_twice(&home, "a");
    drop(client);
    home.finish();
}

#[test]
fn a_replaced_daemon_is_survived_by_clients_and_servers() {
    let home = home();
    serve_noting(&home, "a", &[]);
    serve_noting(&home, "noisy", &["--garbage-first"]);
    home.daemon();
    ready(&home, &["a", "noisy"]);
    let client = bridged(&home);
    let pids = ["a__who", "noisy__who"].map(|tool| who(&client, tool)["pid"].clone());
    for round in 1..=3 {
        let call = client.start_call("a__never", json!({}));
        home.wait_until("it is with the server", || {
            let calls = heard_of(&home, "a", "tools/call");
            calls.iter().filter(|it| it["params"]["name"] == "never").count() == round
        });
        home.daemon_with(&["--replace"]);
        let lost = client.wait_answer(call);
        assert_eq!(code(&lost), -32010, "{lost}");
        let now = ["a__who", "noisy__who"].map(|tool| who(&client, tool)["pid"].clone());
        assert_eq!(now, pids, "the servers live on");
        echoes(&client, "a");
        echoes(&client, "noisy");
    }
    for name in ["a", "noisy"] {
        assert_eq!(heard_of(&home, name, "initialize").len(), 1, "it was greeted once");
        no_id_was_used_twice(&home, name);
    }
    drop(client);
    home.finish();
}

#[test]
fn what_is_watched_is_watched_by_the_next_daemons_clients() {
    let home = home_of_two();
    let client = local(&home);
    let subscribed =
        client.request("resources/subscribe", json!({ "uri": "xy://a/test://counter" }));
    assert!(subscribed.get("result").is_some());
    home.daemon_with(&["--replace"]);
    client.wait_closed();
    let client = local(&home);
    let web = web(&home);
    client.request("resources/subscribe", json!({ "uri": "xy://a/test://counter" }));
    web.call_text("a__bump", json!({}));
    client.wait_notification("notifications/resources/updated");
    home.finish();
}

#[test]
fn killed_servers_are_survived_by_clients_over_http() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &[]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let clients = [web(&home), web(&home)];
    for _ in 0..5 {
        let calls: Vec<u64> = clients
            .iter()
            .map(|client| client.start_call("a__slow_echo", json!({ "message": "x", "ms": 3000 })))
            .collect();
        home.wait_until("both are with the server", || {
            crate::stage::metrics(&home).contains("xy_server_calls_open{server=\"a\"} 2\n")
        });
        signal(running(&home, "a"), Signal::KILL);
        for (client, id) in clients.iter().zip(calls) {
            // If it has not been read yet, the next life does it.
            let lost = client.wait_answer(id);
            assert!(lost.get("result").is_some() || code(&lost) == -32010, "{lost}");
            echoes(client, "b");
            who_at_last(&home, client, "a__who");
        }
    }
    home.finish();
}

/// Calls until it is told to stop; every answer must be its own.
fn call_on(client: &McpClient, who: usize, is_over: &AtomicBool, answered: &AtomicU64) {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let server = ["a", "b"][number % 2];
        let text = format!("client {who} call {number}");
        let answer = client.call(&format!("{server}__echo"), json!({ "message": text }));
        match answer["result"]["content"][0]["text"].as_str() {
            Some(said) => {
                assert_eq!(said, text, "an answer of somebody else");
                answered.fetch_add(1, Ordering::Relaxed);
            }
            None => assert!([-32010, -32005].contains(&code(&answer)), "{answer}"),
        }
        number += 1;
    }
}

#[test]
fn rounds_of_kills_mix_up_no_answers() {
    let home = home();
    for name in ["a", "b"] {
        serve_noting(&home, name, &[]);
    }
    let mut daemon = home.daemon();
    ready(&home, &["a", "b"]);
    let clients: Vec<_> = (0..4).map(|_| bridged(&home)).collect();
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut chance = Chance::new();
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
            pause(chance.millis_below(30));
            if chance.one_in(4) {
                daemon.kill9();
                daemon = home.daemon();
            } else if chance.one_in(3) {
                daemon = home.daemon_with(&["--replace"]);
            } else {
                let name: &&str = chance.pick(&["a", "b"]);
                signal(running(&home, name), Signal::KILL);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for client in &clients {
        who_at_last(&home, client, "a__who");
        who_at_last(&home, client, "b__who");
        assert_eq!(client.unclaimed_answers(), [""; 0], "nothing was answered twice");
        assert_eq!(client.strays(), [""; 0]);
    }
    crate::tell(&format!("{} calls", answered.load(Ordering::Relaxed)));
    drop(clients);
    home.finish();
}

#[expect(clippy::disallowed_methods, reason = "an instant at random is what is wanted")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn a_note_that_is_lost_in_noise_would_greet_a_server_twice() {
    let home = home();
    // So much noise at once that it would fill any queue.
    serve_noting(&home, "a", &["--garbage-first"]);
    let mut daemon = home.daemon();
    ready(&home, &["a"]);
    let pid = running(&home, "a");
    for _ in 0..3 {
        let client = local(&home);
        client.call("a__garbage", json!({ "lines": 2000 }));
        daemon.kill9();
        daemon = home.daemon();
        assert_eq!(running(&home, "a"), pid);
    }
    let client = local(&home);
    echoes(&client, "a");
    let greetings: Vec<Value> = heard_of(&home, "a", "initialize");
    assert_eq!(greetings.len(), 1);
    no_id_was_used_twice(&home, "a");
    home.finish();
}
