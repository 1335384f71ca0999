//! Server output: every line is on disk, and no reader delays a server.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{SOON, ask, home, running, shown, status, tail, texts, wait_for_line};
use xy_testkit::{Home, Wire, WireEvent, read_log_lines};

fn spew(home: &Home, args: &[&str]) -> String {
    home.kdl_command("xy-test-spew", args)
}

fn ticker(home: &Home, every: &str) -> String {
    home.kdl_command("xy-test-sleep-server", &["--every", every])
}

/// Returns the file of a server that writes the output of `script` and ends.
fn script(script: &str) -> String {
    let quoted = script.replace('\\', "\\\\").replace('"', "\\\"");
    format!("command \"sh\"\nargs \"-c\" \"{quoted}\"\n")
}

/// Follows a server from its next line on.
fn follow(home: &Home, name: &str) -> Wire {
    let mut wire = home.connect();
    wire.call("logs", json!({ "name": name, "tail": 0, "follow": true })).unwrap();
    wire
}

/// The numbered lines that a follower has received.
#[derive(Default)]
struct Received {
    shown: u64,
    skipped: u64,
}

impl Received {
    /// Checks one notification; its line must have the next number.
    fn accept(&mut self, message: &Value) {
        let entry = &message["params"];
        match message["method"].as_str() {
            Some("log") => {
                let line = entry["line"].as_str().unwrap();
                let number = line.strip_prefix(NUMBERED).and_then(|it| it.parse::<u64>().ok());
                let Some(number) = number else {
                    assert_eq!(self.all(), 0, "in the middle of numbers: {line}");
                    return;
                };
                self.shown += 1;
                assert_eq!(number, self.all(), "after {} shown", self.shown);
            }
            Some("log_skipped") => self.skipped += entry["count"].as_u64().unwrap(),
            _ => panic!("neither a line nor a gap: {message}"),
        }
    }

    /// Reads until `count` lines have been shown or skipped.
    fn read_up_to(&mut self, count: u64, wire: &mut Wire) {
        while self.all() < count {
            self.accept(&wire.next(SOON));
        }
        assert_eq!(self.all(), count);
    }

    fn all(&self) -> u64 {
        self.shown + self.skipped
    }
}

/// The text before the number in each line of a flood.
const NUMBERED: &str = "a numbered line ";

/// Makes the server `one` write `lines` numbered lines.
fn begin_flood(home: &Home, lines: u64, rest: &str) {
    let lines = lines.to_string();
    let args = ["--text", NUMBERED, "--flush", "block", "--lines", &lines];
    home.server("one", &format!("{}{rest}", spew(home, &args)));
    ask(home, "reload", Value::Null);
}

/// Compares lines without printing a million of them.
fn assert_numbered(lines: &[String], tag: &str, count: usize) {
    let numbered: Vec<&str> =
        lines.iter().filter_map(|it| it.strip_prefix(tag)?.strip_prefix(NUMBERED)).collect();
    assert_eq!(numbered.len(), count);
    for (at, number) in numbered.into_iter().enumerate() {
        assert!(number.len() == 7 && number.parse() == Ok(at + 1), "line {}: {number}", at + 1);
    }
}

#[test]
fn million_lines_are_written_and_accounted_for() {
    const LINES: u64 = 1_000_000;
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut follower = follow(&home, "one");

    // 30 bytes each: three rotations of 10 MB, and no line is dropped.
    begin_flood(&home, LINES, "");

    let mut seen = Received::default();
    seen.read_up_to(LINES, &mut follower);
    assert!(seen.shown > 0);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[err] ", 1_000_000);
    let generation = |number: u32| home.log_file("one").with_extension(format!("log.{number}"));
    let sizes = [1, 2].map(|number| fs::metadata(generation(number)).unwrap().len());
    assert!(sizes.iter().all(|size| (10_000_000..11_100_000).contains(size)), "{sizes:?}");
}

#[test]
fn oldest_lines_are_dropped_first() {
    let home = home();
    // 62 MB of lines, for a current file and five older ones.
    let text = "x".repeat(993);
    home.server("one", &spew(&home, &["--text", &text, "--flush", "block", "--lines", "62000"]));
    home.daemon();
    home.wait_until("all is written", || status(&home, "one")["state"] == "stopped");

    let lines = read_log_lines(&home, "one");
    assert!(lines.len() < 62_000 && lines.len() >= 50_000, "{}", lines.len());
    let first = 62_000 - lines.len() + 1;
    for (at, line) in lines.iter().enumerate() {
        assert!(line.len() == 1006 && line.ends_with(&format!("x{:07}", first + at)), "{line}");
    }
    assert!(!home.log_file("one").with_extension("log.6").exists());
}

