//! The state that the upward and downward threads share: the ledger and the connection.
//!
//! The lock is held only briefly, never during I/O.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use xy_mcp::envelope::Message;
use xy_protocol::error::CallError;

use super::ledger::{Ledger, LineAction, LineNo};
use super::recording::{Origin, Recorder};
use crate::failure::Failure;
use crate::output::Protocol;

/// The shared state of the threads.
#[derive(Debug)]
pub(super) struct Bridge {
    state: Mutex<State>,
    /// Notified when no thread writes to the daemon any more.
    writer_idle: Condvar,
    stdout: Mutex<Protocol>,
    /// Records the messages if `--record` is given.
    recorder: Option<Recorder>,
    /// A byte written here wakes the upward thread.
    wake_sender: UnixStream,
    wake_receiver: UnixStream,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    phase: Phase,
    /// The state of writing to the daemon, by the upward thread or a replay.
    writer: Writer,
    /// True if the upward thread has lines to send and waits for another phase.
    is_waiting: bool,
    /// True if the client has closed stdin and all its messages are handled.
    has_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Idle,
    Busy,
    /// Busy, and another thread waits for the end. Without this state, every message would cost a
    /// system call to notify no one.
    BusyAwaited,
}

#[derive(Debug, Clone)]
enum Phase {
    /// The first connection is not established yet.
    Connecting,
    /// The connection was lost.
    Disconnected,
    /// The client's messages are written to this stream.
    Connected(Arc<UnixStream>),
    /// The bridge has given up for this reason.
    Closed(Arc<CallError>),
}

/// The permitted action of the upward thread on the client's messages.
#[derive(Debug)]
pub(super) enum Turn {
    /// Write them to this stream, then call [`Bridge::end_turn`].
    Write(Arc<UnixStream>),
    /// Keep them until [`Bridge::wake_receiver`] is readable.
    Wait,
    /// Answer them with this error.
    Refuse(Arc<CallError>),
}

impl Bridge {
    pub(super) fn new(recorder: Option<Recorder>) -> std::io::Result<Self> {
        let (wake_sender, wake_receiver) = UnixStream::pair()?;
        wake_sender.set_nonblocking(true)?;
        wake_receiver.set_nonblocking(true)?;
        let state = State {
            ledger: Ledger::default(),
            phase: Phase::Connecting,
            writer: Writer::Idle,
            is_waiting: false,
            has_left: false,
        };
        let stdout = Mutex::new(Protocol::new());
        let state = Mutex::new(state);
        Ok(Self {
            state,
            writer_idle: Condvar::new(),
            stdout,
            recorder,
            wake_sender,
            wake_receiver,
        })
    }

    /// Returns the recording of this session, if there is one.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Records an event of the bridge.
    pub(super) fn note(&self, event: &'static str, cause: Option<&str>) {
        if let Some(recorder) = &self.recorder {
            recorder.note(event, cause.map(str::to_owned));
        }
    }

    /// Writes complete lines from the daemon to the client.
    pub(super) fn pass_to_client(&self, lines: &[u8]) -> Result<(), Failure> {
        self.write_to_client(Origin::Server, lines)
    }

    /// Writes complete lines of the bridge itself to the client.
    pub(super) fn send_to_client(&self, lines: &[u8]) -> Result<(), Failure> {
        self.write_to_client(Origin::Bridge, lines)
    }

