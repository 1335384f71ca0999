//! A server that writes numbered lines of equal length, as fast as they are read.
//!
//! - `--lines N`: number of lines (default: 10)
//! - `--stream out|err|both`: where to write (default: `err`)
//! - `--flush line|block`: when to write (default: `line`)
//! - `--text PREFIX`: start of each line (default: `line `)
//! - `--no-newline-at-end`: omit the newline after the last line
//! - `--bytes-without-newline N`: number of bytes to write after the lines (default: 0)
//! - `--then exit|sleep`: what to do afterwards (default: `exit`)

use std::io;
use std::process::ExitCode;

use xy_testkit::standin::{self, Flags, Output};

/// Size of a write with `--flush block`: the default capacity of a pipe.
const BLOCK: usize = 64 * 1024;

enum Flush {
    Line,
    Block,
}

impl Flush {
    /// Returns how many bytes of `unwritten` to write now. A block may end within a line.
    fn write_len(&self, unwritten: &[u8]) -> Option<usize> {
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
        return ExitCode::FAILURE; // The reader has closed the pipe.
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
        while let Some(length) = plan.flush.write_len(&unwritten) {
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