#[test]
fn follower_that_never_reads_delays_no_other() {
    const LINES: u64 = 100_000;
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut silent = follow(&home, "one");
    let mut other = follow(&home, "one");

    begin_flood(&home, LINES, "");

    Received::default().read_up_to(LINES, &mut other);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[err] ", 100_000);

    // When the follower reads at last, it learns how many lines it has missed.
    let mut seen = Received::default();
    seen.read_up_to(LINES, &mut silent);
    assert!(seen.shown > 0 && seen.skipped > 0, "{} and {}", seen.shown, seen.skipped);
}

#[test]
fn stdout_of_stdio_server_is_logged_as_is() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut follower = follow(&home, "one");
    let lines = "100000";
    let args = ["--text", NUMBERED, "--flush", "block", "--stream", "out", "--lines", lines];
    home.server("one", &spew(&home, &args));
    ask(&home, "reload", Value::Null);

    Received::default().read_up_to(100_000, &mut follower);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[out] ", 100_000);
    let last = tail(&home, "one", 1);
    assert_eq!((&last[0]["stream"], &last[0]["name"]), (&json!("stdout"), &json!("one")));
}

#[test]
fn both_outputs_of_http_server_are_logged() {
    let home = home();
    let args = ["--stream", "both", "--lines", "1000", "--then", "sleep"];
    home.server("one", &format!("{}port 8421\n", spew(&home, &args)));
    home.daemon();
    home.wait_until("all is written", || read_log_lines(&home, "one").len() == 2000);

    let lines = read_log_lines(&home, "one");
    for tag in ["[out] ", "[err] "] {
        let of_one: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(tag)).collect();
        let expected: Vec<_> = (1..=1000).map(|number| format!("line {number:07}")).collect();
        assert_eq!(of_one, expected);
    }
    let shown = tail(&home, "one", 5000);
    let of = |stream: &str| shown.iter().filter(|line| line["stream"] == stream).count();
    assert_eq!([of("stdout"), of("stderr")], [1000, 1000]);
}

#[test]
fn last_twenty_lines_are_shown_by_default() {
    let home = home();
    home.server("one", &spew(&home, &["--lines", "100", "--then", "sleep"]));
    home.daemon();
    wait_for_line(&home, "one", "line 0000100");

    let last = |count: usize| -> Vec<String> {
        (101 - count..=100).map(|number| format!("line {number:07}")).collect()
    };
    let mut wire = home.connect();
    assert_eq!(texts(&shown(&mut wire, json!({ "name": "one" }))), last(20));
    assert_eq!(texts(&shown(&mut wire, json!({ "name": "one", "tail": 3 }))), last(3));
    assert_eq!(texts(&shown(&mut wire, json!({ "name": "one", "tail": 100 }))), last(100));
    assert_eq!(texts(&shown(&mut wire, json!({ "name": "one", "tail": 4_000_000 }))), last(100));
    assert_eq!(shown(&mut wire, json!({ "name": "one", "tail": 0 })), [Value::Null; 0]);

    let lines = tail(&home, "one", 100);
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line["seq"], at + 1);
        assert_eq!((&line["name"], &line["stream"]), (&json!("one"), &json!("stderr")));
        assert!(line["ts"].as_str().unwrap().ends_with('Z'));
    }
}

