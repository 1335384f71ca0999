//! Where messages go out: one at a time, one write each, and not all that should.

use std::fs::File;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xy_testkit::standin::Output;

use crate::plan::Plan;

/// Said before the first message with `--garbage-first`. Some of it is JSON, none of it is
/// a message; one line is no text at all.
const BEFORE_ALL: &[u8] = b"Starting up...\n\n{\"level\":\"info\",\"msg\":\"ready\"}\n42\n\
    \"a string\"\n\xff\xfe not UTF-8 \x80\n{\"jsonrpc\":\"2.0\"\n";

/// Said before each message with `--garbage-first`.
const BETWEEN: &[u8] = b"DEBUG about to say something\n";

/// A way out to one client.
#[derive(Debug)]
pub(crate) struct Outlet(Mutex<Line>);

/// What leaves over HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// The answer to a request.
    Answer(Vec<u8>),
    /// Anything else.
    Other,
}

#[derive(Debug)]
enum Way {
    Stdout,
    Http(SyncSender<Out>),
}

/// The way out while one thread has it.
#[derive(Debug)]
pub(crate) struct Line {
    way: Way,
    written: u64,
    mute_after: u64,
    close_after: u64,
    has_garbage: bool,
    /// Messages are written over several lines.
    is_pretty: bool,
}

impl Outlet {
    /// To stdout, with what the plan says is wrong with it.
    pub(crate) fn to_stdout(plan: &Plan) -> Self {
        let line = Line {
            way: Way::Stdout,
            written: 0,
            mute_after: plan.mute_after,
            close_after: plan.close_stdout_after,
            has_garbage: plan.has("--garbage-first"),
            is_pretty: plan.has("--pretty"),
        };
        if line.has_garbage {
            line.bytes(BEFORE_ALL);
        }
        line.close_if_due();
        Self(Mutex::new(line))
    }

    /// To whoever holds the other end.
    pub(crate) fn to_http(answers: SyncSender<Out>) -> Self {
        let line = Line {
            way: Way::Http(answers),
            written: 0,
            mute_after: u64::MAX,
            close_after: u64::MAX,
            has_garbage: false,
            is_pretty: false,
        };
        Self(Mutex::new(line))
    }

    /// Has it alone for a while.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says the answer to a request.
    pub(crate) fn answer(&self, message: String) {
        self.hold().message(message, true);
    }

    /// Says something else: a notification, a request of ours.
    pub(crate) fn say(&self, message: String) {
        self.hold().message(message, false);
    }
}

impl Line {
    /// Says a message.
    pub(crate) fn message(&mut self, message: String, is_answer: bool) {
        let mut bytes = message.into_bytes();
        if let Way::Http(answers) = &self.way {
            let out = if is_answer { Out::Answer(bytes) } else { Out::Other };
            let _ = answers.send(out); // The client may have left.
            return;
        }
        if self.has_garbage {
            self.bytes(BETWEEN);
        }
        if self.is_pretty {
            let message: serde_json::Value = serde_json::from_slice(&bytes).expect("ours is JSON");
            bytes = serde_json::to_vec_pretty(&message).expect("it was JSON");
        }
        bytes.push(b'\n');
        self.bytes(&bytes);
        self.count();
    }

    /// Writes bytes that are no message, or a part of one.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        if matches!(self.way, Way::Stdout) && self.written < self.mute_after {
            let _ = Output::Stdout.write(bytes); // The client may have left.
        }
    }

    /// Counts a message that was written in pieces.
    pub(crate) fn count(&mut self) {
        self.written += 1;
        self.close_if_due();
    }

    fn close_if_due(&self) {
        if self.written == self.close_after {
            self.close();
        }
    }

    /// Nobody hears anything from now on.
    pub(crate) fn close(&self) {
        if matches!(self.way, Way::Stdout) {
            let nowhere = File::options().write(true).open("/dev/null").expect("it is everywhere");
            rustix::stdio::dup2_stdout(nowhere).expect("stdout can be replaced");
        }
    }
}
