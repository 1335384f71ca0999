//! What servers write: kept on disk to the last line, shown without holding anybody up.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{SOON, ask, home, running, says, shown, status, tail, texts};
use xy_testkit::{Heard, Home, Wire, read_log_lines};

fn spew(home: &Home, args: &[&str]) -> String {
    home.kdl_command("xy-test-spew", args)
}

fn ticker(home: &Home, every: &str) -> String {
    home.kdl_command("xy-test-sleep-server", &["--every", every])
}

/// A server that writes `script`'s output and ends.
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

/// What a follower of numbered lines has seen.
#[derive(Default)]
struct Seen {
    shown: u64,
    skipped: u64,
}

impl Seen {
    /// Takes one notification; the number of each line must be the one that is due.
    fn take(&mut self, message: &Value) {
        let told = &message["params"];
        match message["method"].as_str() {
            Some("log") => {
                let line = told["line"].as_str().unwrap();
                let number = line.strip_prefix(NUMBERED).and_then(|it| it.parse::<u64>().ok());
                let Some(number) = number else {
                    assert_eq!(self.all(), 0, "in the middle of numbers: {line}");
                    return;
                };
                self.shown += 1;
                assert_eq!(number, self.all(), "after {} shown", self.shown);
            }
            Some("log_skipped") => self.skipped += told["count"].as_u64().unwrap(),
            _ => panic!("neither a line nor a gap: {message}"),
        }
    }

    /// Listens until `count` lines have been shown or skipped.
    fn up_to(&mut self, count: u64, wire: &mut Wire) {
        while self.all() < count {
            self.take(&wire.next(SOON));
        }
        assert_eq!(self.all(), count);
    }

    fn all(&self) -> u64 {
        self.shown + self.skipped
    }
}

/// What stands before the number in each line of a flood.
const NUMBERED: &str = "a numbered line ";

/// Makes the server `one` write `lines` numbered lines from now on.
fn begin_flood(home: &Home, lines: u64, rest: &str) {
    let lines = lines.to_string();
    let args = ["--text", NUMBERED, "--flush", "block", "--lines", &lines];
    home.server("one", &format!("{}{rest}", spew(home, &args)));
    ask(home, "reload", Value::Null);
}

/// Compares without telling a million lines apart in words.
fn assert_numbered(lines: &[String], tag: &str, count: usize) {
    let numbered: Vec<&str> =
        lines.iter().filter_map(|it| it.strip_prefix(tag)?.strip_prefix(NUMBERED)).collect();
    assert_eq!(numbered.len(), count);
    for (at, number) in numbered.into_iter().enumerate() {
        assert!(number.len() == 7 && number.parse() == Ok(at + 1), "line {}: {number}", at + 1);
    }
}

#[test]
fn a_million_lines_are_all_on_disk_and_a_follower_knows_of_all() {
    const LINES: u64 = 1_000_000;
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut follower = follow(&home, "one");

    // 30 bytes each: three rotations of 10 MB, and nothing falls off the end.
    begin_flood(&home, LINES, "");

    let mut seen = Seen::default();
    seen.up_to(LINES, &mut follower);
    assert!(seen.shown > 0);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[err] ", 1_000_000);
    let generation = |number: u32| home.log_file("one").with_extension(format!("log.{number}"));
    let sizes = [1, 2].map(|number| fs::metadata(generation(number)).unwrap().len());
    assert!(sizes.iter().all(|size| (10_000_000..11_100_000).contains(size)), "{sizes:?}");
}

#[test]
fn the_oldest_lines_go_when_there_are_too_many() {
    let home = home();
    // 62 MB of lines for a current file and five older ones.
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
fn a_follower_that_never_reads_delays_neither_the_server_nor_another_follower() {
    const LINES: u64 = 100_000;
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut deaf = follow(&home, "one");
    let mut other = follow(&home, "one");

    begin_flood(&home, LINES, "");

    Seen::default().up_to(LINES, &mut other);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[err] ", 100_000);

    // When it reads at last, it is told what it has missed.
    let mut seen = Seen::default();
    seen.up_to(LINES, &mut deaf);
    assert!(seen.shown > 0 && seen.skipped > 0, "{} and {}", seen.shown, seen.skipped);
}

#[test]
fn the_stdout_of_a_stdio_server_is_logged_as_such_and_whole() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    running(&home, "one");
    let mut follower = follow(&home, "one");
    let lines = "100000";
    let args = ["--text", NUMBERED, "--flush", "block", "--stream", "out", "--lines", lines];
    home.server("one", &spew(&home, &args));
    ask(&home, "reload", Value::Null);

    Seen::default().up_to(100_000, &mut follower);
    home.wait_for_state("one", "stopped");
    assert_numbered(&read_log_lines(&home, "one"), "[out] ", 100_000);
    let last = tail(&home, "one", 1);
    assert_eq!((&last[0]["stream"], &last[0]["name"]), (&json!("stdout"), &json!("one")));
}

