//! How servers end, asked and unasked.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use xy_shim::wire::{ExitReport, Stdout};

use crate::daemon::{Daemon, within_the_limit};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// Hears nothing but a KILL; its child is in its group.
const STUBBORN: &str = "trap '' TERM HUP; echo ready >&2; while :; do sleep 60; done";

fn is_gone(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_err()
}

#[test]
fn a_server_that_ends_with_its_stdin_needs_no_signal() {
    let script = "trap 'exit 15' TERM; cat >/dev/null; echo closed >&2; exit 3";
    let mut daemon = Daemon::running(script, Stdout::Passed);
    drop(daemon.ends()); // The daemon's copy goes with the order.
    daemon.stop(LONG);
    assert_eq!(daemon.exited(), ExitReport { code: Some(3), signal: None, asked: true });
    daemon.finish();
    assert_eq!(daemon.log(), "[err] closed\n");
}

#[test]
fn a_server_that_ignores_its_stdin_is_terminated() {
    let script = "trap 'exit 15' TERM; echo ready >&2; while :; do sleep 60 & wait; done";
    let mut daemon = Daemon::running(script, Stdout::Passed);
    drop(daemon.ends());
    daemon.line("ready");
    daemon.stop(Duration::from_secs(5));
    assert_eq!(daemon.exited(), ExitReport { code: Some(15), signal: None, asked: true });
    daemon.finish();
}

#[test]
fn a_server_that_ignores_everything_is_killed_at_the_end_of_the_grace() {
    for stdout in [Stdout::Passed, Stdout::Logged] {
        let mut daemon = Daemon::running(STUBBORN, stdout);
        let pid = daemon.started();
        daemon.line("ready");
        daemon.stop(SHORT);
        assert_eq!(daemon.exited(), ExitReport { code: None, signal: Some(9), asked: true });
        assert!(is_gone(pid));
        daemon.finish();
    }
}

#[test]
fn a_second_stop_shortens_the_grace() {
    let mut daemon = Daemon::running(STUBBORN, Stdout::Logged);
    daemon.line("ready");
    daemon.stop(LONG);
    daemon.stop(SHORT);
    assert_eq!(daemon.exited().signal, Some(9));
    daemon.finish();
}

#[test]
fn a_stopped_server_hears_the_term() {
    let mut daemon = Daemon::running("echo ready; kill -STOP $$", Stdout::Logged);
    daemon.line("ready");
    daemon.stop(LONG);
    assert_eq!(daemon.exited(), ExitReport { code: None, signal: Some(15), asked: true });
    daemon.finish();
}

#[test]
fn a_stop_that_comes_with_the_start_is_heard() {
    let mut daemon = Daemon::new();
    let mut orders = Vec::new();
    let start = Box::new(daemon.script(STUBBORN, Stdout::Logged));
    xy_shim::wire::put_order(&mut orders, &xy_shim::wire::Order::Start(start));
    xy_shim::wire::put_order(&mut orders, &xy_shim::wire::Order::Stop { grace_ms: 0 });
    daemon.send(&orders);
    assert!(daemon.exited().asked);
    daemon.finish();
}

#[test]
fn the_whole_group_dies_with_its_leader() {
    let mut daemon = Daemon::running("sleep 60 & echo started; exit 4", Stdout::Passed);
    let mut ends = daemon.ends();
    assert_eq!(daemon.exited(), ExitReport { code: Some(4), signal: None, asked: false });
    // The end of stdout: nobody is left who could write to it.
    assert_eq!(ends.read(100), b"started\n");
    daemon.finish();
}

#[test]
fn a_process_that_left_the_group_and_holds_stderr_delays_nothing() {
    let script = "mkfifo door out; \
                  setsid sh -c 'echo >out; read go <door; echo still here >&2' & \
                  read is_out <out; exit 0";
    let mut daemon = Daemon::running(script, Stdout::Logged);
    assert_eq!(daemon.exited(), ExitReport { code: Some(0), signal: None, asked: false });
    // It lives on, and what it says is heard as long as the shim is there.
    let door = daemon.path("door");
    within_the_limit(move || std::fs::write(door, "go\n").unwrap());
    daemon.line("still here");
    daemon.finish();
}

#[test]
fn a_daemon_that_hangs_up_ends_server_and_shim() {
    for script in ["exec cat", STUBBORN] {
        let mut daemon = Daemon::running(script, Stdout::Passed);
        let pid = daemon.started();
        drop(daemon.ends());
        daemon.hang_up();
        assert!(daemon.shim_ends().success());
        assert!(is_gone(pid));
    }
}

#[test]
fn a_daemon_that_talks_nonsense_ends_server_and_shim() {
    let mut daemon = Daemon::running("echo ready; sleep 60", Stdout::Logged);
    let pid = daemon.started();
    daemon.line("ready");
    daemon.send(&[0xff; 100]);
    assert!(daemon.shim_ends().success());
    assert!(is_gone(pid));
    assert_eq!(daemon.log(), "[out] ready\n");
}

#[test]
fn a_shim_that_is_terminated_ends_its_server_first() {
    let mut daemon = Daemon::running("echo ready; sleep 60", Stdout::Logged);
    daemon.line("ready");
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(daemon.exited(), ExitReport { code: None, signal: Some(15), asked: true });
    daemon.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn a_shim_that_is_killed_takes_its_server_with_it() {
    let mut daemon = Daemon::running("exec cat", Stdout::Passed);
    let mut ends = daemon.ends();
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(ends.read(1), b"");
    daemon.shim_ends();
}

#[test]
fn the_dead_that_fall_to_the_shim_are_reaped() {
    // Each `sleep` outlives its parent and falls to the shim.
    let script = "for i in 1 2 3; do (sleep 0 & echo $! >&2); done; exec cat";
    let mut daemon = Daemon::running(script, Stdout::Passed);
    let ends = daemon.ends();
    daemon.lines(3);
    let pids: Vec<i32> = daemon
        .records
        .iter()
        .map(|record| String::from_utf8_lossy(&record.bytes).parse().unwrap())
        .collect();
    within_the_limit(move || {
        while !pids.iter().all(|pid| is_gone(*pid)) {
            std::thread::yield_now();
        }
    });
    drop(ends);
    daemon.stop(LONG);
    daemon.exited();
    daemon.finish();
}
