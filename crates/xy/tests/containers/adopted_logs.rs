//! Logs of containers whose daemon is killed: they continue without loss.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, Wire, WireEvent, free_port};

use crate::stage::Engine;
use crate::support::{SOON, ask, home, running, status, tail, texts};

crate::with_each_engine!(
    line_numbers_and_times_survive_killed_daemons,
    follower_ends_with_daemon_and_numbers_continue,
    partial_line_is_completed_by_next_daemon,
    line_numbers_continue_across_restarts_and_daemon_death,
    output_after_unbroken_flood_is_logged,
    random_kills_neither_lose_nor_double_stderr_lines,
    random_kills_neither_lose_nor_double_http_server_lines,
    random_kills_neither_lose_nor_double_http_server_stdout,
);

/// Number of times that the daemon is killed.
const KILLS: u32 = 8;

/// Writes the file of `one`, which ticks at this interval.
fn ticks_every(engine: &Engine, home: &Home, millis: &str, more: &[&str], port: Option<u16>) {
    let command = [&["xy-test-sleep-server", "--every", millis], more].concat();
    let kdl = engine.kdl(home, &command, "");
    // With a port, xy takes it for an HTTP server.
    let port = port.map_or(String::new(), |port| format!("port {port}\n"));
    home.server("one", &format!("{kdl}{port}"));
}

/// Returns the ticks in the log file, in order.
fn ticks(home: &Home) -> Vec<u64> {
    let log = std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
    log.lines().filter_map(|line| line.rsplit_once("tick ")?.1.parse().ok()).collect()
}

#[track_caller]
fn wait_for_ticks(home: &Home, count: usize) {
    let so_far = ticks(home).len();
    home.wait_until("it ticks on", || ticks(home).len() >= so_far + count);
}

/// Returns all lines that are shown, with their numbers and times.
#[track_caller]
fn shown(home: &Home) -> Vec<Value> {
    let mut lines = tail(home, "one", 1_000_000);
    for line in &mut lines {
        line.as_object_mut().unwrap().remove("subscription_id");
    }
    lines
}

/// Returns the numbers of lines.
fn numbers(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["seq"].as_u64().unwrap_or_default()).collect()
}

/// Kills a daemon while the engine receives more output; returns the next daemon.
#[track_caller]
fn replace_by_kill(engine: &Engine, home: &Home, daemon: &Daemon) -> Daemon {
    daemon.kill9();
    let heard = || engine.said(&engine.container(home)).matches("tick ").count();
    let so_far = heard();
    // A held stream buffers no more than the pipes between it and the container.
    home.wait_until("it ticks on", || heard() > so_far);
    let next = home.daemon();
    running(home, "one"); // A slow engine delays the adoption.
    next
}

fn line_numbers_and_times_survive_killed_daemons(engine: &Engine) {
    for port in [None, Some(free_port())] {
        let home = home();
        ticks_every(engine, &home, "50", &[], port);
        let mut daemon = home.daemon();
        let pid = running(&home, "one");
        for _ in 0..2 {
            wait_for_ticks(&home, 5);
            let before = shown(&home);
            assert!(before.len() > 5);
            daemon = replace_by_kill(engine, &home, &daemon);
            wait_for_ticks(&home, 5);
            let after = shown(&home);
            assert_eq!(after[..before.len()], before, "with their numbers and times");
            let expected: Vec<u64> = (1..=after.len() as u64).collect();
            assert_eq!(numbers(&after), expected, "{after:#?}");
            let said: Vec<_> = texts(&after).into_iter().filter(|it| it.contains("tick")).collect();
            let expected: Vec<_> = (1..=said.len()).map(|it| format!("tick {it}")).collect();
            assert_eq!(said, expected);
        }
        assert_eq!(
            (running(&home, "one"), &status(&home, "one")["restarts_total"]),
            (pid, &json!(0))
        );
        drop(daemon);
        engine.finish(home);
    }
}

