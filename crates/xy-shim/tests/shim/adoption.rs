//! The daemon is gone; another comes, or none does.

use std::io::{Read, Write};
use std::time::Duration;

use xy_shim::identity::Identity;
use xy_shim::wire::{self, GoneRules, Order, Report, Stdout};

use crate::daemon::{Daemon, LIMIT, ended, is_gone, wait_until};

#[test]
fn a_server_lives_on_and_is_handed_to_the_next_daemon() {
    let mut daemon = Daemon::lasting("echo up >&2; exec cat", Stdout::Passed);
    let pid = daemon.started();
    let mut ends = daemon.ends();
    ends.stdin.write_all(b"one\n").unwrap();
    assert_eq!(ends.read(4), b"one\n");
    daemon.line("up");
    drop(ends);
    for _ in 0..3 {
        daemon.hang_up();
        let status = daemon.come_back();
        assert_eq!(status.pid.cast_signed(), pid);
        assert!(!status.torn && !status.stopping && status.exited.is_none());
        assert_eq!(daemon.note, b"first note");
        daemon.line("up"); // Once more, with the same number.
        assert_eq!(daemon.records[0].seq, 0);
        let mut ends = daemon.ends_that_came();
        ends.stdin.write_all(b"again\n").unwrap();
        assert_eq!(ends.read(6), b"again\n");
    }
    daemon.stop(LIMIT);
    assert_eq!(daemon.exited(), ended(Some(0), None, true));
    daemon.finish();
}

#[test]
fn the_lock_says_who_holds_it_until_all_is_over() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    daemon.started();
    let text = std::fs::read(daemon.path("x.lock")).unwrap();
    let identity: Identity = serde_json::from_slice(&text).unwrap();
    assert_eq!(identity.pid.cast_signed(), daemon.shim_pid());
    assert_eq!((identity.life.as_str(), identity.protocol), ("test-life", wire::PROTOCOL));
    assert!(identity.is_alive() && daemon.holds_lock());
    drop(daemon.ends());
    daemon.stop(LIMIT);
    daemon.exited();
    assert!(daemon.holds_lock());
    daemon.finish();
    assert!(!daemon.holds_lock() && !identity.is_alive());
    assert!(!daemon.path("x.sock").exists());
}

