//! A front end's end of the control socket: blocking, without a runtime.
//!
//! One request at a time. Notifications that come before an answer are kept, in
//! order, for [`Client::next_notification`].

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use xy_protocol::control::Request;
use xy_protocol::error::CallError;
use xy_protocol::jsonrpc::{OutgoingRequest, RequestId};

mod connect;
mod incoming;
mod lines;
mod receiving;

pub use connect::{ConnectError, Found};
use incoming::Message;
pub use incoming::Notification;
use lines::LineReader;
use receiving::Receiving;

use crate::socket;

/// The longest message from the daemon: the longest result of a tool fits, and so do the
/// tools of very many servers.
pub const MAX_ANSWER_LINE: usize = 64 * 1024 * 1024;

/// Notifications kept while an answer is awaited, in bytes.
const MAX_KEPT: usize = 16 * 1024 * 1024;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// The daemon said no, and why.
    #[error(transparent)]
    Refused(#[from] CallError),
    /// The daemon went away in the middle.
    #[error("the daemon hung up before it answered")]
    HungUp,
    /// The daemon is there and says nothing.
    #[error("the daemon did not answer within {within:?}")]
    TimedOut {
        /// How long it had.
        within: Duration,
    },
    /// What came is not what the protocol says: most likely another program's socket.
    #[error("the answer is not one of xy: {what}")]
    NotXy {
        /// What is wrong with it.
        what: String,
    },
    /// The system refused.
    #[error("could not talk to the daemon")]
    Io(#[source] io::Error),
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    lines: LineReader<Receiving>,
    last_id: i64,
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
    /// The kept line that was handed out last.
    current: Vec<u8>,
    answer_within: Option<Duration>,
}

/// Connects to whoever listens at `path`, or gives up after two seconds.
pub fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    connect::connect(path)
}

/// Connects to the first of `places` that a daemon listens at; gives each two seconds.
pub fn find(places: &[PathBuf]) -> Result<Found, ConnectError> {
    connect::find(places)
}

impl Client {
    /// Connects to the first of `places` that a daemon listens at.
    pub fn find(places: &[PathBuf]) -> Result<Self, ConnectError> {
        find(places).map(|found| Self::over(found.stream))
    }

    /// Connects to the daemon that listens at `path`, or gives up after two seconds.
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        connect::connect(path).map(Self::over)
    }

    /// Talks over a socket that is already connected.
    pub fn over(stream: UnixStream) -> Self {
        Self {
            lines: LineReader::new(Receiving { stream, descriptor: None }, MAX_ANSWER_LINE),
            last_id: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            current: Vec::new(),
            answer_within: None,
        }
    }

    /// From now on waits at most this long for the daemon's next word; `None` is for ever.
    pub fn answer_within(&mut self, within: Option<Duration>) -> io::Result<()> {
        let stream = &self.lines.source().stream;
        stream.set_read_timeout(within)?;
        stream.set_write_timeout(within)?;
        self.answer_within = within;
        Ok(())
    }

    /// Asks, and waits for the result as it was written.
    pub fn call(&mut self, request: &Request) -> Result<Box<RawValue>, CallFailure> {
        self.last_id += 1;
        let id = self.last_id;
        let message = OutgoingRequest::new(id, request.method(), request.params());
        let mut line = serde_json::to_vec(&message).expect("requests always serialise");
        line.push(b'\n');
        let written = self.lines.source().stream.write_all(&line);
        match written {
            Ok(()) => {}
            // A daemon that turned us away has left a line that says why.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {}
            Err(cause) => return Err(self.failure(cause)),
        }
        self.answer_to(id)
    }

    /// Asks, waits, and reads the result.
    pub fn call_as<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, CallFailure> {
        read_result(&self.call(request)?)
    }

    /// Returns the descriptor that came with an answer, if one did.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.lines.source().descriptor.take()
    }

    /// The next notification of a stream; waits for it.
    pub fn next_notification(&mut self) -> Result<Notification<'_>, CallFailure> {
        let line = if let Some(kept) = self.kept.pop_front() {
            self.kept_bytes -= kept.len();
            self.current = kept;
            self.current.as_slice()
        } else {
            let within = self.answer_within;
            match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallFailure::HungUp),
                Err(cause) => return Err(failure(cause, within)),
            }
        };
        match Message::parse(line)? {
            Message::Notification(notification) => Ok(notification),
            Message::Answer { id, .. } => Err(unexpected(&id)),
            Message::Refusal(error) => Err(error.into()),
        }
    }

    /// Whether the daemon's next word, or the end, is already here: if not, it is
    /// a good moment to flush what has been printed.
    pub fn has_more(&self) -> bool {
        !self.kept.is_empty()
            || self.lines.has_line()
            || socket::is_readable(&self.lines.source_ref().stream)
    }

    /// Waits until the daemon hangs up, ignoring what else it says.
    pub fn wait_for_hang_up(&mut self) -> Result<(), CallFailure> {
        let within = self.answer_within;
        loop {
            match self.lines.next_line() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(cause) => match failure(cause, within) {
                    CallFailure::HungUp => return Ok(()),
                    other => return Err(other),
                },
            }
        }
    }

    fn answer_to(&mut self, asked: i64) -> Result<Box<RawValue>, CallFailure> {
        loop {
            let within = self.answer_within;
            let line = match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallFailure::HungUp),
                Err(cause) => return Err(failure(cause, within)),
            };
            match Message::parse(line)? {
                Message::Answer { id, outcome } if id == RequestId::Number(asked) => {
                    return outcome.map_err(CallFailure::from);
                }
                Message::Answer { id, .. } => return Err(unexpected(&id)),
                Message::Refusal(error) => return Err(error.into()),
                Message::Notification(_) => {
                    self.kept_bytes += line.len();
                    self.kept.push_back(line.to_vec());
                }
            }
            if self.kept_bytes > MAX_KEPT {
                let what = format!("over {MAX_KEPT} bytes came before an answer");
                return Err(CallFailure::NotXy { what });
            }
        }
    }

    fn failure(&self, cause: io::Error) -> CallFailure {
        failure(cause, self.answer_within)
    }
}

impl AsFd for Client {
    /// For polling; readable does not mean that a whole message is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lines.source_ref().stream.as_fd()
    }
}

/// Reads a result as the type its request promises.
pub fn read_result<T: DeserializeOwned>(result: &RawValue) -> Result<T, CallFailure> {
    serde_json::from_str(result.get())
        .map_err(|cause| CallFailure::NotXy { what: cause.to_string() })
}

fn unexpected(id: &RequestId) -> CallFailure {
    CallFailure::NotXy { what: format!("it answers {id:?}, which was not asked") }
}

fn failure(cause: io::Error, within: Option<Duration>) -> CallFailure {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, TimedOut, WouldBlock};

    match (cause.kind(), within) {
        (BrokenPipe | ConnectionReset, _) => CallFailure::HungUp,
        (WouldBlock | TimedOut, Some(within)) => CallFailure::TimedOut { within },
        (InvalidData, _) => CallFailure::NotXy { what: cause.to_string() },
        _ => CallFailure::Io(cause),
    }
}

#[cfg(test)]
mod tests;
