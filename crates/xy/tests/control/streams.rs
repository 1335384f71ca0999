//! Streams of lines and of changes, and their ends.

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, Wire, WireEvent};

use crate::talk::{Talk, request};
use crate::{TIMEOUT, home, home_with_one};

/// Returns a home whose server `speaker` has written three lines to stderr, and sleeps.
fn home_with_speaker() -> Home {
    let home = home();
    let says_three = ["--lines", "3", "--then", "sleep"];
    home.server("speaker", &home.kdl_command("xy-test-spew", &says_three));
    home.daemon();
    home.wait_for_state("speaker", "running");
    home.wait_until("three lines are there", || lines_of(&home, "speaker").len() == 3);
    home
}

/// Returns the lines of a server, as the daemon has them.
fn lines_of(home: &Home, name: &str) -> Vec<String> {
    let mut wire = home.connect();
    wire.call("logs", json!({ "name": name, "tail": 1000 })).unwrap();
    let mut lines = Vec::new();
    loop {
        let message = wire.next(TIMEOUT);
        match message["method"].as_str().unwrap() {
            "log" => lines.push(message["params"]["line"].as_str().unwrap().to_owned()),
            "log_end" => return lines,
            other => panic!("unexpected method `{other}`"),
        }
    }
}

/// Returns the next change of a server, as `from to`.
fn change(wire: &mut Wire) -> String {
    let event = wire.next(TIMEOUT);
    assert_eq!(event["method"], "event", "{event}");
    let word = |key: &str| event["params"][key].as_str().unwrap().to_owned();
    format!("{} {} {}", word("name"), word("from"), word("state"))
}

