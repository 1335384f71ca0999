//! Reads lines from stdin, and writes each to the input log before it is handled.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use crate::options::Options;

/// Maximum length of a line; no message of a test is longer.
const MAX_LINE_LENGTH: u64 = 256 << 20;

/// The read buffer, as large as a pipe.
const BUFFER: usize = 64 * 1024;

/// Stdin without the buffer of the standard library.
struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

/// Calls `handle` with each line, without its newline, until stdin ends.
pub(crate) fn each_line(options: &Options, mut handle: impl FnMut(&[u8])) {
    let mut input_log = options.input_log.as_ref().map(|path| {
        File::options().append(true).create(true).open(path).expect("the input log can be written")
    });
    // With a buffer of one byte, nothing leaves the pipe before it is handled.
    let capacity = if options.has("--unbuffered") { 1 } else { BUFFER };
    let mut stdin = BufReader::with_capacity(capacity, Stdin);
    let mut line = Vec::new();
    while matches!((&mut stdin).take(MAX_LINE_LENGTH).read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(input_log) = &mut input_log {
            input_log.write_all(&line).expect("the input log can be written");
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        handle(&line);
        line.clear();
    }
}

/// Closes the read end of the pipe, so that the client's writes fail.
pub(crate) fn close() {
    let nothing = File::open("/dev/null").expect("it is everywhere");
    rustix::stdio::dup2_stdin(nothing).expect("stdin can be replaced");
}
