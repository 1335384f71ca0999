//! The only file that writes to stdout and stderr.
//!
//! Texts come with their colours in them, and lose them here unless a terminal
//! reads them (and `NO_COLOR` is not set). If a terminal reads them, `terminal.rs` escapes
//! whatever else it would obey. Nothing here panics on a closed stdout.

pub(crate) mod terminal;

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
    stdout_reader: Reader,
    stderr_reader: Reader,
}

/// Who reads an output.
#[derive(Debug, Clone, Copy)]
struct Reader {
    is_terminal: bool,
    has_colour: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self {
            stdout: BufWriter::with_capacity(BUFFER, io::stdout()),
            stdout_reader: Reader {
                is_terminal: io::stdout().is_terminal(),
                has_colour: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            },
            stderr_reader: Reader {
                is_terminal: io::stderr().is_terminal(),
                has_colour: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
            },
        }
    }

    /// Whether what is printed may have colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.stdout_reader.has_colour
    }

    /// Whether a terminal reads stdout, and would obey what is written.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout_reader.is_terminal
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
        let text = plain_unless(self.stdout_reader.has_colour, text);
        self.write_raw(terminal::text(&text, self.stdout_reader.is_terminal).as_bytes())
    }

    /// Prints a text with the colours that it has.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.write_raw(terminal::text(text, self.stdout_reader.is_terminal).as_bytes())
    }

    /// Prints a text as it is, also to a terminal: only if the user has asked for that.
    pub(crate) fn write_unescaped(&mut self, text: &str) -> Result<(), Failure> {
        self.write_raw(text.as_bytes())
    }

    fn write_raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(not_written)
    }

    /// Prints JSON as it came, and a newline. A terminal gets the same JSON, escaped.
    pub(crate) fn json(&mut self, value: &RawValue) -> Result<(), Failure> {
        self.write_json(value.get())
    }

    fn write_json(&mut self, json: &str) -> Result<(), Failure> {
        self.write_raw(terminal::json(json, self.stdout_reader.is_terminal).as_bytes())?;
        self.write_raw(b"\n")
    }

    /// Prints an error the way scripts read it.
    pub(crate) fn json_error(&mut self, error: &CallError) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            error: &'a CallError,
        }
        let line = serde_json::to_string(&Line { error }).expect("errors always serialise");
        self.write_json(&line)?;
        self.flush()
    }

    /// Lets the reader see everything printed so far.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(not_written)
    }

    /// Says something on stderr. If nobody listens, there is nobody to complain to.
    pub(crate) fn tell(&mut self, text: &str) {
        self.pass_on(&plain_unless(self.stderr_reader.has_colour, text));
    }

    /// Hands on to stderr what somebody else has written, with the colours that it has.
    pub(crate) fn pass_on(&mut self, text: &str) {
        let _ = self.stdout.flush(); // What was said before is seen before.
        let text = terminal::text(text, self.stderr_reader.is_terminal);
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Something that moves while the person at the terminal waits.
    pub(crate) fn spinner(&mut self, text: impl Into<Cow<'static, str>>) -> Spinner {
        let _ = self.stdout.flush();
        // Draws on stderr, and not at all if that is no terminal.
        let text = terminal::text(&text.into(), true).into_owned();
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
    pub(crate) fn say(&self, text: &str) {
        self.bar.set_message(terminal::text(text, true).into_owned());
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => sources(&path, found),
                Some(it) if it == "rs" => found.push(path),
                _ => {}
            }
        }
    }

    /// Every verb prints through `Output`, and `Output` writes only what `terminal.rs` let pass.
    #[test]
    fn nothing_is_printed_past_the_escaping() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        sources(&root, &mut found);
        assert!(found.len() > 40, "{}", found.len());
        for path in found.iter().filter(|path| !path.ends_with("src/output.rs")) {
            let text = fs::read_to_string(path).unwrap();
            for way in ["io::stdout(", "io::stderr(", "println!", "print!(", "stdio::stdout("] {
                assert!(!text.contains(way), "{} has {way}", path.display());
            }
        }
        let own = fs::read_to_string(root.join("output.rs")).unwrap();
        let own = own.split("#[cfg(test)]").next().unwrap();
        assert_eq!(own.matches("write_all(").count(), 2, "one for stdout, one for stderr");
        let raw: Vec<&str> = own.lines().filter(|it| it.contains("self.write_raw(")).collect();
        assert_eq!(raw.len(), 5, "{raw:?}");
        let is_escaped = |it: &&&str| it.contains("terminal::") || it.contains(r#"b"\n""#);
        assert_eq!(raw.iter().filter(is_escaped).count(), 4, "but for the one that says so");
    }
}
