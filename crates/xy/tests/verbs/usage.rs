//! Verbs that need no daemon, and errors without a daemon.

use std::process::Stdio;

use crate::stage::Home;

#[test]
fn missing_daemon_exits_with_2() {
    let home = Home::new();
    let verbs = [
        "list",
        "status a",
        "start a",
        "stop --all",
        "restart a",
        "reload",
        "logs a",
        "events",
        "tools",
        "call a__b",
        "request a ping",
        "info",
        "shutdown",
    ];
    let first = home.xy("list").shown(&home);
    insta::assert_snapshot!(first);
    for verb in verbs {
        assert_eq!(home.xy(verb).shown(&home), first, "{verb}");
        let ran = home.xy(&format!("{verb} --json"));
        let error: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(error["error"]["data"]["kind"], "NotRunning", "{verb}");
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(2), ""), "{verb}");
    }
    assert!(!home.path().join("state/xy").exists(), "a question leaves nothing behind");
}

#[test]
fn wrong_usage_exits_with_64_and_help_with_0() {
    let home = Home::new();
    for line in ["", "lsit", "list --nope", "start", "start a --all", "status", "logs a --tail x"] {
        let ran = home.xy(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""), "{line}: {}", ran.stderr);
        assert!(!ran.stderr.is_empty(), "{line}");
    }
    for line in ["--help", "help", "list --help", "-h", "--version"] {
        let ran = home.xy(line);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
        assert!(ran.stdout.contains("xy"), "{line}");
    }
}

#[test]
fn plain_version_needs_no_daemon() {
    let home = Home::new();
    let ran = home.xy("version");
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.ends_with("daemon  not running\n"), "{}", ran.stdout);
    assert_eq!(home.xy("version --json").code, Some(2));
}

#[test]
fn closed_stdout_does_not_panic() {
    let home = Home::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = home.command("--help").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((ran.status.code(), ran.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_output_is_an_error() {
    let home = Home::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ran = home.command("version").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert!(stderr.starts_with("error: the output could not be written\n"), "{stderr}");
}
