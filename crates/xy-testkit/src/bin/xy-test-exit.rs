//! A server that exits by itself.
//!
//! - `--code N`: exit code (default: 1)
//! - `--after MS`: time until it exits (default: 0)
//! - `--say TEXT`: text to write to stderr first
//! - `--signal N`: signal to die of, instead of exiting
//! - `--lives FILE --until N`: only the first N runs exit so; later ones run until they are
//!   stopped. `FILE` counts the runs.

use std::fs::{self, File};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use xy_testkit::standin::{self, Flags, Output};

#[derive(Default)]
struct Plan {
    code: Option<u8>,
    after: Duration,
    say: Option<String>,
    signal: Option<i32>,
    lives: Option<String>,
    until: u64,
}

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let plan = read_flags();
    let life = plan.lives.as_deref().map(count_this_life);
    if let Some(text) = &plan.say {
        Output::Stderr.say(text);
    }
    if life.is_some_and(|life| life > plan.until) {
        return standin::tick(Output::Stderr, Duration::from_secs(1));
    }
    standin::linger(plan.after);
    if let Some(signal) = plan.signal {
        die_of(signal);
    }
    ExitCode::from(plan.code.unwrap_or(1))
}

fn read_flags() -> Plan {
    let mut plan = Plan::default();
    let mut flags = Flags::of_this_process();
    while let Some(flag) = flags.next_flag() {
        match flag.as_str() {
            "--code" => plan.code = Some(flags.number().try_into().expect("a code up to 255")),
            "--after" => plan.after = flags.millis(),
            "--say" => plan.say = Some(flags.value()),
            "--signal" => plan.signal = Some(flags.number().try_into().expect("a signal")),
            "--lives" => plan.lives = Some(flags.value()),
            "--until" => plan.until = flags.number(),
            _ => panic!("unknown flag `{flag}`"),
        }
    }
    plan
}

/// Appends a line to `file` and returns the number of its lines.
fn count_this_life(file: &str) -> u64 {
    let mut lives = File::options().append(true).create(true).open(file).expect("the lives");
    lives.write_all(format!("{}\n", std::process::id()).as_bytes()).expect("one more life");
    let text = fs::read_to_string(file).expect("the lives");
    text.lines().count().try_into().expect("a small number")
}

fn die_of(signal: i32) {
    // Tests that look for leaked files would find a core file.
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(Resource::Core, no_core);
    signal_hook::low_level::emulate_default_handler(signal).expect("a signal that can be raised");
}
