//! The data that can be read without a daemon.

use serde_json::Value;

use crate::home;

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn logs_and_events_are_read_without_a_daemon() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "20"]));
    home.daemon();
    home.wait_for_state("one", "running");
    home.wait_until("it has said something", || !home.xy(&["logs", "one"]).stdout.is_empty());
    let of_daemon = home.xy_json(&["status", "one"])["transitions"].clone();
    assert_eq!(home.xy(&["shutdown"]).code, 0);

    let logs = home.xy(&["logs", "one", "--tail", "1"]);
    assert_eq!((logs.code, logs.stdout.lines().count()), (0, 1), "{logs:#?}");
    assert!(logs.stderr.contains("no daemon is running"), "{logs:#?}");
    let logs = home.xy(&["logs", "one", "--tail", "1", "--json"]);
    let lines = json_lines(&logs.stdout);
    assert_eq!((lines.len(), &lines[0]["name"]), (1, &Value::from("one")), "{logs:#?}");

    let events = home.xy(&["events", "--history", "50", "--no-follow", "--json"]);
    assert_eq!(events.code, 0, "{events:#?}");
    let entries: Vec<_> = json_lines(&events.stdout);
    assert_eq!(entries.first().unwrap()["state"], of_daemon[0]["to"], "{events:#?}");
    assert_eq!(entries.last().unwrap()["state"], "stopped", "{events:#?}");

    // Following is impossible, and the exit code says so.
    for verb in [&["logs", "one", "-f"][..], &["events"], &["events", "one"]] {
        let ran = home.xy(verb);
        assert_eq!(ran.code, 2, "{verb:?}: {ran:#?}");
        assert!(!ran.stdout.is_empty(), "{verb:?}: {ran:#?}");
        assert!(ran.stderr.contains("no daemon is running"), "{verb:?}: {ran:#?}");
    }
    for verb in [&["logs", "two"][..], &["logs", "../one"], &["events", "two"]] {
        let ran = home.xy(verb);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{verb:?}: {ran:#?}");
    }
    home.finish();
}
