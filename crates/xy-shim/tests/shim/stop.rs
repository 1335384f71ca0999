//! How servers end, asked and unasked.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use xy_shim::wire::Stdout;

use crate::daemon::{Daemon, ended, is_gone, within_the_limit};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// Hears nothing but a KILL; its child is in its group.
const STUBBORN: &str = "trap '' TERM HUP; echo ready >&2; while :; do sleep 60; done";

#[test]
fn a_server_that_ends_with_its_stdin_needs_no_signal() {
    let script = "trap 'exit 15' TERM; cat >/dev/null; echo closed >&2; exit 3";
    let mut daemon = Daemon::running(script, Stdout::Passed);
    drop(daemon.ends()); // The daemon's copy goes with the order.
    daemon.stop(LONG);
    assert_eq!(daemon.exited(), ended(Some(3), None, true));
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
    assert_eq!(daemon.exited(), ended(Some(15), None, true));
    daemon.finish();
}

#[test]
fn a_server_that_ignores_everything_is_killed_at_the_end_of_the_grace() {
    for stdout in [Stdout::Passed, Stdout::Logged] {
        let mut daemon = Daemon::running(STUBBORN, stdout);
        let pid = daemon.started();
        daemon.line("ready");
        daemon.stop(SHORT);
        assert_eq!(daemon.exited(), ended(None, Some(9), true));
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
    assert_eq!(daemon.exited(), ended(None, Some(15), true));
    daemon.finish();
}

#[test]
fn a_stop_that_comes_with_the_start_is_heard() {
    let mut daemon = Daemon::new();
    let mut orders = Vec::new();
    let start = Box::new(daemon.script(STUBBORN, Stdout::Logged));
    xy_shim::wire::put_order(&mut orders, &xy_shim::wire::Order::Start(start)).unwrap();
    xy_shim::wire::put_order(
        &mut orders,
        &xy_shim::wire::Order::Stop { grace_ms: 0, for_good: false },
    )
    .unwrap();
    daemon.send(&orders);
    assert!(daemon.exited().asked);
    daemon.finish();
}

#[test]
fn the_whole_group_dies_with_its_leader() {
    let mut daemon = Daemon::running("sleep 60 & echo started; exit 4", Stdout::Passed);
    let mut ends = daemon.ends();
    assert_eq!(daemon.exited(), ended(Some(4), None, false));
    // The end of stdout: nobody is left who could write to it.
    assert_eq!(ends.read(100), b"started\n");
    daemon.finish();
}

/// Starts one process in a way of its own; each waits until it is out before it goes on.
/// `$escaped` is what the escaped one does.
#[cfg(target_os = "linux")]
const ESCAPES: [(&str, &str); 4] = [
    ("same group", "sh -c \"$escaped\" &"),
    ("own session", "setsid sh -c \"$escaped\" &"),
    ("double fork", "(setsid sh -c \"$escaped\" &);"),
    ("double fork, own session twice", "(setsid sh -c 'setsid sh -c \"$escaped\" &' &);"),
];

/// Hears no TERM, notes its number, waits for ever; no pipe of the server is held open.
#[cfg(target_os = "linux")]
const ESCAPED: &str = "trap '' TERM HUP; exec >/dev/null 2>&1; echo $$ >pid; mv pid out; \
                       while :; do sleep 1; done";

#[cfg(target_os = "linux")]
fn escaping(how: &str, then: &str) -> String {
    format!(
        "trap 'exit 0' TERM; escaped='cd '$PWD'; {ESCAPED}'; export escaped; {how} \
         while ! [ -e out ]; do sleep 0.01; done; echo ready >&2; {then}"
    )
}

#[cfg(target_os = "linux")]
fn escaped_pid(daemon: &Daemon) -> i32 {
    std::fs::read_to_string(daemon.path("out")).unwrap().trim().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_escaped_dies_with_a_leader_that_dies_unasked() {
    for (name, how) in ESCAPES {
        let mut daemon = Daemon::running(&escaping(how, "exit 7"), Stdout::Logged);
        assert_eq!(daemon.exited(), ended(Some(7), None, false), "{name}");
        assert!(is_gone(escaped_pid(&daemon)), "{name}");
        daemon.finish();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_stop_is_over_when_whoever_escaped_is_gone_not_when_the_leader_is() {
    for (name, how) in ESCAPES {
        let obedient = "while :; do sleep 60 & wait; done";
        let mut daemon = Daemon::running(&escaping(how, obedient), Stdout::Logged);
        daemon.line("ready");
        daemon.stop(SHORT);
        assert_eq!(daemon.exited(), ended(Some(0), None, true), "{name}");
        assert!(is_gone(escaped_pid(&daemon)), "{name}");
        daemon.finish();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_forks_for_ever_does_not_get_away() {
    // Each lives for a moment and leaves one child, in a session of its own.
    let hop = "hop() { setsid sh -c \"$hopping\" & }; hop; exit 0";
    let script = format!(
        "hopping='{hop}'; export hopping; {hop_once} echo ready >&2; sleep 60",
        hop_once = "setsid sh -c \"$hopping\" &"
    );
    let mut daemon = Daemon::running(&script, Stdout::Logged);
    daemon.line("ready");
    daemon.stop(SHORT);
    let report = daemon.exited();
    assert!(report.survivors.is_empty(), "{report:?}");
    daemon.finish();
}

#[test]
fn a_process_that_escaped_and_holds_stderr_delays_nothing() {
    let script = "mkfifo out; setsid sh -c 'echo >out; sleep 60' & read is_out <out; exit 0";
    let mut daemon = Daemon::running(script, Stdout::Logged);
    assert_eq!(daemon.exited(), ended(Some(0), None, false));
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
    assert_eq!(daemon.exited(), ended(None, Some(15), true));
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
