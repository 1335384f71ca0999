//! Verbs with a stream of answers.

use std::io::Read;
use std::process::Stdio;

use crate::stage::{Home, Scripted, ScriptedAnswer};

fn line(number: u32, text: &str) -> (&'static str, String) {
    let stream = if number.is_multiple_of(2) { "stdout" } else { "stderr" };
    let params = format!(
        r#"{{"subscription_id":1,"name":"a","stream":"{stream}","line":"{text}","ts":"2023-11-14T22:13:20.123Z","seq":{number}}}"#
    );
    ("log", params)
}

fn some_lines() -> Vec<(&'static str, String)> {
    vec![
        line(1, "first"),
        line(2, r"se\u001b[2Jcond"),
        ("log_skipped", r#"{"subscription_id":1,"count":312}"#.to_owned()),
        line(315, "last"),
    ]
}

#[test]
fn lines_show_their_stream_and_gaps() {
    let home = Home::new();
    let _daemon = Scripted::new(&home, [("logs", ScriptedAnswer::Stream(some_lines()))]);
    insta::assert_snapshot!(home.xy("logs a").shown(&home));
    insta::assert_snapshot!(home.xy("logs a --timestamps").shown(&home));
}

#[test]
fn stdout_has_only_raw_lines() {
    let home = Home::new();
    let _daemon = Scripted::new(&home, [("logs", ScriptedAnswer::Stream(some_lines()))]);
    let ran = home.xy("logs a --raw");
    assert_eq!(ran.stdout, "first\nse\x1b[2Jcond\nlast\n");
    assert_eq!(ran.stderr, "… 312 lines skipped\n");
}

#[test]
fn json_prints_notification_params_per_line() {
    let home = Home::new();
    let _daemon = Scripted::new(&home, [("logs", ScriptedAnswer::Stream(some_lines()))]);
    let expected: Vec<String> = some_lines().into_iter().map(|(_, params)| params).collect();
    assert_eq!(home.xy("logs a --json").stdout.trim_end(), expected.join("\n"));
}

#[test]
fn events_print_a_line_each() {
    let home = Home::new();
    let event = r#"{"subscription_id":1,"name":"flaky","from":"running","state":"restarting","reason":"exited with code 1","restart_count":1,"ts":"2023-11-14T22:13:20.123Z"}"#;
    let events = vec![
        ("event", event.to_owned()),
        ("event_skipped", r#"{"subscription_id":1,"count":1}"#.to_owned()),
        ("event_of_the_future", "{}".to_owned()),
    ];
    let _daemon = Scripted::new(&home, [("events", ScriptedAnswer::Stream(events))]);
    insta::assert_snapshot!(home.xy("events").shown(&home));
}

#[test]
fn lost_daemon_is_reported_after_its_output() {
    let home = Home::new();
    let mut daemon =
        Some(Scripted::new(&home, [("logs", ScriptedAnswer::Dies(vec![line(1, "first")]))]));
    let mut child =
        home.command("logs a -f").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 12];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"[err] first\n");
    daemon.take();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert!(stderr.contains("the daemon hung up"), "{stderr}");
}

#[test]
fn closed_reader_ends_it_quietly() {
    let home = Home::new();
    let (method, params) = line(1, "again");
    let _daemon = Scripted::new(&home, [("logs", ScriptedAnswer::Flood(method, params))]);
    for flags in ["", " --json", " --raw"] {
        let mut child = home
            .command(&format!("logs a -f{flags}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0; 1000];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        let ran = child.wait_with_output().unwrap();
        assert_eq!((ran.status.code(), ran.stderr.as_slice()), (Some(0), b"".as_slice()));
    }
}
