//! Output to stdout and stderr; no other module writes to them.
//!
//! Texts contain colour codes, which are removed here unless a terminal reads the output and
//! `NO_COLOR` is not set. For a terminal, `terminal.rs` escapes all other control sequences.
//! Nothing here panics if stdout is closed.

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

/// Size of the stdout buffer. It lets `xy logs -f` write hundreds of lines at once.
const BUFFER: usize = 64 * 1024;

/// The output of a verb: results go to stdout, messages to stderr.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: BufWriter<Stdout>,
    stdout_reader: Reader,
    stderr_reader: Reader,
}

/// The properties of the reader of a stream.
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

    /// Returns true if stdout is printed in colour.
    pub(crate) fn has_colour(&self) -> bool {
        self.stdout_reader.has_colour
    }

    /// Returns true if stdout is a terminal, which interprets control sequences.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout_reader.is_terminal
    }

    /// Returns true if stderr is a terminal.
    pub(crate) fn is_stderr_terminal(&self) -> bool {
        self.stderr_reader.is_terminal
    }

    /// Returns the number of columns of the terminal; `None` if stdout is not a terminal.
    pub(crate) fn width(&self) -> Option<usize> {
        if !self.is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(self.stdout.get_ref()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    }

    /// Prints a text of xy, without its colours unless stdout shows them.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Failure> {
        let text = plain_unless(self.stdout_reader.has_colour, text);
        self.write_raw(terminal::text(&text, self.stdout_reader.is_terminal).as_bytes())
    }

    /// Prints a text and keeps its colours.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.write_raw(terminal::text(text, self.stdout_reader.is_terminal).as_bytes())
    }

    /// Prints a text without escaping it, even to a terminal. Only for users who request this.
    pub(crate) fn write_unescaped(&mut self, text: &str) -> Result<(), Failure> {
        self.write_raw(text.as_bytes())
    }

    fn write_raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(write_error)
    }

    /// Prints JSON and a newline. For a terminal, control characters in it are escaped.
    pub(crate) fn json(&mut self, value: &RawValue) -> Result<(), Failure> {
        self.write_json(value.get())
    }

    fn write_json(&mut self, json: &str) -> Result<(), Failure> {
        self.write_raw(terminal::json(json, self.stdout_reader.is_terminal).as_bytes())?;
        self.write_raw(b"\n")
    }

    /// Prints an error as JSON, for scripts.
    pub(crate) fn json_error(&mut self, error: &CallError) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            error: &'a CallError,
        }
        let line = serde_json::to_string(&Line { error }).expect("errors always serialise");
        self.write_json(&line)?;
        self.flush()
    }

    /// Writes all buffered output.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(write_error)
    }

    /// Prints a message to stderr, and ignores failures, as they cannot be reported anywhere.
    pub(crate) fn print_stderr(&mut self, text: &str) {
        self.write_stderr(&plain_unless(self.stderr_reader.has_colour, text));
    }

    /// Writes the text of another process to stderr, and keeps its colours.
    pub(crate) fn write_stderr(&mut self, text: &str) {
        let _ = self.stdout.flush(); // Earlier output must appear first.
        let text = terminal::text(text, self.stderr_reader.is_terminal);
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Shows a spinner while the user waits.
    pub(crate) fn spinner(&mut self, text: impl Into<Cow<'static, str>>) -> Spinner {
        let _ = self.stdout.flush();
        // It draws on stderr, and only if that is a terminal.
        let text = terminal::text(&text.into(), true).into_owned();
        let bar = ProgressBar::new_spinner().with_message(text);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner { bar }
    }
}

/// Unbuffered stdout that carries a protocol. It takes no lock, so a client that stops reading
/// cannot prevent the process from exiting.
#[derive(Debug)]
pub(crate) struct Protocol {
    stdout: BorrowedFd<'static>,
}

impl Protocol {
    pub(crate) fn new() -> Self {
        Self { stdout: rustix::stdio::stdout() }
    }

    /// Writes all bytes. Blocks even if another process has made stdout non-blocking.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            match rustix::io::write(self.stdout, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut polled = [PollFd::new(&self.stdout, PollFlags::OUT)];
                    let _ = poll(&mut polled, None); // If polling fails, the next write reports it.
                }
                Err(cause) => return Err(write_error(cause.into())),
            }
        }
        Ok(())
    }
}

/// A spinner on the terminal, removed when dropped.
#[derive(Debug)]
pub(crate) struct Spinner {
    bar: ProgressBar,
}

impl Spinner {
    /// Returns a handle that can change the text; `None` if the spinner is not shown.
    pub(crate) fn handle(&self) -> Option<SpinnerHandle> {
        (!self.bar.is_hidden()).then(|| SpinnerHandle { bar: self.bar.clone() })
    }
}

/// A handle that changes the text of a spinner from any thread.
#[derive(Debug, Clone)]
pub(crate) struct SpinnerHandle {
    bar: ProgressBar,
}

impl SpinnerHandle {
    pub(crate) fn set_text(&self, text: &str) {
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

fn write_error(cause: io::Error) -> Failure {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return Failure::StdoutClosed;
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

    /// All verbs print through `Output`, which passes all text through `terminal.rs`.
    #[test]
    fn all_output_is_escaped() {
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
        assert_eq!(raw.iter().filter(is_escaped).count(), 4, "all but `write_unescaped`");
    }
}
