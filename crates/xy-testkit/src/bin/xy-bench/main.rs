//! Benchmarks of a release build of xy. Prints figures, and fails if one exceeds its budget.
//!
//! - `logs`: log throughput
//! - `servers`: memory, the latency of `list`, adoption and restarts
//! - `gateway`: the cost of calls; `bodies`: latency beside clients with large bodies
//! - `search`: the quality and speed of the search for tools
//! - `tokens`: the size of tool lists for a model
//!
//! Each figure is a ratio within one run on one machine, or is printed beside its budget. Each
//! run also checks its results: a benchmark that loses or tears a line panics. Figures taken
//! beside other load are unreliable.

mod gateway;
mod search;
mod tokens;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home, read_log_lines, standin};

const LINES: usize = 1_000_000;
const LOG_ROUNDS: usize = 5;
const LIST_ROUNDS: usize = 40;
const SERVERS: usize = 100;
const RESTARTS: usize = 50;
const ADOPTIONS: usize = 5;

/// The lifetime after which a restart has no delay.
const RESET_LIFETIME: Duration = Duration::from_millis(1100);

/// The number of missed budgets.
static MISSED_BUDGETS: AtomicUsize = AtomicUsize::new(0);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["search"] => search::measure(),
        ["tokens", xy] => tokens::measure(Path::new(xy)),
        ["bodies", xy] => print_table(&[gateway::bodies::measure], xy),
        ["gateway", xy] => print_table(&[gateway::measure], xy),
        ["logs", xy] => print_table(&[logs], xy),
        ["servers", xy] => print_table(&[servers, single_shim, restarts], xy),
        _ => {
            print_line(
                "usage: xy-bench logs | servers | gateway | bodies | tokens <path of a release build of xy>",
            );
            print_line("       xy-bench search");
            return ExitCode::from(64);
        }
    }
    match MISSED_BUDGETS.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        missed => {
            print_line(&format!("!! {missed} budgets missed !!"));
            ExitCode::FAILURE
        }
    }
}

fn print_table(measures: &[fn(&Path)], xy: &str) {
    print_line(&format!("{:<46} {:>12} {:>12}  budget", "measurement", "figure", "ratio"));
    for measure in measures {
        measure(Path::new(xy));
    }
}

#[expect(clippy::print_stdout, reason = "printing figures is what it is for")]
fn print_line(line: &str) {
    println!("{line}");
}

fn print_row(what: &str, figure: &str, ratio: Option<f64>, budget: &str) {
    let ratio = ratio.map(|ratio| format!("{ratio:.2} x")).unwrap_or_default();
    print_line(&format!("{what:<46} {figure:>12} {ratio:>12}  {budget}"));
}