    fn write_to_client(&self, from: Origin, lines: &[u8]) -> Result<(), Failure> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut stdout = locked(&self.stdout);
        if let Some(recorder) = &self.recorder {
            recorder.record(from, lines); // Before the client can react to them.
        }
        stdout.write(lines)
    }

    /// Requests permission to write to the daemon.
    pub(super) fn turn(&self) -> Turn {
        let mut state = self.state();
        match state.phase.clone() {
            Phase::Connected(stream) if state.writer == Writer::Idle => {
                state.writer = Writer::Busy;
                Turn::Write(stream)
            }
            Phase::Closed(why) => Turn::Refuse(why),
            _ => {
                state.is_waiting = true;
                Turn::Wait
            }
        }
    }

    /// Returns a descriptor that becomes readable when [`Self::turn`] should be called again.
    pub(super) fn wake_receiver(&self) -> BorrowedFd<'_> {
        self.wake_receiver.as_fd()
    }

    /// Clears the wake-up.
    pub(super) fn clear_wake(&self) {
        let mut state = self.state();
        state.is_waiting = false;
        drop(state);
        let mut sink = [0; 64];
        while std::io::Read::read(&mut &self.wake_receiver, &mut sink).is_ok_and(|count| count > 0)
        {
        }
    }

    /// Passes a client's line to the ledger. Returns its number and what to do with it.
    pub(super) fn on_client_line(
        &self,
        message: Option<&Message<'_>>,
        line: &[u8],
        is_resent: bool,
    ) -> (LineNo, LineAction) {
        let mut state = self.state();
        (state.ledger.next_line(), state.ledger.on_client_line(message, line, is_resent))
    }

    /// Ends a turn. `unwritten_from` is the first line that could not be written.
    pub(super) fn end_turn(&self, unwritten_from: Option<LineNo>) {
        let mut state = self.state();
        if let Some(first) = unwritten_from {
            state.ledger.mark_unwritten(first);
            // The downward thread notices the loss too; until then, no thread may write.
            if matches!(state.phase, Phase::Connected(_)) {
                state.phase = Phase::Disconnected;
            }
        }
        self.release_writer(&mut state);
    }

    /// Returns the messages to send after the client's last one. Empty on later calls.
    pub(super) fn leave_messages(&self) -> Vec<u8> {
        let mut state = self.state();
        let messages = state.ledger.cancel_listens();
        // Another daemon would not know these requests.
        if matches!(state.phase, Phase::Connected(_)) { messages } else { Vec::new() }
    }

    /// Records that all messages of the client are written, and closes the stream for writing.
    pub(super) fn set_client_done(&self) {
        let mut state = self.state();
        state.has_left = true;
        if let Phase::Connected(stream) = &state.phase {
            let _ = stream.shutdown(Shutdown::Write); // It may already be closed.
        }
    }

    /// Returns true if the client has closed stdin and all its messages are handled.
    pub(super) fn has_left(&self) -> bool {
        self.state().has_left
    }

    pub(super) fn on_daemon_line(&self, message: Option<&Message<'_>>, line: &[u8]) -> LineAction {
        let mut state = self.state();
        if matches!((&state.phase, message), (Phase::Closed(_), Some(Message::Response { .. }))) {
            return LineAction::Drop; // The request already got an error response.
        }
        state.ledger.on_daemon_line(message, line)
    }

    /// Sets the stream for the client's messages.
    pub(super) fn set_connected(&self, stream: Arc<UnixStream>) {
        self.set_connected_locked(self.state(), stream);
    }

    fn set_connected_locked(&self, mut state: MutexGuard<'_, State>, stream: Arc<UnixStream>) {
        if matches!(state.phase, Phase::Closed(_)) {
            return; // Too late: the client has already got error responses.
        }
        if state.has_left {
            let _ = stream.shutdown(Shutdown::Write); // It may already be closed.
        }
        state.phase = Phase::Connected(stream);
        self.wake(state);
    }

    /// Returns true if there has been a connection and the bridge has not given up.
    pub(super) fn has_connected(&self) -> bool {
        matches!(self.state().phase, Phase::Connected(_) | Phase::Disconnected)
    }

    /// Returns true if there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state().phase, Phase::Connected(_))
    }

    /// Returns true if the client waits for a response.
    pub(super) fn has_open_requests(&self) -> bool {
        self.state().ledger.has_open_requests()
    }

    /// Shuts the connection down, and waits until no thread writes to it.
    pub(super) fn disconnect(&self, stream: &UnixStream) {
        let _ = stream.shutdown(Shutdown::Both); // A blocked writer then fails.
        let mut state = self.state();
        while state.writer != Writer::Idle {
            state.writer = Writer::BusyAwaited;
            state = self.writer_idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if matches!(state.phase, Phase::Connected(_)) {
            state.phase = Phase::Disconnected;
        }
    }

    /// Handles the loss of the connection. Returns the messages for the client.
    pub(super) fn on_connection_lost(&self, cause: &str) -> Vec<u8> {
        self.state().ledger.on_connection_lost(cause)
    }

    /// Returns the handshake to repeat with a new daemon, if there is one.
    pub(super) fn handshake_request(&self) -> Option<Vec<u8>> {
        self.state().ledger.handshake_request()
    }

    /// Returns the request for the new daemon's tools, if the replay depends on them.
    pub(super) fn list_request(&self) -> Option<Vec<u8>> {
        self.state().ledger.list_request()
    }

    /// Starts a replay. Returns its messages for the daemon, and those for the client afterwards.
    pub(super) fn start_replay(&self) -> (Vec<u8>, Vec<u8>) {
        let mut state = self.state();
        state.writer = Writer::Busy;
        state.ledger.replay()
    }

    /// Ends a replay. `stream` is set if all of it was written.
    pub(super) fn end_replay(&self, stream: Option<Arc<UnixStream>>) {
        let mut state = self.state();
        self.release_writer(&mut state);
        if let Some(stream) = stream {
            self.set_connected_locked(state, stream);
        }
    }

    /// Gives up: all open and later requests get the error `why`.
    ///
    /// Returns the messages for the client, and true if they inform it of the failure.
    pub(super) fn close(&self, why: CallError) -> (Vec<u8>, bool) {
        let mut state = self.state();
        let to_client = state.ledger.fail_all(&why);
        let is_all = state.has_left || (!to_client.is_empty() && !state.is_waiting);
        state.phase = Phase::Closed(Arc::new(why));
        self.wake(state);
        (to_client, is_all)
    }

    fn release_writer(&self, state: &mut State) {
        if std::mem::replace(&mut state.writer, Writer::Idle) == Writer::BusyAwaited {
            self.writer_idle.notify_all();
        }
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let is_waiting = state.is_waiting;
        drop(state);
        if is_waiting {
            let _ = (&self.wake_sender).write(&[1]); // If full, a wake-up is pending already.
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