#[test]
fn follower_gets_tail_then_new_lines_until_cancel() {
    let home = home();
    home.server("one", &ticker(&home, "5"));
    home.daemon();
    wait_for_line(&home, "one", "tick 3");
    let mut wire = home.connect();
    let params = json!({ "name": "one", "tail": 2, "follow": true });
    let id = wire.call("logs", params).unwrap()["subscription_id"].clone();

    let seq = |message: &Value| message["params"]["seq"].as_u64().unwrap();
    let first = seq(&wire.next(SOON));
    for due in first + 1..first + 10 {
        assert_eq!(seq(&wire.next(SOON)), due);
    }

    let cancelled = wire.call("logs_cancel", json!({ "subscription_id": id })).unwrap();
    assert_eq!(cancelled, json!({ "subscription_id": id }));
    let end = loop {
        let message = wire.next(SOON);
        if message["method"] != "log" {
            break message;
        }
    };
    assert_eq!(
        (&end["method"], &end["params"]),
        (&json!("log_end"), &json!({ "subscription_id": id }))
    );

    // Other followers continue, and this one receives nothing more.
    let mut other = follow(&home, "one");
    for _ in 0..3 {
        assert_eq!(other.next(SOON)["method"], "log");
    }
    wire.call("version", Value::Null).unwrap();
    assert_eq!(wire.receive(std::time::Duration::ZERO), WireEvent::TimedOut);
    let again = wire.call("logs_cancel", json!({ "subscription_id": id })).unwrap_err();
    assert_eq!(again["code"], -32602);
}

#[test]
fn follower_of_a_removed_server_gets_last_lines() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    let pid = running(&home, "one");
    wait_for_line(&home, "one", &format!("started {pid}"));
    let mut follower = follow(&home, "one");

    home.remove_server("one");
    ask(&home, "reload", Value::Null);

    assert_eq!(follower.next(SOON)["params"]["line"], "stopping: stdin closed");
    assert_eq!(follower.next(SOON)["method"], "log_end");
}

#[test]
fn follower_continues_across_restarts() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    let pid = running(&home, "one");
    wait_for_line(&home, "one", &format!("started {pid}"));
    let mut follower = follow(&home, "one");

    ask(&home, "restart", json!({ "name": "one" }));

    let next = running(&home, "one");
    let received = [follower.next(SOON), follower.next(SOON)].map(|it| it["params"].clone());
    assert_eq!(texts(&received), ["stopping: stdin closed", &format!("started {next}")]);
    assert_eq!([&received[0]["seq"], &received[1]["seq"]], [2, 3]);
}

#[test]
fn last_line_without_newline_is_logged() {
    let home = home();
    home.server("one", &spew(&home, &["--lines", "3", "--no-newline-at-end"]));
    home.daemon();
    home.wait_for_state("one", "stopped");
    let whole = ["line 0000001", "line 0000002", "line 0000003"];
    assert_eq!(texts(&tail(&home, "one", 20)), whole);
    let text = fs::read_to_string(home.log_file("one")).unwrap();
    assert_eq!(text, "[err] line 0000001\n[err] line 0000002\n[err] line 0000003\n");
}

#[test]
fn invalid_utf8_is_stored_and_shown_escaped() {
    let home = home();
    home.server("one", &script(r"printf 'a\377b\000c\r\n\n\033[31mred\033[0m\n' >&2"));
    home.daemon();
    home.wait_for_state("one", "stopped");
    let lines = tail(&home, "one", 20);
    assert_eq!(texts(&lines), ["a\u{fffd}b\0c\r", "", "\u{1b}[31mred\u{1b}[0m"]);
    let bytes = fs::read(home.log_file("one")).unwrap();
    assert_eq!(bytes, b"[err] a\xffb\0c\r\n[err] \n[err] \x1b[31mred\x1b[0m\n");
}

#[test]
fn megabyte_line_is_split_and_marked() {
    let home = home();
    home.server("one", &spew(&home, &["--lines", "1", "--bytes-without-newline", "1000000"]));
    home.daemon();
    home.wait_for_state("one", "stopped");

    let lines = tail(&home, "one", 100);
    assert_eq!(lines[0]["line"], "line 0000001");
    let pieces = &lines[1..];
    assert_eq!(pieces.len(), 16);
    let lengths: Vec<usize> = texts(pieces).iter().map(|it| it.len()).collect();
    assert!(lengths.iter().all(|&length| length <= 64 * 1024), "{lengths:?}");
    assert_eq!(lengths.iter().sum::<usize>(), 1_000_000);
    assert_eq!(pieces[0].get("continued"), None);
    assert!(pieces[1..].iter().all(|it| it["continued"] == true));

    let on_disk = read_log_lines(&home, "one");
    assert!(on_disk[1].starts_with("[err] xxx"));
    assert!(on_disk[2..].iter().all(|line| line.starts_with("[err+] xxx")));
    let tags = "[err] ".len() + 15 * "[err+] ".len();
    assert_eq!(on_disk[1..].iter().map(String::len).sum::<usize>(), 1_000_000 + tags);
}

