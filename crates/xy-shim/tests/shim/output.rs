//! Tests of how a server's output is logged and forwarded.

use std::fs;
use std::process::Command;

use xy_shim::wire::{MAX_LINE, Stdout, flags};

use crate::daemon::{Daemon, Line, SHIM, with_timeout};

const LINES: u64 = 200_000;

/// Returns a script that writes the numbers 1 to [`LINES`], one per line.
fn count_to_stderr() -> String {
    format!("seq 1 {LINES} >&2")
}

/// Returns all generations of the log, oldest first.
fn generations(daemon: &Daemon) -> Vec<String> {
    let count = fs::read_dir(daemon.folder.path()).unwrap().count();
    let older = (1..count).rev().map(|number| daemon.path(&format!("x.log.{number}")));
    older.chain([daemon.path("x.log")]).map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn expected_log() -> String {
    (1..=LINES)
        .flat_map(|number| ["[err] ".to_owned(), number.to_string(), "\n".to_owned()])
        .collect()
}

/// Asserts that the received records are in order and match the output; some may be missing.
fn assert_records_match(records: &[Line]) {
    assert!(records.is_sorted_by_key(|record| record.seq));
    for record in records {
        assert_eq!(record.bytes, (record.seq + 1).to_string().as_bytes());
        assert_eq!(record.flags, flags::STDERR);
    }
}

#[test]
fn rotated_log_has_every_line_in_order() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script(&count_to_stderr(), Stdout::Logged);
    order.log.max_bytes = 100_000;
    order.log.generations = 1000;
    daemon.start(&order);
    daemon.wait_exited();
    daemon.finish();

    let generations = generations(&daemon);
    assert!(generations.len() > 20);
    assert!(generations.iter().all(|text| text.len() < 100_020 && text.ends_with('\n')));
    assert!(generations.concat() == expected_log());
    assert_eq!(daemon.next_seq, LINES);
    assert_records_match(&daemon.records);
}

#[test]
fn slow_daemon_does_not_block_the_server() {
    let script = format!("{}; echo done; exec cat", count_to_stderr());
    let mut daemon = Daemon::start_script(&script, Stdout::Passed);
    let mut ends = daemon.take_ends();
    // Everything was written although the daemon has not read the control connection.
    assert_eq!(ends.read(5), b"done\n");

    drop(ends);
    daemon.stop(std::time::Duration::from_secs(60));
    daemon.wait_exited();
    daemon.finish();
    assert_eq!(daemon.next_seq, LINES);
    assert!((daemon.records.len() as u64) < LINES);
    assert_records_match(&daemon.records);
    assert!(daemon.log() == expected_log());
}

#[test]
fn last_line_without_newline_is_logged() {
    let mut daemon = Daemon::start_script("printf 'a\\nb'; printf c >&2", Stdout::Logged);
    daemon.wait_exited();
    daemon.finish();
    let mut lines: Vec<_> = daemon.log().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[err] c", "[out] a", "[out] b"]);
    let last = daemon.records.iter().find(|record| record.bytes == b"b").unwrap();
    assert_eq!(last.flags, flags::UNTERMINATED);
}

#[test]
fn stray_output_is_logged_after_the_exit() {
    let mut daemon = Daemon::start_script("echo here >&2", Stdout::Passed);
    daemon.wait_line("here");
    daemon.send_unparsed(b"not pro");
    daemon.send_unparsed(b"tocol\nhalf");
    daemon.wait_line("not protocol");
    daemon.wait_exited();
    daemon.send_unparsed(b" a line");
    daemon.finish();
    assert_eq!(daemon.records.last().unwrap().bytes, b"half a line");
    assert!(daemon.log().ends_with("[out] not protocol\n[out] half a line\n"));
}

#[test]
fn very_long_line_is_split_on_disk_and_wire() {
    let script = "head -c 200000 /dev/zero | tr '\\0' x; echo; echo next";
    let mut daemon = Daemon::start_script(script, Stdout::Logged);
    daemon.wait_exited();
    daemon.finish();
    let shape: Vec<_> = daemon.records.iter().map(|it| (it.flags, it.bytes.len())).collect();
    let middle = (flags::CONTINUED | flags::UNTERMINATED, MAX_LINE);
    let end = (flags::CONTINUED, 200_000 - 3 * MAX_LINE);
    assert_eq!(shape, [(flags::UNTERMINATED, MAX_LINE), middle, middle, end, (0, 4)]);
    let prefixes: Vec<_> = daemon.log().lines().map(|line| line[..6].to_owned()).collect();
    assert_eq!(prefixes, ["[out] ", "[out+]", "[out+]", "[out+]", "[out] "]);
}

#[test]
fn binary_output_is_logged() {
    let mut daemon = Daemon::start_script("printf 'a\\0b\\377\\r\\n'", Stdout::Logged);
    daemon.wait_exited();
    daemon.finish();
    assert_eq!(fs::read(daemon.path("x.log")).unwrap(), b"[out] a\0b\xff\r\n");
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported_and_the_server_runs_on() {
    let mut daemon = Daemon::new();
    std::os::unix::fs::symlink("/dev/full", daemon.path("x.log")).unwrap();
    daemon.start(&daemon.script("echo one; echo two >&2; exec cat >&2", Stdout::Passed));
    let ends = daemon.take_ends();
    daemon.wait_line("two");
    let problem = daemon.wait_log_trouble().unwrap();
    assert!(problem.contains("No space left on device"), "{problem}");

    fs::remove_file(daemon.path("x.log")).unwrap();
    assert_eq!(daemon.wait_log_trouble(), None);
    assert!(daemon.log().starts_with("[xy] 1 line was not written: "), "{}", daemon.log());
    drop(ends);
    daemon.stop(std::time::Duration::from_secs(60));
    daemon.wait_exited();
    daemon.finish();
}

/// A limit on the file size cuts a write short, as a disk that becomes full does.
#[test]
fn short_write_leaves_no_partial_line() {
    let limited = "ulimit -f 8; exec \"$0\"";
    let mut daemon = Daemon::launch(Command::new("sh").args(["-c", limited, SHIM]));
    let script = "i=0; while [ $i -lt 1000 ]; do echo line $i of many; i=$((i+1)); done; \
                  mkfifo gate; echo full; read go <gate; echo room";
    daemon.start(&daemon.script(script, Stdout::Logged));
    daemon.wait_line("full");
    assert!(daemon.wait_log_trouble().unwrap().contains("File too large"));
    let text = daemon.log();
    assert!(text.len() > 3000 && text.ends_with(" of many\n"), "{text}");

    fs::remove_file(daemon.path("x.log")).unwrap();
    assert_eq!(daemon.wait_log_trouble(), None);
    let gate = daemon.path("gate");
    with_timeout(move || fs::write(gate, "go\n").unwrap());
    daemon.wait_exited();
    daemon.finish();
    let rest = daemon.log();
    let written = text.lines().count();
    let note = rest.lines().next().unwrap();
    assert!(
        note.starts_with(&format!("[xy] {} lines were not written: ", 1001 - written)),
        "{note}"
    );
    assert!(rest.ends_with("\n[out] room\n"));
    assert_eq!(daemon.records.len(), 1002);
}