/// Returns the text of a budget with its outcome, and counts a missed one.
fn check_budget(is_met: bool, budget: &str) -> String {
    if is_met {
        return format!("{budget}: met");
    }
    MISSED_BUDGETS.fetch_add(1, Ordering::Relaxed);
    format!("{budget}: MISSED")
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
fn now() -> Instant {
    Instant::now()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Measures a million lines, one write(2) each: through `cat`, xy, and xy with a follower.
fn logs(xy: &Path) {
    let (mut cat, mut alone, mut followed) = (Vec::new(), Vec::new(), Vec::new());
    let mut skipped = 0;
    for _ in 0..LOG_ROUNDS {
        cat.push(through_cat(xy));
        alone.push(through_xy(xy, false).0);
        let (time, missed) = through_xy(xy, true);
        followed.push(time);
        skipped = skipped.max(missed);
    }
    let (cat, alone, followed) = (median(cat), median(alone), median(followed));
    let over_cat = |time: Duration| time.as_secs_f64() / cat.as_secs_f64();
    print_row("1,000,000 lines through cat", &millis(cat), None, "");
    print_row("1,000,000 lines through xy", &millis(alone), Some(over_cat(alone)), "");
    let ratio = over_cat(followed);
    let budget = check_budget(ratio <= 1.2, "<= 1.20 x, 0 lost, 0 torn");
    print_row("1,000,000 lines through xy, one follower", &millis(followed), Some(ratio), &budget);
    print_row("lines reported to the follower as skipped", &skipped.to_string(), None, "");
}

fn through_cat(xy: &Path) -> Duration {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let file = File::create(folder.path().join("lines")).expect("a file of our own");
    let began = now();
    let mut spew = Command::new(beside(xy, "xy-test-spew"))
        .args(["--lines", &LINES.to_string(), "--stream", "out"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test servers are built");
    let lines = spew.stdout.take().expect("it is piped");
    let cat = Command::new("cat").stdin(lines).stdout(file).status().expect("cat is everywhere");
    assert!(cat.success() && spew.wait().expect("it is our child").success());
    began.elapsed()
}

fn through_xy(xy: &Path, follow: bool) -> (Duration, u64) {
    let home = Home::new(xy);
    let spew = home.kdl_command("xy-test-spew", &["--lines", &LINES.to_string()]);
    home.server("spew", &format!("{spew}\nrestart {{ policy \"never\" }}\n"));
    home.server("idle", &home.kdl_command("xy-test-sleep-server", &["--every", "3600000"]));
    home.daemon();
    home.wait_for_state("spew", "stopped");
    fs::remove_dir_all(home.log_file("spew").parent().expect("it is in a folder")).expect("ours");

    let follower = follow.then(|| {
        home.command(&["logs", "spew", "--follow", "--tail", "0", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("xy runs")
    });
    let counting = follower.map(|mut child| {
        let out = child.stdout.take().expect("it is piped");
        (std::thread::spawn(move || count(out)), child)
    });
    let mut events = home.connect();
    events.call("events", Value::Null).expect("a subscription");
    let began = now();
    home.call("start", json!({"name": "spew"})).expect("it starts");
    while events.next(Duration::from_secs(60))["params"]["state"] != "stopped" {}
    let took = began.elapsed();

    let lines = read_log_lines(&home, "spew");
    assert_eq!(lines.len(), LINES, "nothing is lost");
    assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "nothing is torn or out of order");
    let missed = counting.map_or(0, |(counter, mut child)| {
        home.remove_server("spew");
        home.call("reload", Value::Null).expect("it reloads");
        child.wait().expect("it is our child");
        let (shown, skipped) = counter.join().expect("counting does not panic");
        assert_eq!(shown + skipped, LINES as u64, "shown and skipped are all");
        skipped
    });
    home.finish();
    (took, missed)
}

/// Returns how many lines a follower printed, and how many it reported as skipped.
fn count(out: impl std::io::Read) -> (u64, u64) {
    use std::io::{BufRead, BufReader};
    let (mut shown, mut skipped) = (0, 0);
    for line in BufReader::with_capacity(1 << 20, out).lines() {
        let line = line.expect("it is text");
        if let Some(rest) = line.split("\"count\":").nth(1) {
            let number = rest.trim_end_matches(|c: char| !c.is_ascii_digit());
            skipped += number.parse::<u64>().expect("a count is a number");
        } else {
            shown += 1;
        }
    }
    (shown, skipped)
}

/// Measures the memory of a hundred servers, and the latency of listing them.
fn servers(xy: &Path) {
    let idle = Home::new(xy);
    let daemon = idle.daemon();
    let (rss, pss) = memory(daemon.pid);
    print_row("daemon, idle: RSS", &megabytes(rss), None, &check_budget(rss <= 12_000, "<= 12 MB"));
    print_row("daemon, idle: PSS", &megabytes(pss), None, "");
    idle.finish();

    let home = Home::new(xy);
    let server = home.kdl_command("xy-test-sleep-server", &["--every", "3600000"]);
    for n in 0..SERVERS {
        home.server(&format!("s{n:03}"), &server);
    }
    let daemon = home.daemon();
    home.wait_until("all servers run", || {
        let listed = home.call("list", Value::Null).expect("a list");
        listed.as_array().is_some_and(|all| all.iter().all(|one| one["state"] == "running"))
    });
    let (rss, pss) = memory(daemon.pid);
    let budget = check_budget(rss <= 25_000, "<= 25 MB");
    print_row("daemon, 100 stdio servers: RSS", &megabytes(rss), None, &budget);
    print_row("daemon, 100 stdio servers: PSS", &megabytes(pss), None, "");
    let shims = shims_of(daemon.pid);
    assert_eq!(shims.len(), SERVERS);
    let (rss, pss) =
        shims.iter().map(|&pid| memory(pid)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let (rss, pss) = (rss / SERVERS as u64, pss / SERVERS as u64);
    print_row("one shim of 100: RSS", &megabytes(rss), None, "");
    print_row(
        "one shim of 100: PSS",
        &megabytes(pss),
        None,
        &check_budget(pss <= 1000, "<= 1 MB, aim 0.5"),
    );

    let time = |command: &mut Command| {
        let began = now();
        let output = command.output().expect("it runs");
        assert!(output.status.success());
        began.elapsed()
    };
    let (mut list, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..LIST_ROUNDS {
        list.push(time(&mut home.command(&["list"])));
        nothing.push(time(&mut Command::new("true")));
    }
    let (list, nothing) = (median(list), median(nothing));
    print_row("`true`, for comparison", &millis(nothing), None, "");
    let ratio = list.as_secs_f64() / nothing.as_secs_f64();
    let budget = check_budget(list <= Duration::from_millis(10), "<= 10 ms");
    print_row("`xy list`, 100 servers", &millis(list), Some(ratio), &budget);
    adoptions(&home, daemon);
    home.finish();
}

/// Measures how long a new daemon takes to adopt all servers after a SIGKILL of the old one.
fn adoptions(home: &Home, mut daemon: Daemon) {
    let pids = |home: &Home| -> Vec<Value> {
        let listed = home.call("list", Value::Null).expect("a list");
        let all = listed.as_array().expect("a list is an array").iter();
        all.filter(|one| one["state"] == "running").map(|one| one["pid"].clone()).collect()
    };
    let before = pids(home);
    assert_eq!(before.len(), SERVERS);
    let mut times = Vec::new();
    for _ in 0..ADOPTIONS {
        daemon.kill9();
        let began = now();
        daemon = home.daemon();
        while pids(home) != before {
            assert!(began.elapsed() < Duration::from_secs(20), "the new daemon adopts all servers");
        }
        times.push(began.elapsed());
    }
    let what = "kill -9 of the daemon -> all 100 adopted";
    print_row(what, &millis(median(times)), None, "");
}

/// Measures the memory of a single shim, which shares its code only with the daemon.
fn single_shim(xy: &Path) {
    let home = Home::new(xy);
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "3600000"]));
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let shims = shims_of(daemon.pid);
    let [shim] = shims[..] else { panic!("one server has one shim: {shims:?}") };
    let (rss, pss) = memory(shim);
    print_row("one shim alone: RSS", &megabytes(rss), None, "");
    print_row("one shim alone: PSS", &megabytes(pss), None, "");
    home.finish();
}

/// Measures the time from the death of a server to its replacement process.
fn restarts(xy: &Path) {
    let home = Home::new(xy);
    let server = home.kdl_command("xy-test-sleep-server", &["--every", "3600000"]);
    let restart = "restart { policy \"always\"; backoff-initial \"0s\"; backoff-max \"0s\"; \
                   jitter #false; max-retries-per-minute 0; max-attempts 0 }\n";
    home.server("one", &format!("{server}{restart}"));
    home.daemon();
    let mut pid = home.wait_for_state("one", "running")["pid"].clone();
    let mut events = home.connect();
    events.call("events", Value::Null).expect("a subscription");
    let mut times = Vec::new();
    for _ in 0..RESTARTS {
        standin::linger(RESET_LIFETIME);
        let killed = pid.as_i64().and_then(|it| i32::try_from(it).ok()).and_then(Pid::from_raw);
        let began = now();
        kill_process(killed.expect("it runs"), Signal::KILL).expect("it lives");
        // Uses the event stream, because polling would slow the daemon down.
        let after = loop {
            let reported = events.next(Duration::from_secs(20))["params"]["pid"].take();
            if !reported.is_null() && reported != pid {
                break reported;
            }
        };
        times.push(began.elapsed());
        pid = after;
    }
    let time = median(times);
    let budget = check_budget(time <= Duration::from_millis(10), "<= 10 ms");
    print_row("death of a server -> its successor's pid", &millis(time), None, &budget);
    home.finish();
}

/// Returns the resident and the proportional memory of a process, in kB.
fn memory(pid: u32) -> (u64, u64) {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let field = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name)).expect("the kernel says");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    };
    (field("Rss:"), field("Pss:"))
}

fn shims_of(daemon: u32) -> Vec<u32> {
    let children = fs::read_dir(format!("/proc/{daemon}/task")).expect("it lives");
    children
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

fn megabytes(kilobytes: u64) -> String {
    format!("{}.{:02} MB", kilobytes / 1000, kilobytes % 1000 / 10)
}

fn beside(xy: &Path, name: &str) -> PathBuf {
    xy.with_file_name(name)
}
