//! What the tests of a real daemon have in common: short words for long asks.
#![allow(dead_code, reason = "each test file uses its own part of it")]

#[cfg(target_os = "linux")]
pub(crate) mod disk;

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use xy_testkit::{Home, Wire};

/// A limit of waiting; nothing that works takes so long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An empty home for the program under test.
#[track_caller]
pub(crate) fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// Asks something that must be done.
#[track_caller]
pub(crate) fn ask(home: &Home, method: &str, params: Value) -> Value {
    home.call(method, params).unwrap_or_else(|error| panic!("`{method}` failed: {error:#}"))
}

/// Asks something that must be refused.
#[track_caller]
pub(crate) fn refused(home: &Home, method: &str, params: Value) -> Value {
    match home.call(method, params) {
        Ok(answer) => panic!("`{method}` was not refused: {answer:#}"),
        Err(error) => error,
    }
}

/// One server in full, as it is now.
#[track_caller]
pub(crate) fn status(home: &Home, name: &str) -> Value {
    ask(home, "status", json!({ "name": name }))
}

/// Waits until a server runs, and answers its process.
#[track_caller]
pub(crate) fn running(home: &Home, name: &str) -> u32 {
    pid_in(&home.wait_for_state(name, "running"))
}

/// Waits until a server runs after so many restarts, and answers its status.
#[track_caller]
pub(crate) fn running_after(home: &Home, name: &str, restarts: u32) -> Value {
    home.wait_until(&format!("`{name}` runs after {restarts} restarts"), || {
        let status = status(home, name);
        (status["state"] == "running" && status["restart_count"] == restarts).then_some(status)
    })
}

/// The process that a status tells of.
#[track_caller]
pub(crate) fn pid_in(status: &Value) -> u32 {
    let pid = status["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {status:#}"));
    pid.try_into().expect("a pid is small")
}

/// Waits until a server has written `text` as a line of its own.
#[track_caller]
pub(crate) fn says(home: &Home, name: &str, text: &str) {
    home.wait_until(&format!("`{name}` says `{text}`"), || {
        texts(&tail(home, name, 1000)).contains(&text)
    });
}

/// Sends a signal to a process that is there.
#[track_caller]
pub(crate) fn signal(pid: u32, signal: Signal) {
    assert!(signal_if_alive(pid, signal), "no {signal:?} to {pid}: it is gone");
}

/// Sends a signal to a process, and answers whether it was there.
#[track_caller]
pub(crate) fn signal_if_alive(pid: u32, signal: Signal) -> bool {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    match rustix::process::kill_process(known, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(cause) => panic!("no {signal:?} to {pid}: {cause}"),
    }
}

/// One change of state, as `status` tells it.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) to: String,
    pub(crate) reason: String,
    /// In milliseconds since 1970.
    pub(crate) at: u64,
}

/// The changes of state that a status tells of, oldest first.
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

/// How many milliseconds passed from each change to `state` until the change after it.
#[track_caller]
pub(crate) fn stays_in(state: &str, status: &Value) -> Vec<u64> {
    let changes = changes_in(status);
    let pairs = changes.windows(2).filter(|pair| pair[0].to == state);
    pairs.map(|pair| pair[1].at.saturating_sub(pair[0].at)).collect()
}

fn unix_millis(moment: &Value) -> u64 {
    let time = humantime::parse_rfc3339(moment.as_str().expect("a moment")).expect("RFC 3339");
    let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH).expect("after 1970");
    since.as_millis().try_into().expect("before the end of time")
}

/// The last lines of a server, as `logs` shows them.
#[track_caller]
pub(crate) fn tail(home: &Home, name: &str, count: u32) -> Vec<Value> {
    shown(&mut home.connect(), json!({ "name": name, "tail": count }))
}

/// Everything that `logs` shows before its end.
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

/// The texts of lines.
pub(crate) fn texts(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["line"].as_str().expect("a line is text")).collect()
}

/// A server that lives until it is told to end.
pub(crate) fn sleeper(home: &Home) -> String {
    home.kdl_command("xy-test-sleep-server", &[])
}

/// One that ignores TERM, and has so long until the KILL.
pub(crate) fn deaf(home: &Home, grace: &str) -> String {
    format!("{}stop {{ grace \"{grace}\" }}\n", home.kdl_command("xy-test-ignore-term", &[]))
}

/// The parent of a process: that of a server's leader is its shim.
#[track_caller]
pub(crate) fn parent_of(pid: u32) -> u32 {
    let mut ps = std::process::Command::new("ps");
    let told = ps.args(["-o", "ppid=", "-p", &pid.to_string()]).output().expect("`ps` can be run");
    let parent = String::from_utf8(told.stdout).expect("it is text");
    parent.trim().parse().expect("it is there")
}