#[test]
fn what_stdout_says_meanwhile_is_kept_in_order_up_to_a_bound() {
    // More than is kept and a pipe holds together: the server waits, and nothing is lost.
    let count = 300_000;
    let script = format!("read go; seq {count}; exec cat");
    let mut daemon = Daemon::lasting(&script, Stdout::Passed);
    let mut ends = daemon.ends();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    daemon.hang_up();
    daemon.come_back();
    let mut ends = daemon.ends_that_came();
    let lines: Vec<String> = (1..=count).map(|n| n.to_string()).collect();
    let expected = lines.join("\n") + "\n";
    let rest = ends.read(expected.len() - daemon.unread.len());
    assert!(daemon.unread.len() <= 1024 * 1024 + 64 * 1024);
    let all = [std::mem::take(&mut daemon.unread), rest].concat();
    assert!(all == expected.as_bytes());
    drop(ends);
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn a_server_whose_stdout_is_logged_can_have_a_stdin_that_stays_open() {
    let mut daemon = Daemon::lasting_with("exec cat", Stdout::Logged, |order| {
        order.has_stdin = true;
    });
    for line in ["one", "two"] {
        let mut stdin = if line == "one" { daemon.stdin() } else { daemon.stdin_that_came() };
        writeln!(stdin, "{line}").unwrap();
        drop(stdin);
        daemon.line(line);
        daemon.hang_up();
        assert_eq!(daemon.come_back().passed, [true, false]);
    }
    drop(daemon.stdin_that_came());
    daemon.stop(LIMIT);
    assert_eq!(daemon.exited(), ended(Some(0), None, true));
    daemon.finish();
}

#[test]
fn what_a_daemon_gives_back_comes_first() {
    let mut daemon = Daemon::lasting("read go; echo second; exec cat", Stdout::Passed);
    let mut ends = daemon.ends();
    let mut frame = Vec::new();
    wire::put_unread(&mut frame, b"first, ");
    daemon.send(&frame);
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    daemon.come_back();
    let mut ends = daemon.ends_that_came();
    let mut all = std::mem::take(&mut daemon.unread);
    all.extend(ends.read(14 - all.len()));
    assert_eq!(all, b"first, second\n");
    drop(ends);
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn the_last_note_is_the_one_that_is_kept() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    let mut frames = Vec::new();
    wire::put_note(&mut frames, b"second");
    wire::put_note(&mut frames, &vec![b'x'; wire::MAX_NOTE]);
    wire::put_note(&mut frames, b"last");
    wire::put_note(&mut frames, &vec![b'x'; wire::MAX_NOTE + 1]); // Too long to be kept.
    daemon.send(&frames);
    daemon.hang_up();
    daemon.come_back();
    assert_eq!(daemon.note, b"last");
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn how_a_server_ended_and_its_last_words_are_kept_until_somebody_asks() {
    let script = "read go; echo out; echo err >&2; exit 7";
    let mut daemon = Daemon::lasting(script, Stdout::Passed);
    let pid = daemon.started();
    let mut ends = daemon.ends();
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    wait_until(move || is_gone(pid));
    for _ in 0..3 {
        daemon.hang_up();
        let status = daemon.come_back();
        let exited = status.exited.unwrap();
        assert_eq!(exited.report, ended(Some(7), None, false));
        assert_eq!((status.pid.cast_signed(), status.passed), (pid, [false; 2]));
        daemon.line("err");
        assert_eq!(daemon.unread, b"out\n");
    }
    daemon.finish();
}

#[test]
fn what_stdout_said_is_said_again_until_a_daemon_has_answered() {
    let mut daemon = Daemon::lasting("read go; echo out; exec cat", Stdout::Passed);
    let mut stdin = daemon.ends().stdin;
    daemon.hang_up();
    stdin.write_all(b"go\n").unwrap();
    let mut visits = 0;
    while daemon.unread.is_empty() {
        visits += 1;
        assert!(visits < 10_000, "it said nothing");
        daemon.hang_up(); // It is read as soon as nobody is there.
        daemon.come_back();
    }
    for _ in 0..3 {
        assert_eq!(daemon.unread, b"out\n");
        daemon.hang_up();
        daemon.come_back();
    }
    daemon.stray(b"out\n");
    daemon.hang_up();
    daemon.come_back();
    assert_eq!(daemon.unread, b"");
    daemon.line("out");
    drop(stdin);
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn a_daemon_that_leaves_before_it_has_read_the_rest_loses_nothing() {
    let mut daemon = Daemon::lasting("echo out; exit 0", Stdout::Passed);
    daemon.exited(); // The pipe has not been read.
    daemon.hang_up();
    assert!(daemon.come_back().exited.is_some());
    assert_eq!(daemon.unread, b"out\n");
    daemon.finish();
}

#[test]
fn a_daemon_that_leaves_in_the_middle_of_a_message_leaves_a_mark() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    daemon.order(&Order::WriteBegins);
    daemon.order(&Order::WriteEnds);
    daemon.hang_up();
    assert!(!daemon.come_back().torn, "all of it was written");
    daemon.order(&Order::WriteBegins);
    daemon.hang_up();
    assert!(daemon.come_back().torn);
    daemon.hang_up();
    assert!(daemon.come_back().torn, "it stays so");
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn without_another_daemon_everything_ends_by_itself() {
    for stdout in [Stdout::Passed, Stdout::Logged] {
        let script = "trap '' TERM; sleep 60 & echo out; echo up >&2; exec cat";
        let mut daemon = Daemon::lasting_with(script, stdout, |order| {
            order.gone = GoneRules { orphan_ms: 50, grace_ms: 50 };
        });
        let pid = daemon.started();
        daemon.line("up");
        daemon.hang_up();
        assert!(daemon.shim_ends().success());
        assert!(is_gone(pid) && !daemon.holds_lock() && !daemon.path("x.sock").exists());
        let log = daemon.log();
        assert!(log.contains("[out] out\n") && log.contains("[err] up\n"), "{log}");
    }
}

#[test]
fn what_ended_while_nobody_was_there_does_not_wait_for_ever() {
    let mut daemon = Daemon::lasting_with("read go; exit 3", Stdout::Passed, |order| {
        order.gone.orphan_ms = 300;
    });
    let mut ends = daemon.ends();
    daemon.hang_up();
    ends.stdin.write_all(b"go\n").unwrap();
    drop(ends);
    assert!(daemon.shim_ends().success());
}

#[test]
fn rules_apply_to_the_living() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    daemon.order(&Order::Rules(GoneRules { orphan_ms: 50, grace_ms: 500 }));
    daemon.hang_up();
    assert!(daemon.shim_ends().success());
}

#[test]
fn a_stop_goes_on_without_the_daemon_and_is_reported_to_the_next() {
    let script = "trap 'read go <&3; exit 5' TERM; mkfifo go; exec 3<>go; echo up >&2; \
                  while :; do sleep 0.01; done";
    let mut daemon = Daemon::lasting(script, Stdout::Logged);
    daemon.line("up");
    daemon.stop(LIMIT);
    daemon.hang_up();
    let status = daemon.come_back();
    assert!(status.stopping && status.exited.is_none());
    std::fs::write(daemon.path("go"), "go\n").unwrap();
    assert_eq!(daemon.exited(), ended(Some(5), None, true));
    daemon.hang_up();
    assert_eq!(daemon.come_back().exited.unwrap().report, ended(Some(5), None, true));
    daemon.finish();
}

#[test]
fn after_a_stop_for_good_nobody_is_waited_for() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    daemon.order(&Order::Stop { grace_ms: 500, for_good: true });
    daemon.hang_up();
    assert!(daemon.shim_ends().success());
}

#[test]
fn a_stranger_is_not_obeyed_and_does_not_keep_the_daemon_out() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    daemon.hang_up();
    let mut stop = Vec::new();
    wire::put_note(&mut stop, b"forged");
    wire::put_order(&mut stop, &Order::Stop { grace_ms: 0, for_good: true }).unwrap();
    wire::put_order(&mut stop, &Order::Hello { protocol: wire::PROTOCOL }).unwrap();
    for words in [&stop[..], b"GET / HTTP/1.1\r\n\r\n", &u32::MAX.to_le_bytes(), b""] {
        let mut stranger = daemon.stranger();
        stranger.write_all(words).unwrap();
        if !words.is_empty() {
            let mut said = Vec::new();
            let _ = stranger.read_to_end(&mut said); // A reset is as good an end.
            assert!(said.is_empty(), "{words:?}");
        }
        // The last one says nothing at all, and stays: it has a little time only.
        std::mem::forget(stranger);
    }
    let status = daemon.come_back();
    assert!(!status.stopping);
    assert_eq!(daemon.note, b"first note");
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn another_version_is_told_so_and_the_server_lives_on() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    daemon.hang_up();
    let mut stranger = daemon.stranger();
    let mut hello = Vec::new();
    wire::put_order(&mut hello, &Order::Hello { protocol: 99 }).unwrap();
    stranger.write_all(&hello).unwrap();
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap();
    let (frame, _) = wire::parse(&said).unwrap().unwrap();
    assert_eq!(frame, wire::Frame::Report(Report::Refused { protocol: wire::PROTOCOL }));
    assert!(daemon.come_back().exited.is_none());
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[test]
fn a_second_daemon_waits_until_the_first_has_left() {
    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    drop(daemon.ends());
    let mut second = daemon.stranger();
    let mut hello = Vec::new();
    wire::put_order(&mut hello, &Order::Hello { protocol: wire::PROTOCOL }).unwrap();
    second.write_all(&hello).unwrap();
    second.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(second.read(&mut [0]).is_err(), "nothing is said to it yet");
    daemon.hang_up();
    second.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 1);
    drop(second);
    daemon.come_back();
    daemon.stop(LIMIT);
    daemon.exited();
    daemon.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn a_shim_that_is_killed_while_nobody_is_there_leaves_no_server_and_no_lock() {
    use rustix::process::{Pid, Signal, kill_process};

    let mut daemon = Daemon::lasting("exec cat", Stdout::Passed);
    let pid = daemon.started();
    daemon.hang_up();
    kill_process(Pid::from_raw(daemon.shim_pid()).unwrap(), Signal::KILL).unwrap();
    daemon.shim_ends();
    wait_until(move || is_gone(pid));
    assert!(!daemon.holds_lock());
}

#[test]
fn where_no_socket_can_be_made_the_server_ends_with_its_daemon() {
    let mut daemon = Daemon::lasting_with("exec cat", Stdout::Passed, |order| {
        order.socket = Some("/nowhere/x.sock".to_owned());
    });
    let pid = daemon.started();
    daemon.hang_up();
    assert!(daemon.shim_ends().success());
    assert!(is_gone(pid));
}
