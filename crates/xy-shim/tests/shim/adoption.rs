//! Tests of a shim whose daemon is gone: another attaches, or none does.

use std::io::{Read, Write};
use std::time::Duration;

use xy_shim::identity::Identity;
use xy_shim::wire::{self, Order, OrphanPolicy, Report, Stdout};

use crate::daemon::{Daemon, TIMEOUT, exit_report, is_gone, wait_until};

#[test]
fn server_is_handed_to_the_next_daemon() {
    let mut daemon = Daemon::start_lasting("echo up >&2; exec cat", Stdout::Passed);
    let pid = daemon.wait_started();
    let mut ends = daemon.take_ends();
    ends.stdin.write_all(b"one\n").unwrap();
    assert_eq!(ends.read(4), b"one\n");
    daemon.wait_line("up");
    drop(ends);
    for _ in 0..3 {
        daemon.hang_up();
        let status = daemon.reconnect();
        assert_eq!(status.pid.cast_signed(), pid);
        assert!(!status.torn && !status.stopping && status.exited.is_none());
        assert_eq!(daemon.note, b"first note");
        daemon.wait_line("up"); // Sent again, with the same number.
        assert_eq!(daemon.records[0].seq, 0);
        let mut ends = daemon.received_ends();
        ends.stdin.write_all(b"again\n").unwrap();
        assert_eq!(ends.read(6), b"again\n");
    }
    daemon.stop(TIMEOUT);
    assert_eq!(daemon.wait_exited(), exit_report(Some(0), None, true));
    daemon.finish();
}

#[test]
fn lock_identifies_the_shim_until_it_ends() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    daemon.wait_started();
    let text = std::fs::read(daemon.path("x.lock")).unwrap();
    let identity: Identity = serde_json::from_slice(&text).unwrap();
    assert_eq!(identity.pid.cast_signed(), daemon.shim_pid());
    assert_eq!((identity.life.as_str(), identity.protocol), ("test-life", wire::PROTOCOL));
    assert!(identity.is_alive() && daemon.holds_lock());
    drop(daemon.take_ends());
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    assert!(daemon.holds_lock());
    daemon.finish();
    assert!(!daemon.holds_lock() && !identity.is_alive());
    assert!(!daemon.path("x.sock").exists());
}

