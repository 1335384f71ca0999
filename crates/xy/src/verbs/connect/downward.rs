//! Copies messages from the daemon to the client, from socket to stdout.
//!
//! This thread also manages the connection, as the reader is the first to notice its loss.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use xy_mcp::envelope::parse;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::handshake::{Answer, HANDSHAKE_VERSION, Hello};

use super::SessionEvent;
use super::batch::{self, MAX_MESSAGE, WriteBatch};
use super::bridge::Bridge;
use super::connector::Connector;
use super::ledger::LineAction;
use super::lines::{Lines, line_ranges};
use crate::failure::Failure;

/// How long a daemon may take to answer the hello and the repeated handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Downward {
    bridge: Arc<Bridge>,
    connector: Connector,
    hello: Hello,
    lines: Lines,
    batch: WriteBatch,
    state: ConnectionState,
}

/// The state of a connection to a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    /// The daemon has not answered the hello yet.
    Connecting,
    /// The daemon has not answered the repeated `initialize` yet.
    Handshaking,
    /// The daemon has not listed its tools yet.
    ListingTools,
    /// Messages may be sent in both directions.
    Established,
}

impl Downward {
    pub(super) fn new(bridge: Arc<Bridge>, connector: Connector, hello: Hello) -> Self {
        let (lines, batch) = (Lines::new(), WriteBatch::default());
        Self { bridge, connector, hello, lines, batch, state: ConnectionState::Connecting }
    }

    /// Keeps the client connected until it has left or no daemon can be reached.
    pub(super) fn run(mut self, event_sender: &SyncSender<SessionEvent>) {
        let result = self.keep_connected();
        let mut is_informed = true;
        if let Err(Failure::Failed(why) | Failure::Unreachable(why)) = &result {
            self.bridge.note("bridge gave up", Some(&why.to_string()));
            let (to_client, is_all) = self.bridge.close(why.clone());
            let was_sent = self.bridge.send_to_client(&to_client).is_ok();
            is_informed = is_all || !was_sent;
        }
        // The receiver is gone if the session has already ended.
        let _ = event_sender.send(SessionEvent::Ended { result, is_informed });
    }

    fn keep_connected(&mut self) -> Result<(), Failure> {
        let mut is_first = true;
        loop {
            let stream = Arc::new(self.connector.connect()?);
            let talked = self.serve(&stream, is_first);
            self.bridge.disconnect(&stream);
            let cause = talked?;
            let (has_left, has_open_requests) =
                (self.bridge.has_left(), self.bridge.has_open_requests());
            if has_left && !has_open_requests {
                return Ok(());
            }
            self.bridge.note("daemon lost", Some(&cause));
            let to_client = self.bridge.on_connection_lost(&cause);
            self.bridge.send_to_client(&to_client)?;
            if has_left {
                return Err(Failure::Unreachable(daemon_gone(&cause)));
            }
            self.connector.record_loss(cause);
            is_first = false;
        }
    }

