//! Helpers for tests with a real daemon: control requests, states, signals and log lines.
#![allow(dead_code, reason = "each test file uses its own part of it")]

#[cfg(target_os = "linux")]
pub(crate) mod disk;

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use xy_testkit::{Home, Wire};

/// Timeout of a wait; nothing that works takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Returns an empty home for the program under test.
#[track_caller]
pub(crate) fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// Sends a control request that must succeed, and returns its result.
#[track_caller]
pub(crate) fn ask(home: &Home, method: &str, params: Value) -> Value {
    home.call(method, params).unwrap_or_else(|error| panic!("`{method}` failed: {error:#}"))
}

/// Sends a control request that must fail, and returns its error.
#[track_caller]
pub(crate) fn refused(home: &Home, method: &str, params: Value) -> Value {
    match home.call(method, params) {
        Ok(answer) => panic!("`{method}` was not refused: {answer:#}"),
        Err(error) => error,
    }
}

/// Returns the full status of a server.
#[track_caller]
pub(crate) fn status(home: &Home, name: &str) -> Value {
    ask(home, "status", json!({ "name": name }))
}

/// Waits until a server runs, and returns its process id.
#[track_caller]
pub(crate) fn running(home: &Home, name: &str) -> u32 {
    pid_in(&home.wait_for_state(name, "running"))
}

/// Waits until a server runs after this many restarts, and returns its status.
#[track_caller]
pub(crate) fn running_after(home: &Home, name: &str, restarts: u32) -> Value {
    home.wait_until(&format!("`{name}` runs after {restarts} restarts"), || {
        let status = status(home, name);
        (status["state"] == "running" && status["restart_count"] == restarts).then_some(status)
    })
}

/// Returns the process id in a status.
#[track_caller]
pub(crate) fn pid_in(status: &Value) -> u32 {
    let pid = status["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {status:#}"));
    pid.try_into().expect("a pid is small")
}

/// Waits until a server has logged `text` as a line.
#[track_caller]
pub(crate) fn wait_for_line(home: &Home, name: &str, text: &str) {
    home.wait_until(&format!("`{name}` logs `{text}`"), || {
        texts(&tail(home, name, 1000)).contains(&text)
    });
}

/// Sends a signal to a process, which must exist.
#[track_caller]
pub(crate) fn signal(pid: u32, signal: Signal) {
    assert!(signal_if_alive(pid, signal), "no {signal:?} to {pid}: it is gone");
}

/// Sends a signal to a process, and returns true if the process existed.
#[track_caller]
pub(crate) fn signal_if_alive(pid: u32, signal: Signal) -> bool {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    match rustix::process::kill_process(known, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(cause) => panic!("no {signal:?} to {pid}: {cause}"),
    }
}

/// One change of state, from `status`.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) to: String,
    pub(crate) reason: String,
    /// Milliseconds since 1970.
    pub(crate) at: u64,
}

/// Returns the changes of state in a status, oldest first.
#[track_caller]
pub(crate) fn changes_in(status: &Value) -> Vec<Change> {
    let changes = status["transitions"].as_array().expect("a status has transitions");
    let change = |it: &Value| Change {
        to: it["to"].as_str().expect("a state").to_owned(),
        reason: it["reason"].as_str().expect("a reason").to_owned(),
        at: unix_millis(&it["at"]),
    };
    changes.iter().map(change).collect()
}

/// Returns the milliseconds from each change to `state` until the next change.
#[track_caller]
pub(crate) fn millis_in(state: &str, status: &Value) -> Vec<u64> {
    let changes = changes_in(status);
    let pairs = changes.windows(2).filter(|pair| pair[0].to == state);
    pairs.map(|pair| pair[1].at.saturating_sub(pair[0].at)).collect()
}

fn unix_millis(moment: &Value) -> u64 {
    let time = humantime::parse_rfc3339(moment.as_str().expect("a moment")).expect("RFC 3339");
    let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH).expect("after 1970");
    since.as_millis().try_into().expect("before the end of time")
}

/// Returns the last lines of a server, as `logs` sends them.
#[track_caller]
pub(crate) fn tail(home: &Home, name: &str, count: u32) -> Vec<Value> {
    shown(&mut home.connect(), json!({ "name": name, "tail": count }))
}

/// Returns all lines that `logs` sends before its end.
#[track_caller]
pub(crate) fn shown(wire: &mut Wire, params: Value) -> Vec<Value> {
    let subscribed = wire.call("logs", params).expect("there is such a server");
    let mut lines = Vec::new();
    loop {
        let mut message = wire.next(SOON);
        assert_eq!(message["params"]["subscription_id"], subscribed["subscription_id"]);
        match message["method"].as_str() {
            Some("log") => lines.push(message["params"].take()),
            Some("log_end") => return lines,
            _ => panic!("neither a line nor the end: {message}"),
        }
    }
}

/// Returns the texts of lines.
pub(crate) fn texts(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["line"].as_str().expect("a line is text")).collect()
}

/// Returns the file of a server that runs until it is stopped.
pub(crate) fn sleeper(home: &Home) -> String {
    home.kdl_command("xy-test-sleep-server", &[])
}

/// Returns the file of a server that ignores SIGTERM and is killed after `grace`.
pub(crate) fn term_ignorer(home: &Home, grace: &str) -> String {
    format!("{}stop {{ grace \"{grace}\" }}\n", home.kdl_command("xy-test-ignore-term", &[]))
}

/// Returns the parent of a process. The parent of a server's leader is its shim.
#[track_caller]
pub(crate) fn parent_of(pid: u32) -> u32 {
    let mut ps = std::process::Command::new("ps");
    let output =
        ps.args(["-o", "ppid=", "-p", &pid.to_string()]).output().expect("`ps` can be run");
    let parent = String::from_utf8(output.stdout).expect("it is text");
    parent.trim().parse().expect("it is there")
}