#[test]
fn earlier_lines_survive_a_new_daemon() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    let daemon = home.daemon();
    let first = running(&home, "one");
    wait_for_line(&home, "one", &format!("started {first}"));
    daemon.terminate();

    home.daemon();
    let second = running(&home, "one");
    wait_for_line(&home, "one", &format!("started {second}"));

    let lines = tail(&home, "one", 20);
    let entry = [
        format!("started {first}"),
        "stopping: stdin closed".to_owned(),
        format!("started {second}"),
    ];
    assert_eq!(texts(&lines), entry);
    assert_eq!((&lines[0]["ts"], lines[0].get("seq")), (&Value::Null, None));
    assert_eq!(lines[0]["stream"], "stderr");
    assert!(lines[2]["ts"].is_string() && lines[2]["seq"] == 1);
    assert_eq!(texts(&tail(&home, "one", 2)), entry[1..]);
}

#[test]
fn server_survives_loss_of_its_log_folder() {
    let home = home();
    home.server("one", &ticker(&home, "20"));
    home.daemon();
    let pid = running(&home, "one");
    home.wait_until("it has a log", || read_log_lines(&home, "one").len() > 2);

    fs::remove_dir_all(home.log_file("one").parent().unwrap()).unwrap();

    home.wait_until("it has a log again", || !read_log_lines(&home, "one").is_empty());
    let lines = read_log_lines(&home, "one");
    assert!(lines[0].starts_with("[err] tick "), "{lines:?}");
    assert_eq!(running(&home, "one"), pid);
    assert_eq!(status(&home, "one").get("warnings"), None);
}

#[test]
fn unopenable_log_is_a_warning() {
    let home = home();
    let log_file = home.log_file("one");
    fs::create_dir_all(&log_file).unwrap(); // A folder in place of the file.
    home.server("one", &ticker(&home, "20"));
    home.daemon();
    let pid = running(&home, "one");
    let warned = home.wait_until("there is a warning", || warning(&home, "one"));
    assert!(warned.contains("log") && warned.contains("one.log"), "{warned}");
    wait_for_line(&home, "one", "tick 2"); // Only the file lacks these lines.

    fs::remove_dir(&log_file).unwrap();

    home.wait_until("the warning is gone", || warning(&home, "one").is_none());
    home.wait_until("it is written again", || read_log_lines(&home, "one").len() > 2);
    let first = read_log_lines(&home, "one").remove(0);
    assert!(first.starts_with("[xy] ") && first.contains("not written"), "{first}");
    assert_eq!(running(&home, "one"), pid);
}

/// Returns the warning in a server's status.
fn warning(home: &Home, name: &str) -> Option<String> {
    status(home, name)["warnings"][0].as_str().map(str::to_owned)
}

/// Tests with a full device and a small tmpfs, which only Linux has.
#[cfg(target_os = "linux")]
mod full {
    use std::os::unix::fs::symlink;

    use xy_testkit::is_alive;

    use super::*;
    use crate::support::disk::SmallDisk;

    #[test]
    fn full_device_does_not_block_a_server() {
        let home = home();
        let log_file = home.log_file("one");
        fs::create_dir_all(log_file.parent().unwrap()).unwrap();
        symlink("/dev/full", &log_file).unwrap();
        home.server("one", &ticker(&home, "20"));
        home.daemon();
        let pid = running(&home, "one");
        let warned = home.wait_until("there is a warning", || warning(&home, "one"));
        assert!(warned.contains("No space left on device"), "{warned}");
        assert_eq!(status(&home, "one")["state"], "running");

        fs::remove_file(&log_file).unwrap();
        home.wait_until("the warning is gone", || warning(&home, "one").is_none());
        home.wait_until("it is written again", || read_log_lines(&home, "one").len() > 2);
        assert_eq!(running(&home, "one"), pid);

        fs::remove_file(&log_file).unwrap();
        symlink("/dev/full", &log_file).unwrap();
        home.wait_until("there is a warning again", || warning(&home, "one").is_some());
        ask(&home, "stop", json!({ "name": "one" }));
        assert_eq!(status(&home, "one")["last_exit"]["code"], 0);
        assert_eq!(texts(&tail(&home, "one", 1)), ["stopping: stdin closed"]);
        assert!(!is_alive(pid));
    }

