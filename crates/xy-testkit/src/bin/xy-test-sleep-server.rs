//! A server that writes ticks until SIGTERM or the end of stdin.
//!
//! - `--every MS`: interval between ticks (default: 1000)
//! - `--stdout`: write to stdout instead of stderr

use std::process::ExitCode;
use std::time::Duration;

use xy_testkit::standin::{self, Flags, Output};

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let mut every = Duration::from_secs(1);
    let mut output = Output::Stderr;
    let mut flags = Flags::of_this_process();
    while let Some(flag) = flags.next_flag() {
        match flag.as_str() {
            "--every" => every = flags.millis(),
            "--stdout" => output = Output::Stdout,
            _ => panic!("unknown flag `{flag}`"),
        }
    }
    output.say(&format!("started {}", std::process::id()));
    standin::tick(output, every)
}
