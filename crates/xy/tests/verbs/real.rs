//! Verbs that start a daemon and leave nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Home, wait_until};

fn sample(arguments: &str) -> String {
    let xy = env!("CARGO_BIN_EXE_xy");
    format!(
        "command \"{xy}\"\nargs \"sample-server\" {arguments}\ntransport \"stdio\"\nready {{ probe \"process\" }}\n"
    )
}

#[test]
fn detached_daemon_serves_until_shutdown() {
    let home = Home::new();
    home.server("one", &sample(""));
    let started = home.xy("daemon --detach");
    assert_eq!(started.code, Some(0), "{started:?}");
    assert!(started.stdout.starts_with("xy daemon started, pid "), "{started:?}");

    let second = home.xy("daemon --detach");
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("already running"), "{second:?}");

    wait_until("the server runs", || home.xy("list").stdout.contains("running"));
    wait_until("it says something", || home.xy("logs one").stdout.contains("[err] it is "));
    let ended = home.xy("shutdown");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(home.xy("list").code, Some(2));

    // The lock is free immediately.
    let again = home.xy("daemon --detach --json");
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stdout.starts_with(r#"{"version":"#), "{again:?}");
    assert_eq!(home.xy("shutdown").code, Some(0));
}

#[test]
fn start_failure_keeps_its_exit_code() {
    let home = Home::new();
    home.server("bad", "comand \"x\"\n");
    let ran = home.xy("daemon --detach --strict");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("comand"), "{ran:?}");
    assert_eq!(home.xy("daemon").code, Some(3));
}

#[test]
fn files_are_checked_without_a_daemon() {
    let home = Home::new();
    home.server("good", &sample(""));
    let good = home.xy("check");
    let expected = "1 server: good\n1 file, 0 errors, 0 warnings\n";
    assert_eq!((good.code, good.stdout.as_str()), (Some(0), expected));
    home.server("bad", "comand \"x\"\n");
    let bad = home.xy("check");
    assert_eq!((bad.code, bad.stderr.as_str()), (Some(3), ""));
    assert!(bad.stdout.contains("comand"), "{bad:?}");
    let json = home.xy("check --json");
    assert_eq!(json.code, Some(3));
    assert!(json.stdout.starts_with(r#"{"valid":false,"#), "{json:?}");
}

/// Checks that the folder and the processes of a demo are gone.
fn assert_nothing_left(home: &Home) {
    let left: Vec<_> = fs::read_dir(home.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    #[cfg(target_os = "linux")]
    wait_until("its processes end", || processes_of(home).is_empty());
}

/// Returns the processes whose environment refers to `home`.
#[cfg(target_os = "linux")]
fn processes_of(home: &Home) -> Vec<i32> {
    let marker = home.path().join("tmp").into_os_string().into_encoded_bytes();
    let is_ours = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|part| part == marker)
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_ours)
        .collect()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Starts a demo, and waits for its first lines.
fn running_demo(home: &Home) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = home
        .command("demo --for 60s")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("State changes follow")));
    (child, lines)
}

#[test]
fn demo_runs_two_servers_and_leaves_nothing() {
    let home = Home::new();
    let ran = home.xy("demo --for 1500ms");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for word in [
        "clock",
        "flaky",
        "running",
        "export XDG_CONFIG_HOME=",
        "all its files and processes are removed",
    ] {
        assert!(ran.stdout.contains(word), "{word}: {ran:?}");
    }
    assert_nothing_left(&home);
}

#[test]
fn interrupted_demo_leaves_nothing() {
    let home = Home::new();
    let (mut child, _lines) = running_demo(&home);
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_nothing_left(&home);
}

#[cfg(target_os = "linux")]
#[test]
fn demo_with_a_killed_daemon_leaves_nothing() {
    let home = Home::new();
    let (mut child, _lines) = running_demo(&home);
    let demo = i32::try_from(child.id()).unwrap();
    let children = fs::read_to_string(format!("/proc/{demo}/task/{demo}/children")).unwrap();
    let daemon = children.split_whitespace().next().unwrap().parse().unwrap();
    signal(daemon, Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_nothing_left(&home);
}