#[test]
fn both_outputs_of_an_http_server_are_logged_under_their_names() {
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
fn the_last_twenty_lines_are_shown_or_as_many_as_are_wanted() {
    let home = home();
    home.server("one", &spew(&home, &["--lines", "100", "--then", "sleep"]));
    home.daemon();
    says(&home, "one", "line 0000100");

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
fn a_follower_gets_the_tail_then_what_comes_and_after_the_cancel_only_the_end() {
    let home = home();
    home.server("one", &ticker(&home, "5"));
    home.daemon();
    says(&home, "one", "tick 3");
    let mut wire = home.connect();
    let asked = json!({ "name": "one", "tail": 2, "follow": true });
    let id = wire.call("logs", asked).unwrap()["subscription_id"].clone();

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

    // Others go on, and nothing more comes here.
    let mut other = follow(&home, "one");
    for _ in 0..3 {
        assert_eq!(other.next(SOON)["method"], "log");
    }
    wire.call("version", Value::Null).unwrap();
    assert_eq!(wire.hear(std::time::Duration::ZERO), Heard::Silence);
    let again = wire.call("logs_cancel", json!({ "subscription_id": id })).unwrap_err();
    assert_eq!(again["code"], -32602);
}

#[test]
fn a_follower_of_a_server_that_is_removed_gets_its_last_words_and_the_end() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    let pid = running(&home, "one");
    says(&home, "one", &format!("started {pid}"));
    let mut follower = follow(&home, "one");

    home.remove_server("one");
    ask(&home, "reload", Value::Null);

    assert_eq!(follower.next(SOON)["params"]["line"], "stopping: stdin closed");
    assert_eq!(follower.next(SOON)["method"], "log_end");
}

#[test]
fn a_follower_sees_one_life_after_the_other() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    home.daemon();
    let pid = running(&home, "one");
    says(&home, "one", &format!("started {pid}"));
    let mut follower = follow(&home, "one");

    ask(&home, "restart", json!({ "name": "one" }));

    let next = running(&home, "one");
    let heard = [follower.next(SOON), follower.next(SOON)].map(|it| it["params"].clone());
    assert_eq!(texts(&heard), ["stopping: stdin closed", &format!("started {next}")]);
    assert_eq!([&heard[0]["seq"], &heard[1]["seq"]], [2, 3]);
}

#[test]
fn a_last_line_without_a_newline_is_kept() {
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
fn bytes_that_are_no_text_are_kept_on_disk_and_shown_safely() {
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
fn a_line_of_a_megabyte_is_split_and_marked() {
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
fn lines_from_before_a_daemon_are_still_shown() {
    let home = home();
    home.server("one", &ticker(&home, "600000"));
    let daemon = home.daemon();
    let first = running(&home, "one");
    says(&home, "one", &format!("started {first}"));
    daemon.terminate();

    home.daemon();
    let second = running(&home, "one");
    says(&home, "one", &format!("started {second}"));

    let lines = tail(&home, "one", 20);
    let told = [
        format!("started {first}"),
        "stopping: stdin closed".to_owned(),
        format!("started {second}"),
    ];
    assert_eq!(texts(&lines), told);
    assert_eq!((&lines[0]["ts"], lines[0].get("seq")), (&Value::Null, None));
    assert_eq!(lines[0]["stream"], "stderr");
    assert!(lines[2]["ts"].is_string() && lines[2]["seq"] == 1);
    assert_eq!(texts(&tail(&home, "one", 2)), told[1..]);
}

#[test]
fn a_server_survives_the_loss_of_its_log_folder_and_the_log_goes_on() {
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
fn a_server_whose_log_cannot_be_opened_runs_with_a_warning_until_it_can() {
    let home = home();
    let log_file = home.log_file("one");
    fs::create_dir_all(&log_file).unwrap(); // A folder where the file shall be.
    home.server("one", &ticker(&home, "20"));
    home.daemon();
    let pid = running(&home, "one");
    let warned = home.wait_until("there is a warning", || warning(&home, "one"));
    assert!(warned.contains("log") && warned.contains("one.log"), "{warned}");
    says(&home, "one", "tick 2"); // The lines are lost to the disk alone.

    fs::remove_dir(&log_file).unwrap();

    home.wait_until("the warning is gone", || warning(&home, "one").is_none());
    home.wait_until("it is written again", || read_log_lines(&home, "one").len() > 2);
    let first = read_log_lines(&home, "one").remove(0);
    assert!(first.starts_with("[xy] ") && first.contains("not written"), "{first}");
    assert_eq!(running(&home, "one"), pid);
}

/// The warning that a server's status shows.
fn warning(home: &Home, name: &str) -> Option<String> {
    status(home, name)["warnings"][0].as_str().map(str::to_owned)
}

/// Only Linux has a device that is always full, and lets a test mount a small disk.
#[cfg(target_os = "linux")]
mod full {
    use std::os::unix::fs::symlink;

    use xy_testkit::is_alive;

    use super::*;
    use crate::support::disk::SmallDisk;

    #[test]
    fn a_device_that_is_always_full_stops_neither_a_server_nor_its_stop() {
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
    fn a_full_disk_stops_neither_a_server_nor_its_stop_and_room_is_used_again() {
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
        assert!(warnings.contains("forgotten when the daemon restarts"), "{warnings}");
        assert_eq!(stopped["stopped"], json!(["two"]));
        assert!(!is_alive(pids[1]));

        disk.make_room();
        home.wait_until("the warning is gone", || warning(&home, "one").is_none());
        home.wait_until("the gap is told", || {
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
    fn a_daemon_starts_on_a_full_disk_and_says_so() {
        let home = home();
        let Some(disk) = SmallDisk::mount(&home) else {
            println!("SKIPPED: no right to mount a small disk");
            return;
        };
        home.server("one", &ticker(&home, "20"));
        home.daemon().terminate();
        // What has a block already could still be written.
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
    fn a_read_only_disk_costs_the_log_and_nothing_else_until_it_can_be_written() {
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

    /// Of the first life: no line is torn, none is twice, and all that are missing have
    /// been counted.
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