    /// Serves a connection until it is lost, and returns the cause.
    fn serve(&mut self, stream: &Arc<UnixStream>, is_first: bool) -> Result<String, Failure> {
        self.lines.clear();
        self.state = ConnectionState::Connecting;
        if let Err(cause) = self.send_hello(stream, is_first) {
            return Ok(cause.to_string());
        }
        loop {
            if self.state == ConnectionState::Established {
                // On Linux, a thread that blocks in a read of a Unix socket is also woken when the
                // peer reads: one useless wake-up for every call.
                batch::wait_for(stream.as_fd());
            }
            match (&**stream).read(self.lines.room()) {
                Ok(0) => return Ok("it closed the connection".to_owned()),
                Ok(count) => self.lines.read(count),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let waited = HANDSHAKE_TIMEOUT.as_secs();
                    return Ok(format!("it did not answer within {waited} s"));
                }
                Err(cause) => return Ok(cause.to_string()),
            }
            if self.lines.unfinished() > MAX_MESSAGE {
                return Ok(format!("it sent a message of more than {MAX_MESSAGE} bytes"));
            }
            if self.state == ConnectionState::Connecting {
                self.read_hello_answer(stream, is_first)?;
            }
            if self.state != ConnectionState::Connecting {
                self.write_stderr(stream)?;
            }
        }
    }

    /// Sends the hello. On the first connection, the client's messages follow immediately.
    fn send_hello(&mut self, stream: &Arc<UnixStream>, is_first: bool) -> io::Result<()> {
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let mut line = serde_json::to_vec(&self.hello)?;
        line.push(b'\n');
        (&**stream).write_all(&line)?;
        if is_first {
            stream.set_write_timeout(None)?;
            self.bridge.set_connected(Arc::clone(stream));
        }
        Ok(())
    }

    /// Handles the daemon's first line, if it is complete.
    fn read_hello_answer(
        &mut self,
        stream: &Arc<UnixStream>,
        is_first: bool,
    ) -> Result<(), Failure> {
        let Some(line) = line_ranges(self.lines.whole()).next() else {
            return Ok(());
        };
        let answer = serde_json::from_slice(&self.lines.whole()[line.clone()]);
        self.lines.consume(line.end);
        match answer {
            Ok(Answer::Welcome { protocol: HANDSHAKE_VERSION }) => {}
            Ok(Answer::Welcome { protocol }) => return Err(other_protocol(protocol).into()),
            Ok(Answer::Refused { message, hint }) => {
                let mut error = CallError::new(ErrorKind::NotAllowed, message);
                error.hint = hint;
                return Err(error.into());
            }
            Ok(Answer::Goodbye) => {
                self.connector.record_goodbye();
                self.bridge.note("daemon said goodbye", None);
                return Ok(());
            }
            Err(cause) => return Err(not_xy(&cause).into()),
        }
        self.connector.record_welcome();
        self.bridge.note("daemon connected", None);
        if is_first {
            self.establish(stream);
            return Ok(());
        }
        match self.bridge.handshake_request() {
            // If it cannot be written, the next read fails.
            Some(handshake_request) => {
                self.state = ConnectionState::Handshaking;
                let _ = (&**stream).write_all(&handshake_request);
            }
            None => self.list_or_replay(stream),
        }
        Ok(())
    }

    fn establish(&mut self, stream: &UnixStream) {
        self.state = ConnectionState::Established;
        // These calls cannot fail for a socket. If they did, a silent daemon would be left.
        let _ = stream.set_read_timeout(None);
        let _ = stream.set_write_timeout(None);
    }

    /// Asks for the tools if the replay depends on them, otherwise begins it.
    fn list_or_replay(&mut self, stream: &Arc<UnixStream>) {
        let Some(list_request) = self.bridge.list_request() else { return self.replay(stream) };
        self.state = ConnectionState::ListingTools;
        // If it cannot be written, the next read fails.
        let _ = (&**stream).write_all(&list_request);
    }

    /// Replays the session's state and open requests to a new daemon. Writes on a separate
    /// thread, as this one must keep reading: the daemon may block until its output is read.
    fn replay(&mut self, stream: &Arc<UnixStream>) {
        self.establish(stream);
        let (replayed, notifications) = self.bridge.start_replay();
        let (bridge, to) = (Arc::clone(&self.bridge), Arc::clone(stream));
        let spawned = super::spawn("replay", move || {
            let is_written = (&*to).write_all(&replayed).is_ok();
            bridge.end_replay(is_written.then_some(to));
            if is_written {
                // If this fails, the downward thread fails to write as well.
                let _ = bridge.send_to_client(&notifications);
            }
        });
        if spawned.is_err() {
            self.bridge.end_replay(None);
            let _ = stream.shutdown(std::net::Shutdown::Both); // The next connection retries.
        }
    }

    /// Writes all complete lines for the client to stdout, in one write if possible.
    fn write_stderr(&mut self, stream: &Arc<UnixStream>) -> Result<(), Failure> {
        self.batch.clear();
        let mut resumed = None;
        let whole = self.lines.whole();
        for range in line_ranges(whole) {
            let line = &whole[range.clone()];
            if is_goodbye(line) {
                self.connector.record_goodbye();
                self.bridge.note("daemon said goodbye", None);
                continue;
            }
            match self.bridge.on_daemon_line(parse(line).ok().as_ref(), line) {
                LineAction::Forward => self.batch.pass(range),
                LineAction::Replace(other) => self.batch.put(other),
                LineAction::Resumed(result) => resumed = Some(result),
                LineAction::Drop | LineAction::Reject(_) => {}
            }
        }
        for piece in self.batch.pieces(whole) {
            self.bridge.pass_to_client(piece)?;
        }
        self.lines.consume(whole.len());
        match (resumed, self.state) {
            (Some(Err(why)), _) => return Err(resume_failed(&why).into()),
            (Some(Ok(())), ConnectionState::Handshaking) => self.list_or_replay(stream),
            (Some(Ok(())), ConnectionState::ListingTools) => self.replay(stream),
            _ => {}
        }
        Ok(())
    }
}

/// Returns true for the daemon's goodbye, which it sends when it is stopped on request. No MCP
/// message begins like this.
fn is_goodbye(line: &[u8]) -> bool {
    line.starts_with(br#"{"xy""#) && matches!(serde_json::from_slice(line), Ok(Answer::Goodbye))
}

fn other_protocol(protocol: u32) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, "the daemon speaks another protocol than this `xy`")
        .cause(format!("the daemon has version {protocol}, this `xy` has {HANDSHAKE_VERSION}"))
        .hint("replace it with `xy daemon --detach --replace`, or update this `xy`")
}

fn not_xy(cause: &serde_json::Error) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, "the program at the MCP socket is not xy")
        .cause(cause)
        .hint("check XDG_RUNTIME_DIR and XDG_STATE_HOME, which set the socket's path")
}

/// Returns the error for a client that has closed stdin, and so is not reconnected.
fn daemon_gone(cause: &str) -> CallError {
    CallError::new(ErrorKind::NotRunning, "the connection to the daemon was lost")
        .cause(cause)
        .hint("run `xy connect` again: it starts a daemon if none runs")
}

fn resume_failed(why: &str) -> CallError {
    CallError::new(ErrorKind::Internal, "the new daemon could not resume the session")
        .cause(why)
        .hint("restart this MCP connection")
}