fn follower_ends_with_daemon_and_numbers_continue(engine: &Engine) {
    let home = home();
    ticks_every(engine, &home, "50", &[], None);
    let daemon = home.daemon();
    running(&home, "one");
    let follow = |tail: u32| {
        let mut wire = home.connect();
        wire.call("logs", json!({ "name": "one", "tail": tail, "follow": true })).unwrap();
        wire
    };
    let next_line = |wire: &mut Wire| -> (u64, String) {
        let message = wire.next(SOON);
        assert_eq!(message["method"], "log", "nothing was skipped: {message}");
        let line = &message["params"];
        (line["seq"].as_u64().unwrap(), line["line"].as_str().unwrap().to_owned())
    };
    let mut follower = follow(0);
    let mut last = next_line(&mut follower);
    for _ in 0..5 {
        last = next_line(&mut follower);
    }
    replace_by_kill(engine, &home, &daemon);
    // The follower of a replaced daemon sees the end of its connection, as with a process.
    while let WireEvent::Message(_) = follower.receive(SOON) {}
    assert!(matches!(follower.receive(SOON), WireEvent::Closed));
    let mut follower = follow(1000);
    let (mut seq, mut text) = next_line(&mut follower);
    assert_eq!(seq, 1);
    let mut is_there = false;
    while seq < last.0 + 20 {
        is_there |= (seq, &text) == (last.0, &last.1);
        let next = next_line(&mut follower);
        assert_eq!(next.0, seq + 1, "{text}, {}", next.1);
        (seq, text) = next;
    }
    assert!(is_there, "{last:?} has another number now");
    engine.finish(home);
}

fn partial_line_is_completed_by_next_daemon(engine: &Engine) {
    for port in [None, Some(free_port())] {
        let home = home();
        let half = ["--bytes-without-newline", "10", "--then", "sleep"];
        let kdl = engine.kdl(&home, &[&["xy-test-spew", "--lines", "1"], &half[..]].concat(), "");
        let port = port.map_or(String::new(), |port| format!("port {port}\n"));
        home.server("one", &format!("{kdl}{port}"));
        let daemon = home.daemon();
        let pid = running(&home, "one");
        let ledger = home.root().join("state/xy/containers/one.lines");
        home.wait_until("half of the line was heard", || {
            let text = std::fs::read(&ledger).unwrap_or_default();
            String::from_utf8_lossy(&text).contains("xxxxxxxxxx")
        });
        let log = || std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
        assert_eq!(log(), "[err] line 0000001\n");
        daemon.kill9();
        let daemon = home.daemon();
        assert_eq!(running(&home, "one"), pid);
        home.daemon_with(&["--replace"]);
        assert_eq!(running(&home, "one"), pid);
        assert_eq!(log(), "[err] line 0000001\n", "nor does it end with a daemon that is replaced");
        drop(daemon);
        engine.must("POST", &format!("/containers/{}/kill?signal=TERM", engine.container(&home)));
        let all = "[err] line 0000001\n[err] xxxxxxxxxxstopping: TERM\n";
        home.wait_until("the line is whole", || log().starts_with(all));
        engine.finish(home);
    }
}

fn line_numbers_continue_across_restarts_and_daemon_death(engine: &Engine) {
    let home = home();
    ticks_every(engine, &home, "50", &[], None);
    let daemon = home.daemon();
    let first = running(&home, "one");
    wait_for_ticks(&home, 5);
    ask(&home, "restart", json!({ "name": "one" }));
    home.wait_until("there is another", || running(&home, "one") != first);
    wait_for_ticks(&home, 2);
    let before = shown(&home);
    replace_by_kill(engine, &home, &daemon);
    let after = shown(&home);
    assert_eq!(texts(&after)[..before.len()], texts(&before)[..]);
    // Lines of earlier instances are read from the file, which has neither numbers nor times.
    let of_this_life = |lines: &[Value]| -> Vec<Value> {
        let begins = lines.iter().rposition(|it| texts(std::slice::from_ref(it))[0] == "tick 1");
        lines[begins.unwrap()..].to_vec()
    };
    let (before, after) = (of_this_life(&before), of_this_life(&after));
    assert!(numbers(&before)[0] > 6, "{before:#?}");
    assert_eq!(after[..before.len()], before);
    engine.finish(home);
}

