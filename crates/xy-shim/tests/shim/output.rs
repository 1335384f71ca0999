//! What becomes of a server's output.

use std::fs;
use std::process::Command;

use xy_shim::wire::{MAX_LINE, Stdout, flags};

use crate::daemon::{Daemon, Line, SHIM, within_the_limit};

const LINES: u64 = 200_000;

/// The numbers 1 to [`LINES`], each in its line.
fn count_to_stderr() -> String {
    format!("seq 1 {LINES} >&2")
}

/// All generations of the log, oldest first.
fn generations(daemon: &Daemon) -> Vec<String> {
    let count = fs::read_dir(daemon.folder.path()).unwrap().count();
    let older = (1..count).rev().map(|number| daemon.path(&format!("x.log.{number}")));
    older.chain([daemon.path("x.log")]).map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn counted() -> String {
    (1..=LINES)
        .flat_map(|number| ["[err] ".to_owned(), number.to_string(), "\n".to_owned()])
        .collect()
}

/// Received plus missed is all; what was received is in order and is what was written.
fn assert_records_are_right(records: &[Line]) {
    assert!(records.is_sorted_by_key(|record| record.seq));
    for record in records {
        assert_eq!(record.bytes, (record.seq + 1).to_string().as_bytes());
        assert_eq!(record.flags, flags::STDERR);
    }
}

#[test]
fn every_line_is_on_disk_in_its_order_across_generations() {
    let mut daemon = Daemon::new();
    let mut order = daemon.script(&count_to_stderr(), Stdout::Logged);
    order.log.max_bytes = 100_000;
    order.log.generations = 1000;
    daemon.start(&order);
    daemon.exited();
    daemon.finish();

    let generations = generations(&daemon);
    assert!(generations.len() > 20);
    assert!(generations.iter().all(|text| text.len() < 100_020 && text.ends_with('\n')));
    assert!(generations.concat() == counted());
    assert_eq!(daemon.next_seq, LINES);
    assert_records_are_right(&daemon.records);
}

#[test]
fn a_daemon_that_does_not_read_holds_nobody_up_and_learns_what_it_missed() {
    let script = format!("{}; echo done; exec cat", count_to_stderr());
    let mut daemon = Daemon::running(&script, Stdout::Passed);
    let mut ends = daemon.ends();
    // Written to the end, while nobody has read the control connection.
    assert_eq!(ends.read(5), b"done\n");

    drop(ends);
    daemon.stop(std::time::Duration::from_secs(60));
    daemon.exited();
    daemon.finish();
    assert_eq!(daemon.next_seq, LINES);
    assert!((daemon.records.len() as u64) < LINES);
    assert_records_are_right(&daemon.records);
    assert!(daemon.log() == counted());
}

#[test]
fn a_last_line_without_a_newline_is_kept() {
    let mut daemon = Daemon::running("printf 'a\\nb'; printf c >&2", Stdout::Logged);
    daemon.exited();
    daemon.finish();
    let mut lines: Vec<_> = daemon.log().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[err] c", "[out] a", "[out] b"]);
    let last = daemon.records.iter().find(|record| record.bytes == b"b").unwrap();
    assert_eq!(last.flags, flags::UNTERMINATED);
}

#[test]
fn stray_output_is_logged_even_after_the_end() {
    let mut daemon = Daemon::running("echo here >&2", Stdout::Passed);
    daemon.line("here");
    daemon.stray(b"not pro");
    daemon.stray(b"tocol\nhalf");
    daemon.line("not protocol");
    daemon.exited();
    daemon.stray(b" a line");
    daemon.finish();
    assert_eq!(daemon.records.last().unwrap().bytes, b"half a line");
    assert!(daemon.log().ends_with("[out] not protocol\n[out] half a line\n"));
}

#[test]
fn a_very_long_line_is_split_on_disk_and_on_the_wire() {
    let script = "head -c 200000 /dev/zero | tr '\\0' x; echo; echo next";
    let mut daemon = Daemon::running(script, Stdout::Logged);
    daemon.exited();
    daemon.finish();
    let shape: Vec<_> = daemon.records.iter().map(|it| (it.flags, it.bytes.len())).collect();
    let middle = (flags::CONTINUED | flags::UNTERMINATED, MAX_LINE);
    let end = (flags::CONTINUED, 200_000 - 3 * MAX_LINE);
    assert_eq!(shape, [(flags::UNTERMINATED, MAX_LINE), middle, middle, end, (0, 4)]);
    let prefixes: Vec<_> = daemon.log().lines().map(|line| line[..6].to_owned()).collect();
    assert_eq!(prefixes, ["[out] ", "[out+]", "[out+]", "[out+]", "[out] "]);
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    let mut daemon = Daemon::running("printf 'a\\0b\\377\\r\\n'", Stdout::Logged);
    daemon.exited();
    daemon.finish();
    assert_eq!(fs::read(daemon.path("x.log")).unwrap(), b"[out] a\0b\xff\r\n");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_the_server_does_not_notice() {
    let mut daemon = Daemon::new();
    std::os::unix::fs::symlink("/dev/full", daemon.path("x.log")).unwrap();
    daemon.start(&daemon.script("echo one; echo two >&2; exec cat >&2", Stdout::Passed));
    let ends = daemon.ends();
    daemon.line("two");
    let problem = daemon.log_trouble().unwrap();
    assert!(problem.contains("No space left on device"), "{problem}");

    fs::remove_file(daemon.path("x.log")).unwrap();
    assert_eq!(daemon.log_trouble(), None);
    assert!(daemon.log().starts_with("[xy] 1 line was not written: "), "{}", daemon.log());
    drop(ends);
    daemon.stop(std::time::Duration::from_secs(60));
    daemon.exited();
    daemon.finish();
}

/// With a limit on the size of files a write is cut short, as on a disk that gets full.
#[test]
fn a_write_that_is_cut_short_leaves_no_torn_line() {
    let limited = "ulimit -f 8; exec \"$0\"";
    let mut daemon = Daemon::launching(Command::new("sh").args(["-c", limited, SHIM]));
    let script = "i=0; while [ $i -lt 1000 ]; do echo line $i of many; i=$((i+1)); done; \
                  mkfifo door; echo full; read go <door; echo room";
    daemon.start(&daemon.script(script, Stdout::Logged));
    daemon.line("full");
    assert!(daemon.log_trouble().unwrap().contains("File too large"));
    let text = daemon.log();
    assert!(text.len() > 3000 && text.ends_with(" of many\n"), "{text}");

    fs::remove_file(daemon.path("x.log")).unwrap();
    assert_eq!(daemon.log_trouble(), None);
    let door = daemon.path("door");
    within_the_limit(move || fs::write(door, "go\n").unwrap());
    daemon.exited();
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