#[test]
fn unread_stdout_is_kept_in_order_up_to_a_bound() {
    // More than the shim keeps and a pipe holds together: the server blocks, and nothing is lost.
    let count = 300_000;
    let script = format!("read go; seq {count}; exec cat");
    let mut daemon = Daemon::start_lasting(&script, Stdout::Passed);
    let mut ends = daemon.take_ends();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    daemon.hang_up();
    daemon.reconnect();
    let mut ends = daemon.received_ends();
    let lines: Vec<String> = (1..=count).map(|n| n.to_string()).collect();
    let expected = lines.join("\n") + "\n";
    let rest = ends.read(expected.len() - daemon.unread.len());
    assert!(daemon.unread.len() <= 1024 * 1024 + 64 * 1024);
    let all = [std::mem::take(&mut daemon.unread), rest].concat();
    assert!(all == expected.as_bytes());
    drop(ends);
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn logged_server_can_have_a_stdin_pipe() {
    let mut daemon = Daemon::start_lasting_with("exec cat", Stdout::Logged, |order| {
        order.has_stdin = true;
    });
    for line in ["one", "two"] {
        let mut stdin = if line == "one" { daemon.take_stdin() } else { daemon.received_stdin() };
        writeln!(stdin, "{line}").unwrap();
        drop(stdin);
        daemon.wait_line(line);
        daemon.hang_up();
        assert_eq!(daemon.reconnect().passed, [true, false]);
    }
    drop(daemon.received_stdin());
    daemon.stop(TIMEOUT);
    assert_eq!(daemon.wait_exited(), exit_report(Some(0), None, true));
    daemon.finish();
}

#[test]
fn returned_output_comes_first() {
    let mut daemon = Daemon::start_lasting("read go; echo second; exec cat", Stdout::Passed);
    let mut ends = daemon.take_ends();
    let mut frame = Vec::new();
    wire::put_unread(&mut frame, b"first, ");
    daemon.send(&frame);
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    daemon.reconnect();
    let mut ends = daemon.received_ends();
    let mut all = std::mem::take(&mut daemon.unread);
    all.extend(ends.read(14 - all.len()));
    assert_eq!(all, b"first, second\n");
    drop(ends);
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn last_valid_note_is_kept() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    let mut frames = Vec::new();
    wire::put_note(&mut frames, b"second");
    wire::put_note(&mut frames, &vec![b'x'; wire::MAX_NOTE]);
    wire::put_note(&mut frames, b"last");
    wire::put_note(&mut frames, &vec![b'x'; wire::MAX_NOTE + 1]); // Too long, so ignored.
    daemon.send(&frames);
    daemon.hang_up();
    daemon.reconnect();
    assert_eq!(daemon.note, b"last");
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn exit_and_last_output_are_kept_for_a_daemon() {
    let script = "read go; echo out; echo err >&2; exit 7";
    let mut daemon = Daemon::start_lasting(script, Stdout::Passed);
    let pid = daemon.wait_started();
    let mut ends = daemon.take_ends();
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    wait_until(move || is_gone(pid));
    for _ in 0..3 {
        daemon.hang_up();
        let status = daemon.reconnect();
        let exited = status.exited.unwrap();
        assert_eq!(exited.report, exit_report(Some(7), None, false));
        assert_eq!((status.pid.cast_signed(), status.passed), (pid, [false; 2]));
        daemon.wait_line("err");
        assert_eq!(daemon.unread, b"out\n");
    }
    daemon.finish();
}

#[test]
fn unread_stdout_is_resent_until_used() {
    let mut daemon = Daemon::start_lasting("read go; echo out; exec cat", Stdout::Passed);
    let mut stdin = daemon.take_ends().stdin;
    daemon.hang_up();
    stdin.write_all(b"go\n").unwrap();
    let mut visits = 0;
    while daemon.unread.is_empty() {
        visits += 1;
        assert!(visits < 10_000, "no output arrived");
        daemon.hang_up(); // The shim reads stdout as soon as no daemon is attached.
        daemon.reconnect();
    }
    for _ in 0..3 {
        assert_eq!(daemon.unread, b"out\n");
        daemon.hang_up();
        daemon.reconnect();
    }
    daemon.send_unparsed(b"out\n");
    daemon.hang_up();
    daemon.reconnect();
    assert_eq!(daemon.unread, b"");
    daemon.wait_line("out");
    drop(stdin);
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn early_disconnect_loses_no_output() {
    let mut daemon = Daemon::start_lasting("echo out; exit 0", Stdout::Passed);
    daemon.wait_exited(); // The pipe has not been read.
    daemon.hang_up();
    assert!(daemon.reconnect().exited.is_some());
    assert_eq!(daemon.unread, b"out\n");
    daemon.finish();
}

#[test]
fn disconnect_during_a_write_is_reported() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    daemon.order(&Order::WriteBegins);
    daemon.order(&Order::WriteEnds);
    daemon.hang_up();
    assert!(!daemon.reconnect().torn, "all of it was written");
    daemon.order(&Order::WriteBegins);
    daemon.hang_up();
    assert!(daemon.reconnect().torn);
    daemon.hang_up();
    assert!(daemon.reconnect().torn, "it stays torn");
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn orphaned_server_and_shim_end() {
    for stdout in [Stdout::Passed, Stdout::Logged] {
        let script = "trap '' TERM; sleep 60 & echo out; echo up >&2; exec cat";
        let mut daemon = Daemon::start_lasting_with(script, stdout, |order| {
            order.gone = OrphanPolicy { orphan_ms: 50, grace_ms: 50 };
        });
        let pid = daemon.wait_started();
        daemon.wait_line("up");
        daemon.hang_up();
        assert!(daemon.wait_shim().success());
        assert!(is_gone(pid) && !daemon.holds_lock() && !daemon.path("x.sock").exists());
        let log = daemon.log();
        assert!(log.contains("[out] out\n") && log.contains("[err] up\n"), "{log}");
    }
}

#[test]
fn exited_orphan_does_not_wait_for_ever() {
    let mut daemon = Daemon::start_lasting_with("read go; exit 3", Stdout::Passed, |order| {
        order.gone.orphan_ms = 300;
    });
    let mut ends = daemon.take_ends();
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    assert!(daemon.wait_shim().success());
}

#[test]
fn changed_orphan_policy_applies() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    daemon.order(&Order::Rules(OrphanPolicy { orphan_ms: 50, grace_ms: 500 }));
    daemon.hang_up();
    assert!(daemon.wait_shim().success());
}

#[test]
fn stop_continues_without_the_daemon() {
    let script = "trap 'read go <&3; exit 5' TERM; mkfifo go; exec 3<>go; echo up >&2; \
                  while :; do sleep 0.01; done";
    let mut daemon = Daemon::start_lasting(script, Stdout::Logged);
    daemon.wait_line("up");
    daemon.stop(TIMEOUT);
    daemon.hang_up();
    let status = daemon.reconnect();
    assert!(status.stopping && status.exited.is_none());
    std::fs::write(daemon.path("go"), "go\n").unwrap();
    assert_eq!(daemon.wait_exited(), exit_report(Some(5), None, true));
    daemon.hang_up();
    assert_eq!(daemon.reconnect().exited.unwrap().report, exit_report(Some(5), None, true));
    daemon.finish();
}

#[test]
fn shim_ends_after_a_final_stop() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    daemon.order(&Order::Stop { grace_ms: 500, for_good: true });
    daemon.hang_up();
    assert!(daemon.wait_shim().success());
}

#[test]
fn unintroduced_client_is_ignored() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    daemon.hang_up();
    let mut stop = Vec::new();
    wire::put_note(&mut stop, b"forged");
    wire::put_order(&mut stop, &Order::Stop { grace_ms: 0, for_good: true }).unwrap();
    wire::put_order(&mut stop, &Order::Hello { protocol: wire::PROTOCOL }).unwrap();
    for input in [&stop[..], b"GET / HTTP/1.1\r\n\r\n", &u32::MAX.to_le_bytes(), b""] {
        let mut stranger = daemon.connect();
        stranger.write_all(input).unwrap();
        if !input.is_empty() {
            let mut received = Vec::new();
            let _ = stranger.read_to_end(&mut received); // A reset ends the connection as well.
            assert!(received.is_empty(), "{input:?}");
        }
        // The last client stays and sends nothing: it is dropped after a short time.
        std::mem::forget(stranger);
    }
    let status = daemon.reconnect();
    assert!(!status.stopping);
    assert_eq!(daemon.note, b"first note");
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn other_version_is_refused_and_the_server_lives_on() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    daemon.hang_up();
    let mut stranger = daemon.connect();
    let mut hello = Vec::new();
    wire::put_order(&mut hello, &Order::Hello { protocol: 99 }).unwrap();
    stranger.write_all(&hello).unwrap();
    let mut received = Vec::new();
    stranger.read_to_end(&mut received).unwrap();
    let (frame, _) = wire::parse(&received).unwrap().unwrap();
    assert_eq!(frame, wire::Frame::Report(Report::Refused { protocol: wire::PROTOCOL }));
    assert!(daemon.reconnect().exited.is_none());
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[test]
fn second_daemon_waits_for_the_first_to_leave() {
    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    drop(daemon.take_ends());
    let mut second = daemon.connect();
    let mut hello = Vec::new();
    wire::put_order(&mut hello, &Order::Hello { protocol: wire::PROTOCOL }).unwrap();
    second.write_all(&hello).unwrap();
    second.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(second.read(&mut [0]).is_err(), "the shim has sent it nothing yet");
    daemon.hang_up();
    second.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 1);
    drop(second);
    daemon.reconnect();
    daemon.stop(TIMEOUT);
    daemon.wait_exited();
    daemon.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn killed_orphan_shim_leaves_no_server_and_no_lock() {
    use rustix::process::{Pid, Signal, kill_process};

    let mut daemon = Daemon::start_lasting("exec cat", Stdout::Passed);
    let pid = daemon.wait_started();
    daemon.hang_up();
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::KILL).unwrap();
    daemon.wait_shim();
    wait_until(move || is_gone(pid));
    assert!(!daemon.holds_lock());
}

#[test]
fn without_a_socket_the_server_ends_with_its_daemon() {
    let mut daemon = Daemon::start_lasting_with("exec cat", Stdout::Passed, |order| {
        order.socket = Some("/nowhere/x.sock".to_owned());
    });
    let pid = daemon.wait_started();
    daemon.hang_up();
    assert!(daemon.wait_shim().success());
    assert!(is_gone(pid));
}
