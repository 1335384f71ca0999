//! Events that outlive the daemon: first the history, then the stream, each event once.

use std::fs;

use serde_json::{Value, json};
use xy_testkit::{Home, Wire};

use super::{TIMEOUT, home, home_with_one};

/// Returns the events of a stream that ends by itself.
#[track_caller]
fn history(home: &Home, params: Value) -> Vec<Value> {
    let mut wire = home.connect();
    wire.call("events", params).unwrap();
    let mut events = Vec::new();
    loop {
        let message = wire.next(TIMEOUT);
        match message["method"].as_str().unwrap() {
            "event_end" => return events,
            _ => events.push(message["params"].clone()),
        }
    }
}

fn all_of(home: &Home, name: &str) -> Vec<Value> {
    history(home, json!({ "history": 1000, "name": name, "follow": false }))
}

fn states(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["state"].as_str().unwrap()).collect()
}

/// Waits until the last event is on disk, because a killed daemon writes nothing more.
fn wait_until_written(home: &Home, last: &str) {
    let file = home.root().join("state/xy/events.jsonl");
    home.wait_until("the journal has it", || {
        fs::read_to_string(&file).unwrap_or_default().lines().last().is_some_and(|line| {
            serde_json::from_str::<Value>(line).is_ok_and(|line| line["to"] == last)
        })
    });
}

#[test]
fn history_survives_a_killed_daemon() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    home.call("stop", json!({ "name": "one" })).unwrap();
    wait_until_written(&home, "stopped");
    let before = all_of(&home, "one");
    assert_eq!(states(&before), ["starting", "running", "stopping", "stopped"]);

    home.call("start", json!({ "name": "one" })).unwrap();
    wait_until_written(&home, "running");
    daemon.kill9();
    home.daemon();
    home.wait_for_state("one", "running");
    let after = all_of(&home, "one");
    assert_eq!(&after[..4], &before.iter().map(without_stream(&after[0])).collect::<Vec<_>>());
    let last = after.last().unwrap();
    assert_eq!(last["reason"], "taken over from an earlier daemon", "{last}");
    assert_eq!((&last["from"], &last["state"]), (&json!("running"), &json!("running")));
    assert_ne!(last["boot"], before[0]["boot"]);

    let ran = home.xy(&["events", "--history", "1000", "--no-follow"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("— daemon restarted —"), "{}", ran.stdout);
    home.finish();
}

/// Returns a function that gives an event the stream id of `other`, for comparison.
fn without_stream(other: &Value) -> impl Fn(&Value) -> Value {
    let id = other["subscription_id"].clone();
    move |event| {
        let mut event = event.clone();
        event["subscription_id"] = id.clone();
        event
    }
}

#[test]
fn history_and_stream_form_one_sequence() {
    let home = home_with_one();
    let mut wire = home.connect();
    for _ in 0..3 {
        home.call("restart", json!({ "name": "one" })).unwrap();
    }
    wire.call("events", json!({ "history": 5 })).unwrap();
    home.call("restart", json!({ "name": "one" })).unwrap();
    // Each restart has three changes: five of earlier restarts, then those of the last.
    let seqs = seqs_of(&mut wire, 8);
    assert_eq!(seqs, (seqs[0]..seqs[0] + 8).collect::<Vec<_>>());
    assert_eq!(seqs[7], 14, "two of the start, and four times three");
    home.finish();
}

fn seqs_of(wire: &mut Wire, count: usize) -> Vec<u64> {
    (0..count).map(|_| wire.next(TIMEOUT)["params"]["seq"].as_u64().unwrap()).collect()
}

#[test]
fn history_accepts_current_and_former_names() {
    let home = home_with_one();
    let refused = home.call("events", json!({ "name": "oen" })).unwrap_err();
    assert_eq!(refused["code"], -32001);
    assert!(refused.to_string().contains("did you mean `one`?"), "{refused}");
    home.remove_server("one");
    home.call("reload", Value::Null).unwrap();
    assert_eq!(states(&all_of(&home, "one")).last(), Some(&"stopped"));
    home.finish();
}

#[test]
fn last_attempt_and_limits_are_shown() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"off\"; }\n");
    let rules = "restart { backoff-initial \"0s\"; max-attempts 2 }\n";
    home.server("bad", &format!("{}{rules}", home.kdl_command("xy-test-exit", &[])));
    home.daemon();
    let status = home.wait_for_state("bad", "failed");
    let used = json!({
        "in_a_row": 2,
        "max_attempts": 2,
        "exits_last_minute": 3,
        "max_retries_per_minute": 5,
    });
    assert_eq!(status["limits_used"], used);
    assert_eq!((&status["alive"], &status["ready"]), (&json!(false), &json!(false)));
    assert_eq!(status["log_path"], status["log_file"]);
    let events = all_of(&home, "bad");
    let last: Vec<&Value> = events.iter().filter(|it| it["kind"] == "last_attempt").collect();
    assert_eq!(last.len(), 1, "{events:#?}");
    assert_eq!((&last[0]["state"], &last[0]["restart_count"]), (&json!("starting"), &json!(2)));
    let ran = home.xy(&["events", "bad", "--history", "100", "--no-follow"]);
    assert!(ran.stdout.contains("last attempt  final restart attempt (2 of 2)"), "{}", ran.stdout);
    let ran = home.xy(&["status", "bad"]);
    assert!(ran.stdout.contains("last attempt  final restart attempt (2 of 2)"), "{}", ran.stdout);
    home.finish();
}