/// The flood exceeds what the engine keeps, so it cannot be counted.
fn output_after_unbroken_flood_is_logged(engine: &Engine) {
    const LINES: usize = 400_000;
    let home = home();
    let lines = LINES.to_string();
    let command = ["xy-test-spew", "--lines", &lines, "--flush", "block", "--then", "sleep"];
    let kdl = engine.kdl(&home, &command, "");
    let rest = "restart { policy \"never\"; }\n";
    home.server("one", &format!("{kdl}port {}\n{rest}", free_port()));
    let daemon = home.daemon();
    running(&home, "one");
    let log = || std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
    let last = format!("[err] line {LINES:07}\n");
    home.wait_until("it has said all", || log().ends_with(&last));
    daemon.kill9();
    let container = engine.container(&home);
    engine.must("POST", &format!("/containers/{container}/kill?signal=TERM"));
    home.wait_until("it has ended", || engine.inspect(&container)["State"]["Running"] == false);
    home.daemon();
    home.wait_until("its last words are logged", || log().ends_with("\n[err] stopping: TERM\n"));
    let log = log();
    let flood = log.lines().take(LINES).enumerate();
    let other = flood.clone().find(|(at, line)| *line != format!("[err] line {:07}", at + 1));
    assert_eq!((other, log.lines().count()), (None, LINES + 1));
    engine.finish(home);
}

fn random_kills_neither_lose_nor_double_stderr_lines(engine: &Engine) {
    assert_no_line_lost_or_doubled(engine, &[], None);
}

fn random_kills_neither_lose_nor_double_http_server_lines(engine: &Engine) {
    assert_no_line_lost_or_doubled(engine, &[], Some(free_port()));
}

fn random_kills_neither_lose_nor_double_http_server_stdout(engine: &Engine) {
    assert_no_line_lost_or_doubled(engine, &["--stdout"], Some(free_port()));
}

/// It writes all the time, so each kill interrupts something.
#[track_caller]
fn assert_no_line_lost_or_doubled(engine: &Engine, more: &[&str], port: Option<u16>) {
    let home = home();
    ticks_every(engine, &home, "1", more, port);
    let mut daemon = home.daemon();
    let pid = running(&home, "one");
    let random = RandomState::new();
    for round in 0..KILLS {
        let mut hasher = random.build_hasher();
        hasher.write_u32(round);
        let chance = hasher.finish();
        if round % 4 > 0 {
            wait_for_ticks(&home, 1); // Otherwise it may be killed before it has logged anything.
        }
        std::thread::park_timeout(Duration::from_micros(chance % 30_000));
        daemon.kill9();
        daemon = home.daemon();
    }
    assert_eq!(running(&home, "one"), pid);
    wait_for_ticks(&home, 100);
    ask(&home, "stop", json!({ "name": "one" }));
    let all = ticks(&home);
    let twice_or_missing = all.windows(2).find(|pair| pair[0] + 1 != pair[1]);
    assert_eq!(twice_or_missing, None, "of {}", all.len());
    assert_eq!(all[0], 1);
    let shown = shown(&home);
    let numbers = numbers(&shown);
    // On a busy machine it writes more than the ring holds; the rest is in the file, without
    // numbers.
    let unnumbered = numbers.iter().take_while(|it| **it == 0).count();
    let expected: Vec<u64> = (1..=shown.len() as u64).skip(unnumbered).collect();
    assert!(!expected.is_empty());
    assert_eq!(numbers[unnumbered..], expected);
    assert_eq!(texts(&shown).iter().filter(|it| it.contains("tick ")).count(), all.len());
    drop(daemon);
    engine.finish(home);
}
