//! Writes numbered lines of one width, as fast as they are read.
//!
//! `--lines N` (10), `--stream out|err|both` (err), `--flush line|block` (line),
//! `--text PREFIX` (`line `), `--no-newline-at-end`, `--bytes-without-newline N`
//! after the lines, `--then exit|sleep` (exit).

use std::io;
use std::process::ExitCode;

use xy_testkit::standin::{self, Flags, Output};

/// How much one write holds with `--flush block`: as much as a pipe.
const BLOCK: usize = 64 * 1024;

enum Flush {
    Line,
    Block,
}

impl Flush {
    /// How much of `unwritten` is to be written now; a block cuts lines where it ends.
    fn due(&self, unwritten: &[u8]) -> Option<usize> {
        match self {
            Self::Line => (!unwritten.is_empty()).then_some(unwritten.len()),
            Self::Block => (unwritten.len() >= BLOCK).then_some(BLOCK),
        }
    }
}

struct Plan {
    lines: u64,
    outputs: Vec<Output>,
    flush: Flush,
    prefix: String,
    newline_at_end: bool,
    bytes_without_newline: usize,
    then_sleep: bool,
}

fn main() -> ExitCode {
    standin::live_at_most(standin::SAFETY_LIMIT);
    let plan = read_flags();
    if spew(&plan).is_err() {
        return ExitCode::FAILURE; // The reader is gone.
    }
    if plan.then_sleep {
        return standin::sleep(Output::Stderr);
    }
    ExitCode::SUCCESS
}

fn read_flags() -> Plan {
    let mut plan = Plan {
        lines: 10,
        outputs: vec![Output::Stderr],
        flush: Flush::Line,
        prefix: "line ".to_owned(),
        newline_at_end: true,
        bytes_without_newline: 0,
        then_sleep: false,
    };
    let mut flags = Flags::of_this_process();
    while let Some(flag) = flags.next_flag() {
        match flag.as_str() {
            "--lines" => plan.lines = flags.number(),
            "--stream" => plan.outputs = outputs(&flags.value()),
            "--flush" => plan.flush = flush(&flags.value()),
            "--text" => plan.prefix = flags.value(),
            "--no-newline-at-end" => plan.newline_at_end = false,
            "--bytes-without-newline" => {
                plan.bytes_without_newline = flags.number().try_into().expect("a size");
            }
            "--then" => plan.then_sleep = sleeps(&flags.value()),
            _ => panic!("unknown flag `{flag}`"),
        }
    }
    plan
}

fn outputs(word: &str) -> Vec<Output> {
    match word {
        "out" => vec![Output::Stdout],
        "err" => vec![Output::Stderr],
        "both" => vec![Output::Stdout, Output::Stderr],
        _ => panic!("`--stream` is out, err or both, not `{word}`"),
    }
}

fn flush(word: &str) -> Flush {
    match word {
        "line" => Flush::Line,
        "block" => Flush::Block,
        _ => panic!("`--flush` is line or block, not `{word}`"),
    }
}

fn sleeps(word: &str) -> bool {
    match word {
        "exit" => false,
        "sleep" => true,
        _ => panic!("`--then` is exit or sleep, not `{word}`"),
    }
}

fn spew(plan: &Plan) -> io::Result<()> {
    let mut unwritten = Vec::with_capacity(2 * BLOCK);
    for number in 1..=plan.lines {
        unwritten.extend_from_slice(format!("{}{number:07}", plan.prefix).as_bytes());
        if number < plan.lines || plan.newline_at_end {
            unwritten.push(b'\n');
        }
        while let Some(length) = plan.flush.due(&unwritten) {
            write_to_all(plan, &unwritten[..length])?;
            unwritten.drain(..length);
        }
    }
    write_to_all(plan, &unwritten)?;
    write_to_all(plan, &vec![b'x'; plan.bytes_without_newline])
}

fn write_to_all(plan: &Plan, bytes: &[u8]) -> io::Result<()> {
    plan.outputs.iter().try_for_each(|output| output.write(bytes))
}
