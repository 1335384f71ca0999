//! Streams: lines and changes as they come, and the ends of them.

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Heard, Home, Wire};

use crate::talk::{Talk, request};
use crate::{SOON, home, home_with_one};

/// A home whose server `speaker` has said three lines on stderr, and sleeps.
fn home_with_speaker() -> Home {
    let home = home();
    let says_three = ["--lines", "3", "--then", "sleep"];
    home.server("speaker", &home.kdl_command("xy-test-spew", &says_three));
    home.daemon();
    home.wait_for_state("speaker", "running");
    home.wait_until("three lines are there", || lines_of(&home, "speaker").len() == 3);
    home
}

/// The lines that the daemon has of a server.
fn lines_of(home: &Home, name: &str) -> Vec<String> {
    let mut wire = home.connect();
    wire.call("logs", json!({ "name": name, "tail": 1000 })).unwrap();
    let mut lines = Vec::new();
    loop {
        let message = wire.next(SOON);
        match message["method"].as_str().unwrap() {
            "log" => lines.push(message["params"]["line"].as_str().unwrap().to_owned()),
            "log_end" => return lines,
            other => panic!("what is `{other}`?"),
        }
    }
}

/// The next change of a server, as `from to`.
fn change(wire: &mut Wire) -> String {
    let event = wire.next(SOON);
    assert_eq!(event["method"], "event", "{event}");
    let word = |key: &str| event["params"][key].as_str().unwrap().to_owned();
    format!("{} {} {}", word("name"), word("from"), word("state"))
}

#[test]
fn logs_shows_the_last_lines_and_ends() {
    let home = home_with_speaker();
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "logs", r#"{"name":"speaker","tail":2}"#));
    while talk.hear()["method"] == "log" {}
    talk.ask(&request(2, "logs", r#"{"name":"speaker","tail":0}"#));
    talk.hear();
    talk.ask(&request(3, "logs", r#"{"name":"speaker"}"#));
    while talk.hear()["method"] == "log" {}
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn the_stdout_of_a_server_with_a_port_is_shown_as_such() {
    let home = home();
    let says =
        home.kdl_command("xy-test-spew", &["--lines", "1", "--stream", "out", "--then", "sleep"]);
    home.server("web", &format!("{says}port 8421\n"));
    home.daemon();
    home.wait_until("its line is there", || !lines_of(&home, "web").is_empty());
    let mut talk = Talk::with(&home);
    talk.ask(&request(1, "logs", r#"{"name":"web"}"#));
    talk.hear();
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn a_follower_gets_what_comes_until_it_cancels() {
    let home = home_with_speaker();
    let mut talk = Talk::with(&home);
    let begun = talk.ask(&request(1, "logs", r#"{"name":"speaker","tail":1,"follow":true}"#));
    let subscription = &begun["result"];
    assert_eq!(talk.hear()["params"]["subscription_id"], subscription["subscription_id"]);
    talk.remark("the server is restarted by somebody else");
    home.call("restart", json!({ "name": "speaker" })).unwrap();
    for _ in ["stopping", "1", "2", "3"] {
        talk.hear();
    }
    talk.remark("enough");
    let answer = talk.ask(&request(2, "logs_cancel", &subscription.to_string()));
    assert_eq!(&answer["result"], subscription);
    assert_eq!(&talk.hear()["params"], subscription);
    talk.remark("it cannot be cancelled twice, and nothing more comes");
    talk.ask(&request(3, "logs_cancel", &subscription.to_string()));
    home.call("restart", json!({ "name": "speaker" })).unwrap();
    talk.ask(&request(4, "version", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn a_follower_is_told_when_its_server_is_gone() {
    let home = home_with_speaker();
    let mut wire = home.connect();
    let begun = wire.call("logs", json!({ "name": "speaker", "tail": 0, "follow": true })).unwrap();
    home.remove_server("speaker");
    home.call("reload", Value::Null).unwrap();
    assert_eq!(wire.next(SOON)["params"]["line"], "stopping: stdin closed");
    let end = json!({ "jsonrpc": "2.0", "method": "log_end", "params": begun });
    assert_eq!(wire.next(SOON), end);
    home.finish();
}

#[test]
fn streams_end_in_order_when_the_daemon_goes() {
    let home = home_with_speaker();
    let mut wire = home.connect();
    let lines = wire.call("logs", json!({ "name": "speaker", "tail": 0, "follow": true })).unwrap();
    let changes = wire.call("events", Value::Null).unwrap();
    wire.call("shutdown", Value::Null).unwrap();
    let mut ends = Vec::new();
    loop {
        match wire.hear(SOON) {
            Heard::Message(message) if message["method"].as_str().unwrap().ends_with("_end") => {
                ends.push((message["method"].clone(), message["params"].clone()));
            }
            Heard::Message(_) => {}
            Heard::Closed => break,
            Heard::Silence => panic!("the daemon neither ends nor speaks"),
        }
    }
    ends.sort_by_key(|(method, _)| method.to_string());
    assert_eq!(ends, [(json!("event_end"), changes), (json!("log_end"), lines)]);
    home.finish();
}

#[test]
fn events_tells_changes_until_it_is_cancelled() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    let begun = talk.ask(&request(1, "events", ""));
    home.call("stop", json!({ "name": "one" })).unwrap();
    home.call("start", json!({ "name": "one" })).unwrap();
    for _ in ["stopping", "stopped", "starting", "running"] {
        assert_eq!(talk.hear()["params"]["subscription_id"], begun["result"]["subscription_id"]);
    }
    talk.remark("enough");
    talk.ask(&request(2, "events_cancel", &begun["result"].to_string()));
    talk.hear();
    home.call("stop", json!({ "name": "one" })).unwrap();
    talk.ask(&request(3, "version", ""));
    assert_snapshot!(talk.text());
    home.finish();
}

#[test]
fn every_change_is_told_to_every_listener_in_order() {
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

    let mut told: Vec<Vec<String>> = Vec::new();
    for listener in &mut listeners {
        told.push((0..12).map(|_| change(listener)).collect());
    }
    assert_eq!(told[0], told[1]);
    let of = |name: &str| -> Vec<&str> {
        told[0].iter().filter_map(|it| it.strip_prefix(name)).collect()
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
fn a_stream_belongs_to_the_connection_that_began_it() {
    let home = home_with_one();
    let (mut owner, mut other) = (home.connect(), home.connect());
    let begun = owner.call("events", Value::Null).unwrap();
    let refused = other.call("events_cancel", begun.clone()).unwrap_err();
    assert_eq!(refused["code"], -32602);
    home.call("stop", json!({ "name": "one" })).unwrap();
    assert_eq!(change(&mut owner), "one running stopping");
    home.finish();
}

#[test]
fn a_connection_has_a_limited_number_of_streams_and_may_end_some() {
    let home = home_with_one();
    let mut wire = home.connect();
    let first = wire.call("events", Value::Null).unwrap();
    for _ in 1..16 {
        wire.call("logs", json!({ "name": "one", "tail": 0, "follow": true })).unwrap();
    }
    let refused = wire.call("events", Value::Null).unwrap_err();
    assert_eq!((&refused["code"], &refused["data"]["kind"]), (&json!(-32008), &json!("QueueFull")));
    wire.call("events_cancel", first).unwrap();
    let mut told = wire.next(SOON);
    while told["method"] == "log" {
        told = wire.next(SOON); // Its first words may come this late.
    }
    assert_eq!(told["method"], "event_end");
    wire.call("events", Value::Null).unwrap();
    home.finish();
}
