//! What comes in: lines, noted in the diary before they are heard.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use crate::plan::Plan;

/// No message of a test is longer.
const LONGEST_LINE: u64 = 256 << 20;

/// As much as a pipe holds.
const BUFFER: usize = 64 * 1024;

/// Stdin without std's own buffer.
struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

/// Gives each line to `hear`, without its end, until stdin ends.
pub(crate) fn each_line(plan: &Plan, mut hear: impl FnMut(&[u8])) {
    let mut diary = plan.diary.as_ref().map(|path| {
        File::options().append(true).create(true).open(path).expect("the diary can be written")
    });
    // A buffer of one byte takes nothing out of the pipe that is not heard.
    let capacity = if plan.has("--unbuffered") { 1 } else { BUFFER };
    let mut stdin = BufReader::with_capacity(capacity, Stdin);
    let mut line = Vec::new();
    while matches!((&mut stdin).take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(diary) = &mut diary {
            diary.write_all(&line).expect("the diary can be written");
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        hear(&line);
        line.clear();
    }
}

/// Closes our end: whoever writes is told that nobody reads.
pub(crate) fn close() {
    let nothing = File::open("/dev/null").expect("it is everywhere");
    rustix::stdio::dup2_stdin(nothing).expect("stdin can be replaced");
}
