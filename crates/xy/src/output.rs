//! The only file that writes to stdout and stderr.
//!
//! Texts come with their colours in them, and lose them here unless a terminal
//! reads them (and `NO_COLOR` is not set). Nothing here panics on a closed stdout.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::value::RawValue;
use xy_protocol::error::CallError;

use crate::failure::Failure;

/// Gathered before it is written; a follower of a busy log prints hundreds of lines with it.
const BUFFER: usize = 64 * 1024;

/// stdout for what was asked for, stderr for what there is to say about it.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: BufWriter<Stdout>,
    stdout_has_colour: bool,
    stderr_has_colour: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self {
            stdout: BufWriter::with_capacity(BUFFER, io::stdout()),
            stdout_has_colour: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            stderr_has_colour: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
        }
    }

    /// Whether what is printed may have colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.stdout_has_colour
    }

    /// Whether a terminal reads stdout, and would obey what is written.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout.get_ref().is_terminal()
    }

    /// Columns of the terminal that reads stdout; `None` if none does.
    pub(crate) fn width(&self) -> Option<usize> {
        if !self.is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(self.stdout.get_ref()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    }

    /// Prints a text of ours; its colours go if nobody sees them.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.write(plain_unless(self.stdout_has_colour, text).as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(not_written)
    }

    /// Prints JSON as it came, and a newline.
    pub(crate) fn json(&mut self, value: &RawValue) -> Result<(), Failure> {
        self.write(value.get().as_bytes())?;
        self.write(b"\n")
    }

    /// Prints an error the way scripts read it.
    pub(crate) fn json_error(&mut self, error: &CallError) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            error: &'a CallError,
        }
        let line = serde_json::to_string(&Line { error }).expect("errors always serialise");
        self.write(line.as_bytes())?;
        self.write(b"\n")?;
        self.flush()
    }

    /// Lets the reader see everything printed so far.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(not_written)
    }

    /// Says something on stderr. If nobody listens, there is nobody to complain to.
    pub(crate) fn tell(&mut self, text: &str) {
        self.tell_bytes(plain_unless(self.stderr_has_colour, text).as_bytes());
    }

    /// Hands on to stderr what somebody else has written.
    pub(crate) fn tell_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stdout.flush(); // What was said before is seen before.
        let _ = io::stderr().lock().write_all(bytes);
    }

    /// Something that moves while the person at the terminal waits.
    pub(crate) fn spinner(&mut self, text: impl Into<Cow<'static, str>>) -> Spinner {
        let _ = self.stdout.flush();
        // Draws on stderr, and not at all if that is no terminal.
        let bar = ProgressBar::new_spinner().with_message(text);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner { bar }
    }
}

/// stdout as the carrier of a protocol: past every buffer and lock, so that a reader who has
/// stopped reading keeps nobody else from ending.
#[derive(Debug)]
pub(crate) struct Protocol {
    stdout: BorrowedFd<'static>,
}

impl Protocol {
    pub(crate) fn new() -> Self {
        Self { stdout: rustix::stdio::stdout() }
    }

    /// Writes all of it, waiting even if somebody made stdout non-blocking.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            match rustix::io::write(self.stdout, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut polled = [PollFd::new(&self.stdout, PollFlags::OUT)];
                    let _ = poll(&mut polled, None); // If it fails, the write will tell.
                }
                Err(cause) => return Err(not_written(cause.into())),
            }
        }
        Ok(())
    }
}

/// Gone without a trace when dropped.
#[derive(Debug)]
pub(crate) struct Spinner {
    bar: ProgressBar,
}

impl Spinner {
    /// Who can say something else beside it meanwhile; nobody, if nobody sees it.
    pub(crate) fn teller(&self) -> Option<Teller> {
        (!self.bar.is_hidden()).then(|| Teller { bar: self.bar.clone() })
    }
}

/// Says what a spinner shows, from anywhere.
#[derive(Debug, Clone)]
pub(crate) struct Teller {
    bar: ProgressBar,
}

impl Teller {
    pub(crate) fn say(&self, text: String) {
        self.bar.set_message(text);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn plain_unless(has_colour: bool, text: &str) -> Cow<'_, str> {
    if has_colour {
        return Cow::Borrowed(text);
    }
    Cow::Owned(anstream::adapter::strip_str(text).to_string())
}

fn not_written(cause: io::Error) -> Failure {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return Failure::NobodyReads;
    }
    Failure::internal("the output could not be written", cause)
}
