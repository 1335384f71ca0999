//! Exit codes: 0 done, 1 failed, 2 no daemon, 3 bad configuration, 64 wrong usage.

use std::fs;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;
use xy_testkit::{Home, Wire};

use crate::{home, home_with_one, shown, speaker};

/// All verbs.
const VERBS: [&str; 20] = [
    "daemon", "list", "status", "start", "stop", "restart", "reload", "logs", "events", "check",
    "info", "version", "shutdown", "demo", "add", "remove", "connect", "tools", "call", "request",
];

fn words(line: &str) -> Vec<&str> {
    line.split(' ').filter(|word| !word.is_empty()).collect()
}

#[test]
fn success_is_0() {
    let home = home_with_one();
    for line in [
        "list",
        "status one",
        "start one",
        "restart one",
        "stop one",
        "stop one",
        "start --all",
        "start one --no-wait",
        "reload",
        "reload --dry-run",
        "reload one",
        "add two -- /bin/sleep 1000",
        "remove two",
        "logs one",
        "check",
        "info",
        "version",
        "--help",
        "--version",
        "help",
        "shutdown",
    ] {
        let ran = home.xy(&words(line));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "xy {line}");
        assert!(!ran.stdout.is_empty(), "xy {line} says nothing");
    }
    home.finish();
}

#[test]
fn unknown_server_is_1_with_a_suggestion() {
    let home = home_with_one();
    let first = shown(&home, &home.xy(&["status", "oen"]));
    assert_snapshot!(first);
    for verb in ["start", "stop", "restart", "reload", "remove", "logs", "tools"] {
        assert_eq!(shown(&home, &home.xy(&[verb, "oen"])), first, "{verb}");
    }
    assert_eq!(shown(&home, &home.xy(&["logs", "-f", "oen"])), first);
    assert_eq!(shown(&home, &home.xy(&["request", "oen", "ping"])), first);
    home.finish();
}

#[test]
fn failed_start_is_1() {
    let home = home_with_one();
    home.server("missing", "command \"/nowhere/at/all\"\n");
    home.call("reload", Value::Null).unwrap();
    for line in ["start missing", "restart missing", "start --all", "restart --all"] {
        for json in [&[][..], &["--json"]] {
            let ran = home.xy(&[&words(line)[..], json].concat());
            assert_eq!(ran.code, 1, "xy {line} {json:?}: {ran:?}");
        }
    }
    home.finish();
}

#[test]
fn no_daemon_is_2_with_a_hint() {
    let home = home();
    let first = shown(&home, &home.xy(&["list"]));
    assert_snapshot!(first);
    for line in [
        "status a",
        "start a",
        "stop --all",
        "restart a",
        "reload",
        "reload a",
        "add a -- x",
        "remove a",
        "logs a",
        "logs -f a",
        "events",
        "tools",
        "tools a",
        "call a__b",
        "request a ping",
        "info",
        "shutdown",
    ] {
        assert_eq!(shown(&home, &home.xy(&words(line))), first, "xy {line}");
    }
    // A socket without a listener is no daemon either.
    drop(std::os::unix::net::UnixListener::bind(home.socket()).unwrap());
    let refused = home.xy(&["list"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("xy daemon"), "{refused:?}");
    assert!(!home.root().join("state/xy").exists(), "a question leaves nothing behind");
    home.expect_left("run/xy.sock");
    home.finish();
}

#[test]
fn invalid_configuration_is_3() {
    let home = home_with_one();
    home.server("two", "comand \"x\"\n");
    assert_snapshot!("bad-config-check", shown(&home, &home.xy(&["check"])));
    assert_snapshot!("bad-config-reload", shown(&home, &home.xy(&["reload"])));
    for line in ["check --json", "reload --json", "reload --dry-run", "reload --dry-run --json"] {
        assert_eq!(home.xy(&words(line)).code, 3, "xy {line}");
    }
    home.xy(&["shutdown"]);
    let strict = ["daemon --detach --strict", "daemon --detach --strict --json"];
    for line in ["daemon", "daemon --json", "check"].into_iter().chain(strict) {
        assert_eq!(home.xy(&words(line)).code, 3, "xy {line}");
    }
    home.finish();
}

#[test]
fn port_conflict_is_1_at_reload_and_3_at_start() {
    let home = home_with_one();
    home.server("two", &format!("{}port 65432\n", speaker(&home)));
    home.server("three", &format!("{}port 65432\n", speaker(&home)));
    let ran = home.xy(&["reload"]);
    assert_eq!(ran.code, 1);
    assert_snapshot!(shown(&home, &ran));
    assert_eq!(home.xy(&["reload", "--dry-run", "--json"]).code, 1);
    assert_eq!(home.xy(&["check"]).code, 3);
    home.xy(&["shutdown"]);
    assert_eq!(home.xy(&["daemon"]).code, 3);
    home.finish();
}

#[test]
fn wrong_usage_is_64() {
    let home = home_with_one();
    for line in [
        "",
        "lsit",
        "list extra",
        "list --no-such-flag",
        "status",
        "status one two",
        "start",
        "stop",
        "restart",
        "start one --all",
        "stop --all one",
        "restart one --all",
        "logs",
        "logs one --tail",
        "logs one --tail -1",
        "logs one --tail many",
        "logs one --raw --json",
        "reload one two",
        "reload one --dry-run",
        "add",
        "add two",
        "add two cat",
        "add two --env A -- cat",
        "remove",
        "remove one two",
        "demo --for ever",
        "daemon --detach --detached",
    ] {
        for json in [&[][..], &["--json"]] {
            let ran = home.xy(&[&words(line)[..], json].concat());
            assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "xy {line} {json:?}");
            assert!(ran.stderr.starts_with("error: ") || ran.stderr.contains("Usage:"), "{ran:?}");
        }
    }
    assert_eq!(home.call("list", Value::Null).unwrap()[0]["restarts_total"], 0);
    home.finish();
}