    #[test]
    fn full_disk_does_not_block_a_server() {
        let home = home();
        let Some(disk) = SmallDisk::mount(&home) else {
            println!("SKIPPED: no right to mount a small disk");
            return;
        };
        home.server("one", &ticker(&home, "5"));
        home.server("two", &ticker(&home, "5"));
        let daemon = home.daemon();
        let pids = [running(&home, "one"), running(&home, "two")];
        for name in ["one", "two"] {
            home.wait_until("it has a log", || read_log_lines(&home, name).len() > 2);
        }

        disk.fill();
        for name in ["one", "two"] {
            let warned = home.wait_until("there is a warning", || warning(&home, name));
            assert!(warned.contains("No space left on device"), "{warned}");
            assert_eq!(status(&home, name)["state"], "running");
        }
        let mut stopped = ask(&home, "stop", json!({ "name": "two" }));
        let warnings = stopped["warnings"].take().to_string();
        assert!(warnings.contains("lost when the daemon restarts"), "{warnings}");
        assert_eq!(stopped["stopped"], json!(["two"]));
        assert!(!is_alive(pids[1]));

        disk.make_room();
        home.wait_until("the warning is gone", || warning(&home, "one").is_none());
        home.wait_until("the gap is reported", || {
            read_log_lines(&home, "one").iter().any(|line| line.starts_with("[xy] "))
        });
        assert_eq!(running(&home, "one"), pids[0]);
        ask(&home, "restart", json!({ "name": "one" }));
        assert_whole_ticks(&read_log_lines(&home, "one"));

        disk.fill();
        home.wait_until("there is a warning", || warning(&home, "one"));
        assert!(daemon.terminate().success());
        disk.make_room();
    }

    #[test]
    fn daemon_starts_on_a_full_disk_and_reports_it() {
        let home = home();
        let Some(disk) = SmallDisk::mount(&home) else {
            println!("SKIPPED: no right to mount a small disk");
            return;
        };
        home.server("one", &ticker(&home, "20"));
        home.daemon().terminate();
        // The allocated blocks of the file could still be written.
        fs::write(home.log_file("one"), "").unwrap();
        fs::write(home.root().join("state/xy/xy.pid"), "").unwrap();
        disk.fill();

        let daemon = home.daemon();

        running(&home, "one");
        let warned = home.wait_until("there is a warning", || warning(&home, "one"));
        assert!(warned.contains("No space left on device"), "{warned}");
        assert!(daemon.stderr().contains("xy.pid"), "{}", daemon.stderr());
        assert!(daemon.terminate().success());
        disk.make_room();
    }

    #[test]
    fn read_only_disk_affects_only_the_log() {
        let home = home();
        let folder = home.log_file("one").parent().unwrap().to_owned();
        fs::create_dir_all(&folder).unwrap();
        let Some(disk) = SmallDisk::mount_at(folder) else {
            println!("SKIPPED: no right to mount a small disk");
            return;
        };
        disk.remount("ro");
        home.server("one", &ticker(&home, "20"));
        home.daemon();
        let pid = running(&home, "one");
        let warned = home.wait_until("there is a warning", || warning(&home, "one"));
        assert!(warned.contains("Read-only file system"), "{warned}");
        home.wait_until("its lines are shown", || tail(&home, "one", 3).len() == 3);

        disk.remount("rw");
        home.wait_until("the warning is gone", || warning(&home, "one").is_none());
        home.wait_until("it is written", || read_log_lines(&home, "one").len() > 2);
        assert_eq!(running(&home, "one"), pid);
        ask(&home, "stop", json!({ "name": "one" }));
    }

    /// Checks the lines of the first life: no line is torn or duplicated, and all missing lines
    /// were counted.
    fn assert_whole_ticks(lines: &[String]) {
        let mut due = 1;
        for (at, line) in lines.iter().enumerate().skip(1) {
            if line == "[err] stopping: stdin closed" {
                return;
            }
            if let Some(note) = line.strip_prefix("[xy] ") {
                due += note.split(' ').next().unwrap().parse::<u64>().unwrap();
            } else {
                assert_eq!(line, &format!("[err] tick {due}"), "{:#?}", &lines[at - 1..=at]);
                due += 1;
            }
        }
        panic!("the end is missing: {:#?}", lines.last());
    }
}