#[test]
fn logs_sends_the_last_lines_and_ends() {
    let home = home_with_speaker();
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "logs", r#"{"name":"speaker","tail":2}"#));
    while talk.receive()["method"] == "log" {}
    talk.ask(&request(2, "logs", r#"{"name":"speaker","tail":0}"#));
    talk.receive();
    talk.ask(&request(3, "logs", r#"{"name":"speaker"}"#));
    while talk.receive()["method"] == "log" {}
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn stdout_of_http_server_is_marked() {
    let home = home();
    let says =
        home.kdl_command("xy-test-spew", &["--lines", "1", "--stream", "out", "--then", "sleep"]);
    home.server("web", &format!("{says}port 8421\n"));
    home.daemon();
    home.wait_until("its line is there", || !lines_of(&home, "web").is_empty());
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "logs", r#"{"name":"web"}"#));
    talk.receive();
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn follower_receives_lines_until_it_cancels() {
    let home = home_with_speaker();
    let mut talk = Talk::with(&home);
    let answer = talk.ask(&request(1, "logs", r#"{"name":"speaker","tail":1,"follow":true}"#));
    let subscription = &answer["result"];
    assert_eq!(talk.receive()["params"]["subscription_id"], subscription["subscription_id"]);
    talk.remark("the server is restarted by somebody else");
    home.call("restart", json!({ "name": "speaker" })).unwrap();
    for _ in ["stopping", "1", "2", "3"] {
        talk.receive();
    }
    talk.remark("enough");
    let answer = talk.ask(&request(2, "logs_cancel", &subscription.to_string()));
    assert_eq!(&answer["result"], subscription);
    assert_eq!(&talk.receive()["params"], subscription);
    talk.remark("it cannot be cancelled twice, and nothing more comes");
    talk.ask(&request(3, "logs_cancel", &subscription.to_string()));
    home.call("restart", json!({ "name": "speaker" })).unwrap();
    talk.ask(&request(4, "version", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn follower_is_notified_of_a_removed_server() {
    let home = home_with_speaker();
    let mut wire = home.connect();
    let answer =
        wire.call("logs", json!({ "name": "speaker", "tail": 0, "follow": true })).unwrap();
    home.remove_server("speaker");
    home.call("reload", Value::Null).unwrap();
    assert_eq!(wire.next(TIMEOUT)["params"]["line"], "stopping: stdin closed");
    let end = json!({ "jsonrpc": "2.0", "method": "log_end", "params": answer });
    assert_eq!(wire.next(TIMEOUT), end);
    home.finish();
}

#[test]
fn streams_end_cleanly_at_shutdown() {
    let home = home_with_speaker();
    let mut wire = home.connect();
    let lines = wire.call("logs", json!({ "name": "speaker", "tail": 0, "follow": true })).unwrap();
    let changes = wire.call("events", Value::Null).unwrap();
    wire.call("shutdown", Value::Null).unwrap();
    let mut ends = Vec::new();
    loop {
        match wire.receive(TIMEOUT) {
            WireEvent::Message(message)
                if message["method"].as_str().unwrap().ends_with("_end") =>
            {
                ends.push((message["method"].clone(), message["params"].clone()));
            }
            WireEvent::Message(_) => {}
            WireEvent::Closed => break,
            WireEvent::TimedOut => panic!("the daemon neither ends nor speaks"),
        }
    }
    ends.sort_by_key(|(method, _)| method.to_string());
    assert_eq!(ends, [(json!("event_end"), changes), (json!("log_end"), lines)]);
    home.finish();
}

#[test]
fn events_sends_changes_until_cancelled() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    let answer = talk.ask(&request(1, "events", ""));
    home.call("stop", json!({ "name": "one" })).unwrap();
    home.call("start", json!({ "name": "one" })).unwrap();
    for _ in ["stopping", "stopped", "starting", "running"] {
        assert_eq!(
            talk.receive()["params"]["subscription_id"],
            answer["result"]["subscription_id"]
        );
    }
    talk.remark("enough");
    talk.ask(&request(2, "events_cancel", &answer["result"].to_string()));
    talk.receive();
    home.call("stop", json!({ "name": "one" })).unwrap();
    talk.ask(&request(3, "version", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn every_listener_receives_changes_in_order() {
    let home = home_with_one();
    let lives = home.root().join("tmp/lives").display().to_string();
    let dies_once =
        home.kdl_command("xy-test-exit", &["--code", "3", "--lives", &lives, "--until", "1"]);
    let mut listeners = [home.connect(), home.connect()];
    for listener in &mut listeners {
        listener.call("events", Value::Null).unwrap();
    }

    home.call("restart", json!({ "name": "one" })).unwrap();
    home.server("two", &format!("{dies_once}restart {{ backoff-initial \"10ms\" }}\n"));
    home.remove_server("one");
    home.call("reload", Value::Null).unwrap();
    home.wait_until("the second life of `two`", || {
        let status = home.call("status", json!({ "name": "two" })).unwrap();
        status["restarts_total"] == 1 && status["state"] == "running"
    });
    home.call("stop", json!({ "all": true })).unwrap();

    let mut received: Vec<Vec<String>> = Vec::new();
    for listener in &mut listeners {
        received.push((0..12).map(|_| change(listener)).collect());
    }
    assert_eq!(received[0], received[1]);
    let of = |name: &str| -> Vec<&str> {
        received[0].iter().filter_map(|it| it.strip_prefix(name)).collect()
    };
    let restarted = [" running stopping", " stopping starting", " starting running"];
    let removed = [" running stopping", " stopping stopped"];
    assert_eq!(of("one"), [&restarted[..], &removed].concat());
    let crashed = [" stopped starting", " starting running", " running restarting"];
    let again = [" restarting starting", " starting running"];
    assert_eq!(of("two"), [&crashed[..], &again, &removed].concat());
    home.expect_left("tmp/lives");
    home.finish();
}

#[test]
fn stream_cannot_be_cancelled_by_another_connection() {
    let home = home_with_one();
    let (mut owner, mut other) = (home.connect(), home.connect());
    let answer = owner.call("events", Value::Null).unwrap();
    let refused = other.call("events_cancel", answer.clone()).unwrap_err();
    assert_eq!(refused["code"], -32602);
    home.call("stop", json!({ "name": "one" })).unwrap();
    assert_eq!(change(&mut owner), "one running stopping");
    home.finish();
}

#[test]
fn streams_per_connection_are_limited() {
    let home = home_with_one();
    let mut wire = home.connect();
    let first = wire.call("events", Value::Null).unwrap();
    for _ in 1..16 {
        wire.call("logs", json!({ "name": "one", "tail": 0, "follow": true })).unwrap();
    }
    let refused = wire.call("events", Value::Null).unwrap_err();
    assert_eq!((&refused["code"], &refused["data"]["kind"]), (&json!(-32008), &json!("QueueFull")));
    wire.call("events_cancel", first).unwrap();
    let mut received = wire.next(TIMEOUT);
    while received["method"] == "log" {
        received = wire.next(TIMEOUT); // The server's first lines may arrive this late.
    }
    assert_eq!(received["method"], "event_end");
    wire.call("events", Value::Null).unwrap();
    home.finish();
}