#[test]
fn last_attempt_is_in_journal_and_status() {
    let rules = [
        ("restart { backoff-initial \"0s\"; max-attempts 2; max-retries-per-minute 0 }", 2),
        ("restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 3 }", 3),
    ];
    for (rule, restarts) in rules {
        let home = home();
        home.write_config("xy.kdl", "gateway { listen \"off\"; }\n");
        home.server("bad", &format!("{}{rule}\n", home.kdl_command("xy-test-exit", &[])));
        home.daemon();
        let status = home.wait_for_state("bad", "failed");
        wait_until_written(&home, "failed");
        let stored = fs::read_to_string(home.root().join("state/xy/events.jsonl")).unwrap();
        let stored: Vec<Value> =
            stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = stored.iter().position(|it| it["kind"] == "last_attempt").unwrap();
        assert_eq!(
            stored.iter().filter(|it| it["kind"] == "last_attempt").count(),
            1,
            "{stored:#?}"
        );
        // The event follows the change that begins the last attempt, and no attempt follows it.
        let events = [&stored[last - 1], &stored[last]];
        assert!(events.iter().all(|it| it["to"] == "starting" && it["restart_count"] == restarts));
        assert_eq!(stored[last - 1]["kind"], "changed");
        assert!(stored[last + 1..].iter().all(|it| it["to"] != "starting"), "{stored:#?}");
        assert_eq!(stored.last().unwrap()["to"], "failed");

        let events = all_of(&home, "bad");
        let event = events.iter().find(|it| it["kind"] == "last_attempt").unwrap();
        assert_eq!(event["reason"], stored[last]["reason"]);
        let changes = status["transitions"].as_array().unwrap();
        let marked: Vec<_> = changes.iter().filter(|it| it["last_attempt"].is_string()).collect();
        assert_eq!((marked.len(), &marked[0]["to"]), (1, &json!("starting")), "{status:#}");
        assert_eq!(marked[0]["last_attempt"], stored[last]["reason"]);
        let shown = home.xy(&["status", "bad"]).stdout;
        let line = format!("last attempt  {}", stored[last]["reason"].as_str().unwrap());
        assert!(shown.contains(&line), "{shown}");
        home.finish();
    }
}

#[test]
fn torn_journal_is_read_and_full_journal_is_rotated() {
    let home = home();
    let file = home.root().join("state/xy/events.jsonl");
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    wait_until_written(&home, "running");
    daemon.kill9();
    let torn = r#"{"time":"2026-11-16T22:13:20.123Z","boot":"x","se"#;
    let stored = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{stored}{torn}")).unwrap();

    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let events = all_of(&home, "one");
    assert_eq!(states(&events)[..2], ["starting", "running"], "the earlier events: {events:#?}");
    assert_eq!(events.last().unwrap()["reason"], "taken over from an earlier daemon");
    wait_until_written(&home, "running");
    let now = fs::read_to_string(&file).unwrap();
    assert!(now.starts_with(&format!("{stored}{torn}\n{{")), "a line of its own: {now}");
    daemon.kill9();

    // Fills the journal to its limit.
    let line = now.lines().next().unwrap();
    let mut full = format!("{line}\n").repeat((1 << 20) / (line.len() + 1));
    full.push_str(&"x".repeat((1 << 20) - full.len()));
    fs::write(&file, full).unwrap();
    home.daemon();
    home.wait_for_state("one", "running");
    wait_until_written(&home, "running");
    let older = fs::metadata(home.root().join("state/xy/events.jsonl.1")).unwrap();
    assert!(older.len() == 1 << 20 && fs::metadata(&file).unwrap().len() < 1 << 16);
    assert_eq!(all_of(&home, "one").last().unwrap()["state"], "running");
    home.finish();
}

#[test]
fn running_server_is_alive_and_ready() {
    let home = home_with_one();
    let status = home.call("status", json!({ "name": "one" })).unwrap();
    assert_eq!((&status["alive"], &status["ready"]), (&json!(true), &json!(true)));
    home.call("stop", json!({ "name": "one" })).unwrap();
    let status = home.call("status", json!({ "name": "one" })).unwrap();
    assert_eq!((&status["alive"], &status["ready"]), (&json!(false), &json!(false)));
    home.finish();
}

#[test]
fn unwritable_journal_is_reported_and_stops_nothing() {
    let home = home();
    fs::create_dir_all(home.root().join("state/xy/events.jsonl")).unwrap();
    home.write_config("xy.kdl", "gateway { listen \"off\"; }\n");
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    home.daemon();
    home.wait_for_state("one", "running");
    home.wait_until("it is told", || home.xy(&["info"]).stdout.contains("events are not stored: "));
    assert_eq!(states(&all_of(&home, "one")), ["starting", "running"], "memory has them");
    fs::remove_dir(home.root().join("state/xy/events.jsonl")).unwrap();
    home.wait_until("events are stored again", || {
        !home.xy(&["info"]).stdout.contains("events are not")
    });
    wait_until_written(&home, "running");
    home.finish();
}
