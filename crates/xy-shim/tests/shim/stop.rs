//! Tests of how servers end, by request or by themselves.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use xy_shim::wire::Stdout;

use crate::daemon::{Daemon, exit_report, is_gone, with_timeout};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// Ignores every signal but KILL; its child is in its group.
const STUBBORN: &str = "trap '' TERM HUP; echo ready >&2; while :; do sleep 60; done";

#[test]
fn server_that_exits_on_eof_gets_no_signal() {
    let script = "trap 'exit 15' TERM; cat >/dev/null; echo closed >&2; exit 3";
    let mut daemon = Daemon::start_script(script, Stdout::Passed);
    drop(daemon.take_ends()); // The shim closes its own copy for the stop.
    daemon.stop(LONG);
    assert_eq!(daemon.wait_exited(), exit_report(Some(3), None, true));
    daemon.finish();
    assert_eq!(daemon.log(), "[err] closed\n");
}

#[test]
fn server_that_ignores_eof_is_terminated() {
    let script = "trap 'exit 15' TERM; echo ready >&2; while :; do sleep 60 & wait; done";
    let mut daemon = Daemon::start_script(script, Stdout::Passed);
    drop(daemon.take_ends());
    daemon.wait_line("ready");
    daemon.stop(Duration::from_secs(5));
    assert_eq!(daemon.wait_exited(), exit_report(Some(15), None, true));
    daemon.finish();
}

#[test]
fn server_that_ignores_everything_is_killed() {
    for stdout in [Stdout::Passed, Stdout::Logged] {
        let mut daemon = Daemon::start_script(STUBBORN, stdout);
        let pid = daemon.wait_started();
        daemon.wait_line("ready");
        daemon.stop(SHORT);
        assert_eq!(daemon.wait_exited(), exit_report(None, Some(9), true));
        assert!(is_gone(pid));
        daemon.finish();
    }
}

#[test]
fn second_stop_shortens_the_grace() {
    let mut daemon = Daemon::start_script(STUBBORN, Stdout::Logged);
    daemon.wait_line("ready");
    daemon.stop(LONG);
    daemon.stop(SHORT);
    assert_eq!(daemon.wait_exited().signal, Some(9));
    daemon.finish();
}

#[test]
fn suspended_server_receives_the_term() {
    let mut daemon = Daemon::start_script("echo ready; kill -STOP $$", Stdout::Logged);
    daemon.wait_line("ready");
    daemon.stop(LONG);
    assert_eq!(daemon.wait_exited(), exit_report(None, Some(15), true));
    daemon.finish();
}

#[test]
fn stop_sent_with_the_start_is_obeyed() {
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
    assert!(daemon.wait_exited().asked);
    daemon.finish();
}

#[test]
fn process_group_dies_with_its_leader() {
    let mut daemon = Daemon::start_script("sleep 60 & echo started; exit 4", Stdout::Passed);
    let mut ends = daemon.take_ends();
    assert_eq!(daemon.wait_exited(), exit_report(Some(4), None, false));
    // EOF of stdout: no process is left that could write to it.
    assert_eq!(ends.read(100), b"started\n");
    daemon.finish();
}

/// Ways for a process to escape; each waits until it is out before it goes on. `$escaped` is the
/// script of the escaped process.
#[cfg(target_os = "linux")]
const ESCAPES: [(&str, &str); 4] = [
    ("same group", "sh -c \"$escaped\" &"),
    ("own session", "setsid sh -c \"$escaped\" &"),
    ("double fork", "(setsid sh -c \"$escaped\" &);"),
    ("double fork, own session twice", "(setsid sh -c 'setsid sh -c \"$escaped\" &' &);"),
];

