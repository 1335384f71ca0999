//! The client's side of the control socket: blocking, without a runtime.
//!
//! Sends one request at a time. Notifications that arrive before an answer are queued, in order,
//! for [`Client::next_notification`].

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
mod descriptor_stream;
mod incoming;
mod lines;

pub use connect::{ConnectError, Connection};
use descriptor_stream::DescriptorStream;
use incoming::Message;
pub use incoming::Notification;
use lines::LineReader;

use crate::socket;

/// Maximum length of a message from the daemon. The largest tool result fits, and so does the tool
/// list of very many servers.
pub const MAX_ANSWER_LINE: usize = 64 * 1024 * 1024;

/// Maximum size of the notifications queued while an answer is awaited, in bytes.
const MAX_QUEUED: usize = 16 * 1024 * 1024;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// The daemon answered with an error.
    #[error(transparent)]
    Refused(#[from] CallError),
    /// The daemon closed the connection before it answered.
    #[error("the daemon hung up before it answered")]
    HungUp,
    /// The daemon did not answer in time.
    #[error("the daemon did not answer within {within:?}")]
    TimedOut {
        /// The timeout.
        within: Duration,
    },
    /// The answer violates the protocol: most likely the socket belongs to another program.
    #[error("the response is not from xy: {what}")]
    NotXy {
        /// The violation.
        what: String,
    },
    /// The system refused.
    #[error("could not talk to the daemon")]
    Io(#[source] io::Error),
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    lines: LineReader<DescriptorStream>,
    last_id: i64,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// The queued line that was returned last.
    current: Vec<u8>,
    timeout: Option<Duration>,
}

/// Connects to the daemon at `path`, or gives up after two seconds.
pub fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    connect::connect(path)
}

/// Connects to the first of `paths` at which a daemon listens. Gives each two seconds.
pub fn find(paths: &[PathBuf]) -> Result<Connection, ConnectError> {
    connect::find(paths)
}

impl Client {
    /// Connects to the first of `paths` at which a daemon listens.
    pub fn find(paths: &[PathBuf]) -> Result<Self, ConnectError> {
        find(paths).map(|found| Self::from_stream(found.stream))
    }

    /// Connects to the daemon at `path`, or gives up after two seconds.
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        connect::connect(path).map(Self::from_stream)
    }

    /// Creates a client on a connected socket.
    pub fn from_stream(stream: UnixStream) -> Self {
        Self {
            lines: LineReader::new(DescriptorStream { stream, descriptor: None }, MAX_ANSWER_LINE),
            last_id: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            current: Vec::new(),
            timeout: None,
        }
    }

    /// Sets how long to wait for each message of the daemon; `None` waits for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let stream = &self.lines.source().stream;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        self.timeout = timeout;
        Ok(())
    }

    /// Sends a request. Returns the result as it was written.
    pub fn call(&mut self, request: &Request) -> Result<Box<RawValue>, CallFailure> {
        self.last_id += 1;
        let id = self.last_id;
        let message = OutgoingRequest::new(id, request.method(), request.params());
        let mut line = serde_json::to_vec(&message).expect("requests always serialise");
        line.push(b'\n');
        let written = self.lines.source().stream.write_all(&line);
        match written {
            Ok(()) => {}
            // A daemon that rejected the connection has left a line with the reason.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {}
            Err(cause) => return Err(self.failure(cause)),
        }
        self.wait_for_answer(id)
    }

    /// Sends a request. Returns the parsed result.
    pub fn call_as<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, CallFailure> {
        read_result(&self.call(request)?)
    }

    /// Returns the descriptor that came with an answer, if any.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.lines.source().descriptor.take()
    }

    /// Waits for the next notification of a stream.
    pub fn next_notification(&mut self) -> Result<Notification<'_>, CallFailure> {
        let line = if let Some(line) = self.queue.pop_front() {
            self.queued_bytes -= line.len();
            self.current = line;
            self.current.as_slice()
        } else {
            let timeout = self.timeout;
            match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallFailure::HungUp),
                Err(cause) => return Err(failure(cause, timeout)),
            }
        };
        match Message::parse(line)? {
            Message::Notification(notification) => Ok(notification),
            Message::Answer { id, .. } => Err(unexpected(&id)),
            Message::Refusal(error) => Err(error.into()),
        }
    }

    /// Returns true if the next message, or EOF, is already here. If not, it is a good moment to
    /// flush printed output.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty()
            || self.lines.has_line()
            || socket::is_readable(&self.lines.source_ref().stream)
    }

    /// Waits until the daemon hangs up, and ignores its messages.
    pub fn wait_for_hang_up(&mut self) -> Result<(), CallFailure> {
        let timeout = self.timeout;
        loop {
            match self.lines.next_line() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(cause) => match failure(cause, timeout) {
                    CallFailure::HungUp => return Ok(()),
                    other => return Err(other),
                },
            }
        }
    }

    fn wait_for_answer(&mut self, request_id: i64) -> Result<Box<RawValue>, CallFailure> {
        loop {
            let timeout = self.timeout;
            let line = match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallFailure::HungUp),
                Err(cause) => return Err(failure(cause, timeout)),
            };
            match Message::parse(line)? {
                Message::Answer { id, outcome } if id == RequestId::Number(request_id) => {
                    return outcome.map_err(CallFailure::from);
                }
                Message::Answer { id, .. } => return Err(unexpected(&id)),
                Message::Refusal(error) => return Err(error.into()),
                Message::Notification(_) => {
                    self.queued_bytes += line.len();
                    self.queue.push_back(line.to_vec());
                }
            }
            if self.queued_bytes > MAX_QUEUED {
                let what = format!("received over {MAX_QUEUED} bytes before the response");
                return Err(CallFailure::NotXy { what });
            }
        }
    }

    fn failure(&self, cause: io::Error) -> CallFailure {
        failure(cause, self.timeout)
    }
}

impl AsFd for Client {
    /// Returns the socket, for polling. Readability does not mean that a whole message has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lines.source_ref().stream.as_fd()
    }
}

/// Parses a result as the type of its request.
pub fn read_result<T: DeserializeOwned>(result: &RawValue) -> Result<T, CallFailure> {
    serde_json::from_str(result.get())
        .map_err(|cause| CallFailure::NotXy { what: cause.to_string() })
}

fn unexpected(id: &RequestId) -> CallFailure {
    CallFailure::NotXy { what: format!("response for unknown request id {id:?}") }
}

fn failure(cause: io::Error, timeout: Option<Duration>) -> CallFailure {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, TimedOut, WouldBlock};

    match (cause.kind(), timeout) {
        (BrokenPipe | ConnectionReset, _) => CallFailure::HungUp,
        (WouldBlock | TimedOut, Some(timeout)) => CallFailure::TimedOut { within: timeout },
        (InvalidData, _) => CallFailure::NotXy { what: cause.to_string() },
        _ => CallFailure::Io(cause),
    }
}

#[cfg(test)]
mod tests;
