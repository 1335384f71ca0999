//! Writes messages to one client: one at a time, one write each, with the faults of the options.

use std::fs::File;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xy_testkit::standin::Output;

use crate::options::Options;

/// The output before the first message, with `--garbage-first`. Some lines are JSON, none is a
/// message, and one is not UTF-8.
const GARBAGE_AT_START: &[u8] = b"Starting up...\n\n{\"level\":\"info\",\"msg\":\"ready\"}\n42\n\
    \"a string\"\n\xff\xfe not UTF-8 \x80\n{\"jsonrpc\":\"2.0\"\n";

/// The output before each message, with `--garbage-first`.
const GARBAGE_BEFORE_MESSAGE: &[u8] = b"DEBUG about to say something\n";

/// The connection to one client.
#[derive(Debug)]
pub(crate) struct Responder(Mutex<Writer>);

/// A message to an HTTP client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// The answer to a request.
    Answer(Vec<u8>),
    /// Any other message, whose text is dropped.
    Other,
}

#[derive(Debug)]
enum Transport {
    Stdout,
    Http(SyncSender<Outgoing>),
}

/// The writer of a [`Responder`].
#[derive(Debug)]
pub(crate) struct Writer {
    transport: Transport,
    written: u64,
    mute_after: u64,
    close_after: u64,
    has_garbage: bool,
    /// True if messages are written over several lines.
    is_pretty: bool,
}

impl Responder {
    /// Creates a responder to stdout, with the faults of the options.
    pub(crate) fn to_stdout(options: &Options) -> Self {
        let writer = Writer {
            transport: Transport::Stdout,
            written: 0,
            mute_after: options.mute_after,
            close_after: options.close_stdout_after,
            has_garbage: options.has("--garbage-first"),
            is_pretty: options.has("--pretty"),
        };
        if writer.has_garbage {
            writer.write_bytes(GARBAGE_AT_START);
        }
        writer.close_if_due();
        Self(Mutex::new(writer))
    }

    /// Creates a responder that sends to the receiver of `answers`.
    pub(crate) fn to_http(answers: SyncSender<Outgoing>) -> Self {
        let writer = Writer {
            transport: Transport::Http(answers),
            written: 0,
            mute_after: u64::MAX,
            close_after: u64::MAX,
            has_garbage: false,
            is_pretty: false,
        };
        Self(Mutex::new(writer))
    }

    /// Locks the writer, so that other messages wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the response to a request.
    pub(crate) fn answer(&self, message: String) {
        self.lock().write_message(message, true);
    }

    /// Sends a notification, or a request to the client.
    pub(crate) fn send(&self, message: String) {
        self.lock().write_message(message, false);
    }
}

impl Writer {
    /// Writes a message.
    pub(crate) fn write_message(&mut self, message: String, is_answer: bool) {
        let mut bytes = message.into_bytes();
        if let Transport::Http(answers) = &self.transport {
            let out = if is_answer { Outgoing::Answer(bytes) } else { Outgoing::Other };
            let _ = answers.send(out); // The client may have disconnected.
            return;
        }
        if self.has_garbage {
            self.write_bytes(GARBAGE_BEFORE_MESSAGE);
        }
        if self.is_pretty {
            let message: serde_json::Value = serde_json::from_slice(&bytes).expect("ours is JSON");
            bytes = serde_json::to_vec_pretty(&message).expect("it was JSON");
        }
        bytes.push(b'\n');
        self.write_bytes(&bytes);
        self.count_message();
    }

    /// Writes bytes that are not a whole message.
    pub(crate) fn write_bytes(&self, bytes: &[u8]) {
        if matches!(self.transport, Transport::Stdout) && self.written < self.mute_after {
            let _ = Output::Stdout.write(bytes); // The client may have disconnected.
        }
    }

    /// Counts a message that was written in pieces.
    pub(crate) fn count_message(&mut self) {
        self.written += 1;
        self.close_if_due();
    }

    fn close_if_due(&self) {
        if self.written == self.close_after {
            self.close();
        }
    }

    /// Closes stdout: all later output is discarded.
    pub(crate) fn close(&self) {
        if matches!(self.transport, Transport::Stdout) {
            let nowhere = File::options().write(true).open("/dev/null").expect("it is everywhere");
            rustix::stdio::dup2_stdout(nowhere).expect("stdout can be replaced");
        }
    }
}
