//! Verbs with one answer.

use xy_protocol::control::{Problem, Severity};
use xy_protocol::error::{CallError, ErrorKind};

use crate::stage::{Home, Scripted, ScriptedAnswer};

fn result(text: &str) -> ScriptedAnswer {
    ScriptedAnswer::Result(text.to_owned())
}

const LIST: &str = r#"[ {"name":"github","state":"running","pid":4711,"port":8421,
    "uptime_secs":725,"restart_count":0,"wanted":"up","health":"healthy","transport":"http",
    "restarts_total":0,"a_field_of_the_future":1}, {"name":"flaky","state":"failed","port":null,
    "restart_count":5,"wanted":"up","health":"unknown","transport":"stdio","restarts_total":5,
    "reason":"crashed 5 times in a minute, and this reason is so long that a terminal would cut it"} ]"#;

#[test]
fn piped_list_is_an_uncut_table_without_colours() {
    let home = Home::new();
    let one_line = LIST.replace('\n', " ");
    let _daemon = Scripted::new(&home, [("list", ScriptedAnswer::Result(one_line))]);
    insta::assert_snapshot!(home.xy("list").shown(&home));
}

#[test]
fn json_is_printed_unchanged() {
    let home = Home::new();
    let text = r#"[ {"any" : "thing", "n": 1.50} ]"#;
    let _daemon = Scripted::new(&home, [("list", result(text)), ("status", result(text))]);
    for line in ["list --json", "status a --json"] {
        let ran = home.xy(line);
        assert_eq!((ran.code, ran.stdout), (Some(0), format!("{text}\n")));
    }
}

#[test]
fn empty_list_shows_a_hint() {
    let home = Home::new();
    let _daemon = Scripted::new(&home, [("list", result("[]"))]);
    insta::assert_snapshot!(home.xy("list").shown(&home));
}

#[test]
fn start_stop_and_restart_print_a_line_per_server() {
    let home = Home::new();
    let _daemon = Scripted::new(
        &home,
        [
            ("start", result(r#"{"started":["a"],"already_running":["b"]}"#)),
            ("stop", result(r#"{"stopped":["a"],"not_running":["b"]}"#)),
            ("restart", result(r#"{"restarted":["a","b"]}"#)),
        ],
    );
    assert_eq!(home.xy("start --all").stdout, "started a\nb was already running\n");
    assert_eq!(home.xy("stop --all").stdout, "stopped a\nb was not running\n");
    assert_eq!(home.xy("restart --all").stdout, "restarted a\nrestarted b\n");
    assert_eq!(home.xy("stop a --no-wait").stdout, "stopping a\nb was not running\n");
}

#[test]
fn one_failure_among_many_exits_with_1() {
    let home = Home::new();
    let answer = r#"{"started":["a"],"already_running":[],"failed":[{"name":"b","error":{"code":-32006,"message":"server `b` did not start","data":{"kind":"SpawnFailed","cause":"exited with code 1"}}}]}"#;
    let _daemon = Scripted::new(&home, [("start", result(answer))]);
    insta::assert_snapshot!(home.xy("start --all").shown(&home));
    let json = home.xy("start --all --json");
    assert_eq!((json.code, json.stdout), (Some(1), format!("{answer}\n")));
}

#[test]
fn start_without_servers_is_reported() {
    let home = Home::new();
    let _daemon =
        Scripted::new(&home, [("start", result(r#"{"started":[],"already_running":[]}"#))]);
    let ran = home.xy("start --all");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "no servers are configured\n"));
}

#[test]
fn daemon_error_has_three_parts() {
    let home = Home::new();
    let error = CallError::new(ErrorKind::ServerNotFound, "there is no server `gihub`")
        .hint("did you mean `github`?");
    let _daemon = Scripted::new(&home, [("status", ScriptedAnswer::Error(error))]);
    insta::assert_snapshot!(home.xy("status gihub").shown(&home));
    let json = home.xy("status gihub --json");
    assert_eq!(json.code, Some(1));
    let expected = r#"{"error":{"code":-32001,"message":"there is no server `gihub`","data":{"kind":"ServerNotFound","hint":"did you mean `github`?"}}}"#;
    assert_eq!(json.stdout.trim_end(), expected);
}

#[test]
fn reload_of_bad_files_exits_with_3() {
    let home = Home::new();
    let problem = Problem {
        severity: Severity::Error,
        message: "unknown word".into(),
        file: "servers/a.kdl".into(),
        line: Some(1),
        column: Some(1),
        suggestion: None,
        rendered: "error: unknown word\n --> servers/a.kdl:1:1\n".into(),
    };
    let error = CallError::new(ErrorKind::ConfigInvalid, "nothing was reloaded");
    let _daemon =
        Scripted::new(&home, [("reload", ScriptedAnswer::Error(error.problems(vec![problem])))]);
    insta::assert_snapshot!(home.xy("reload").shown(&home));
}

#[test]
fn reload_prints_its_plan() {
    let home = Home::new();
    let answer = r#"{"added":["a"],"removed":[],"changed":["b"],"unchanged":["c"],"restarted":["b"],"updated":[],"dry_run":true}"#;
    let _daemon = Scripted::new(&home, [("reload", result(answer))]);
    insta::assert_snapshot!(home.xy("reload --dry-run").shown(&home));
}

#[test]
fn daemon_info_and_version_are_shown() {
    let home = Home::new();
    let info = r#"{"version":"9.9.9","pid":1,"control_socket":"/s","mcp_socket":null,"gateway_url":null,"config_dir":"/c","state_dir":"/t","uptime_secs":60,"servers":2,"running":1}"#;
    let version = r#"{"version":"9.9.9","protocol":1}"#;
    let _daemon = Scripted::new(&home, [("info", result(info)), ("version", result(version))]);
    assert!(home.xy("info").stdout.contains("servers     2, 1 running\n"));
    assert!(home.xy("version").stdout.contains("daemon  9.9.9 (protocol 1)\n"));
    assert_eq!(home.xy("version --json").stdout, format!("{version}\n"));
}

#[test]
fn invalid_answer_is_an_error() {
    let home = Home::new();
    let _daemon = Scripted::new(&home, [("list", result(r#"{"surprise":true}"#))]);
    let ran = home.xy("list");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("the response is not from xy"), "{}", ran.stderr);
}