#[test]
fn every_help_has_an_example() {
    let home = home();
    for verb in VERBS {
        for flag in ["--help", "-h"] {
            let ran = home.xy(&[verb, flag]);
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{verb} {flag}");
            assert!(ran.stdout.contains("Example:\n  xy "), "{verb} {flag}:\n{}", ran.stdout);
        }
    }
    let all = home.xy(&["--help"]).stdout;
    for verb in VERBS {
        assert!(all.contains(&format!("\n  {verb} ")), "{verb} is not listed:\n{all}");
    }
    let hidden = ["sample-server", "shim", "grip"];
    assert!(!hidden.iter().any(|verb| all.contains(verb)), "{all}");
    home.finish();
}

#[test]
fn daemon_only_option_is_refused() {
    let home = home();
    let mine = home.root().join("mine");
    std::fs::write(&mine, "words").unwrap();
    for words in [&["grip"][..], &["grip", mine.to_str().unwrap(), "abc"]] {
        let ran = home.xy(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{words:?}");
        assert!(
            ran.stderr.starts_with("xy: the stream of a container cannot be held: "),
            "{ran:?}"
        );
    }
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "words");
    std::fs::remove_file(&mine).unwrap();
    home.finish();
}

#[test]
fn closed_stdout_is_silent() {
    let home = home_with_one();
    for line in [
        "list",
        "list --json",
        "status one",
        "logs one",
        "check",
        "info",
        "version",
        "reload",
        "start one",
        "--help",
        "restart one --json",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = home.command(&words(line));
        let command = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "xy {line}");
    }
    home.finish();
}

#[test]
fn verb_works_without_standard_streams() {
    let home = home_with_one();
    let stop = home.command(&["stop", "one"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh"]).arg(stop.get_program());
    shell.args(stop.get_args()).env_clear();
    shell.envs(stop.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(shell.status().unwrap().code(), Some(0));
    home.wait_for_state("one", "stopped");
    home.finish();
}

#[test]
fn full_daemon_is_reported() {
    let home = home_with_one();
    let mut crowd: Vec<Wire> = Vec::new();
    let ran = home.wait_until("the daemon is at its limit", || {
        crowd.extend((crowd.len()..256).map(|_| home.connect()));
        let ran = home.xy(&["list"]);
        (ran.code != 0).then_some(ran)
    });
    drop(crowd);
    assert_snapshot!(shown_without_daemon(&home, &ran));
    home.wait_for_state("one", "running");
    home.finish();
}

/// Formats a result as [`shown`] does, without a request to the daemon.
fn shown_without_daemon(home: &Home, ran: &xy_testkit::Ran) -> String {
    let text = format!("exit {}\n--- stdout\n{}--- stderr\n{}", ran.code, ran.stdout, ran.stderr);
    crate::redact::redact(home, &text)
}

#[test]
#[cfg(target_os = "linux")]
fn hanging_daemon_is_2() {
    use rustix::process::{Pid, Signal, kill_process};

    let home = home_with_one();
    let pid = home.call("info", Value::Null).unwrap()["pid"].as_i64().unwrap();
    let daemon = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(daemon, Signal::STOP).unwrap();
    home.wait_until("all its threads are stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.all(|thread| {
            let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        })
    });
    let ran = home.xy(&["list"]);
    kill_process(daemon, Signal::CONT).unwrap();
    assert_snapshot!(shown(&home, &ran));
    home.finish();
}

#[test]
fn foreign_program_at_the_socket_is_2() {
    let home = home();
    let listener = std::os::unix::net::UnixListener::bind(home.socket()).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let ran = home.xy(&["list"]);
    answering.join().unwrap();
    assert_snapshot!(shown_without_daemon(&home, &ran));
    fs::remove_file(home.socket()).unwrap();
    home.finish();
}