/// Ignores TERM, writes its process ID to a file and waits for ever; holds no pipe of the server.
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
fn escaped_process_dies_with_the_leader() {
    for (name, how) in ESCAPES {
        let mut daemon = Daemon::start_script(&escaping(how, "exit 7"), Stdout::Logged);
        assert_eq!(daemon.wait_exited(), exit_report(Some(7), None, false), "{name}");
        assert!(is_gone(escaped_pid(&daemon)), "{name}");
        daemon.finish();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn stop_waits_for_escaped_processes() {
    for (name, how) in ESCAPES {
        let obedient = "while :; do sleep 60 & wait; done";
        let mut daemon = Daemon::start_script(&escaping(how, obedient), Stdout::Logged);
        daemon.wait_line("ready");
        daemon.stop(SHORT);
        assert_eq!(daemon.wait_exited(), exit_report(Some(0), None, true), "{name}");
        assert!(is_gone(escaped_pid(&daemon)), "{name}");
        daemon.finish();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn endlessly_forking_process_is_killed() {
    // Each process lives for a moment and leaves one child, in a session of its own.
    let hop = "hop() { setsid sh -c \"$hopping\" & }; hop; exit 0";
    let script = format!(
        "hopping='{hop}'; export hopping; {hop_once} echo ready >&2; sleep 60",
        hop_once = "setsid sh -c \"$hopping\" &"
    );
    let mut daemon = Daemon::start_script(&script, Stdout::Logged);
    daemon.wait_line("ready");
    daemon.stop(SHORT);
    let report = daemon.wait_exited();
    assert!(report.survivors.is_empty(), "{report:?}");
    daemon.finish();
}

#[test]
fn escaped_process_with_stderr_delays_nothing() {
    let script = "mkfifo out; setsid sh -c 'echo >out; sleep 60' & read is_out <out; exit 0";
    let mut daemon = Daemon::start_script(script, Stdout::Logged);
    assert_eq!(daemon.wait_exited(), exit_report(Some(0), None, false));
    daemon.finish();
}

#[test]
fn disconnect_ends_server_and_shim() {
    for script in ["exec cat", STUBBORN] {
        let mut daemon = Daemon::start_script(script, Stdout::Passed);
        let pid = daemon.wait_started();
        drop(daemon.take_ends());
        daemon.hang_up();
        assert!(daemon.wait_shim().success());
        assert!(is_gone(pid));
    }
}

#[test]
fn invalid_frame_ends_server_and_shim() {
    let mut daemon = Daemon::start_script("echo ready; sleep 60", Stdout::Logged);
    let pid = daemon.wait_started();
    daemon.wait_line("ready");
    daemon.send(&[0xff; 100]);
    assert!(daemon.wait_shim().success());
    assert!(is_gone(pid));
    assert_eq!(daemon.log(), "[out] ready\n");
}

#[test]
fn terminated_shim_stops_its_server_first() {
    let mut daemon = Daemon::start_script("echo ready; sleep 60", Stdout::Logged);
    daemon.wait_line("ready");
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(daemon.wait_exited(), exit_report(None, Some(15), true));
    daemon.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn killed_shim_takes_its_server_with_it() {
    let mut daemon = Daemon::start_script("exec cat", Stdout::Passed);
    let mut ends = daemon.take_ends();
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(ends.read(1), b"");
    daemon.wait_shim();
}

#[test]
fn adopted_children_are_reaped() {
    // Each `sleep` outlives its parent and is adopted by the shim.
    let script = "for i in 1 2 3; do (sleep 0 & echo $! >&2); done; exec cat";
    let mut daemon = Daemon::start_script(script, Stdout::Passed);
    let ends = daemon.take_ends();
    daemon.wait_lines(3);
    let pids: Vec<i32> = daemon
        .records
        .iter()
        .map(|record| String::from_utf8_lossy(&record.bytes).parse().unwrap())
        .collect();
    with_timeout(move || {
        while !pids.iter().all(|pid| is_gone(*pid)) {
            std::thread::yield_now();
        }
    });
    drop(ends);
    daemon.stop(LONG);
    daemon.wait_exited();
    daemon.finish();
}
