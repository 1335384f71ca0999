//! What the two carrying threads share: the ledger, and whether there is a connection.
//!
//! The lock is held for moments only, never while somebody reads or writes.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use xy_mcp::envelope::Message;
use xy_protocol::error::CallError;

use super::ledger::{Ledger, LineNo, Verdict};
use super::recording::{Origin, Recorder};
use crate::failure::Failure;
use crate::output::Protocol;

/// What the threads share.
#[derive(Debug)]
pub(super) struct Hub {
    state: Mutex<State>,
    /// Nobody writes to the daemon any more.
    calm: Condvar,
    stdout: Mutex<Protocol>,
    /// Records what passes, if the user wants that.
    recorder: Option<Recorder>,
    /// A byte here wakes the client's thread.
    alarm: UnixStream,
    wakes: UnixStream,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    phase: Phase,
    /// Who writes to the daemon: the client's thread, or a replay.
    writer: Writer,
    /// The client's thread waits for another phase, with something to send.
    is_waiting: bool,
    /// The client has said its last word, and the daemon has been told.
    has_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Nobody,
    Somebody,
    /// Somebody, whose end is waited for. Without that, a wake-up would be a system call in
    /// vain for every message.
    Awaited,
}

#[derive(Debug, Clone)]
enum Phase {
    /// No connection yet.
    Outside,
    /// No connection any more.
    Down,
    /// The client's words go here.
    Up(Arc<UnixStream>),
    /// There will be none; this is why.
    Over(Arc<CallError>),
}

/// What can be done with the client's words now.
#[derive(Debug)]
pub(super) enum Turn {
    /// Write them here; [`Hub::has_written`] must follow.
    Write(Arc<UnixStream>),
    /// Keep them until there is a sign at [`Hub::wakes`].
    Wait,
    /// Answer them with this.
    Refuse(Arc<CallError>),
}

impl Hub {
    pub(super) fn new(recorder: Option<Recorder>) -> std::io::Result<Self> {
        let (alarm, wakes) = UnixStream::pair()?;
        alarm.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let state = State {
            ledger: Ledger::default(),
            phase: Phase::Outside,
            writer: Writer::Nobody,
            is_waiting: false,
            has_left: false,
        };
        let stdout = Mutex::new(Protocol::new());
        let state = Mutex::new(state);
        Ok(Self { state, calm: Condvar::new(), stdout, recorder, alarm, wakes })
    }

    /// Returns the recording of this session, if there is one.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Records something that happened to the bridge.
    pub(super) fn note(&self, event: &'static str, cause: Option<&str>) {
        if let Some(recorder) = &self.recorder {
            recorder.note(event, cause.map(str::to_owned));
        }
    }

    /// Passes whole lines of the daemon to the client.
    pub(super) fn pass_to_client(&self, lines: &[u8]) -> Result<(), Failure> {
        self.write_to_client(Origin::Server, lines)
    }

    /// Sends the client whole lines of the bridge itself.
    pub(super) fn tell_client(&self, lines: &[u8]) -> Result<(), Failure> {
        self.write_to_client(Origin::Bridge, lines)
    }

    fn write_to_client(&self, from: Origin, lines: &[u8]) -> Result<(), Failure> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut stdout = locked(&self.stdout);
        if let Some(recorder) = &self.recorder {
            recorder.record(from, lines); // Before the client can react to it.
        }
        stdout.write(lines)
    }

    /// Asks for leave to write to the daemon.
    pub(super) fn turn(&self) -> Turn {
        let mut state = self.state();
        match state.phase.clone() {
            Phase::Up(stream) if state.writer == Writer::Nobody => {
                state.writer = Writer::Somebody;
                Turn::Write(stream)
            }
            Phase::Over(why) => Turn::Refuse(why),
            _ => {
                state.is_waiting = true;
                Turn::Wait
            }
        }
    }

    /// Readable once it is worth asking for a [`Self::turn`] again.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Notes that the sign was seen.
    pub(super) fn has_woken(&self) {
        let mut state = self.state();
        state.is_waiting = false;
        drop(state);
        let mut sink = [0; 64];
        while std::io::Read::read(&mut &self.wakes, &mut sink).is_ok_and(|count| count > 0) {}
    }

    /// Tells the ledger what the client says, and answers its place and its verdict.
    pub(super) fn client_says(
        &self,
        message: Option<&Message<'_>>,
        line: &[u8],
        is_carried: bool,
    ) -> (LineNo, Verdict) {
        let mut state = self.state();
        (state.ledger.next_line(), state.ledger.client_says(message, line, is_carried))
    }

    /// Gives the turn back. `unwritten_from` is the first line that could not be written.
    pub(super) fn has_written(&self, unwritten_from: Option<LineNo>) {
        let mut state = self.state();
        if let Some(first) = unwritten_from {
            state.ledger.unwritten_from(first);
            // The daemon's thread will notice too; until then nobody else shall try.
            if matches!(state.phase, Phase::Up(_)) {
                state.phase = Phase::Down;
            }
        }
        self.calm_down(&mut state);
    }

    /// What is to be said for a client that says nothing more itself; nothing the next time.
    pub(super) fn last_words(&self) -> Vec<u8> {
        let mut state = self.state();
        let said = state.ledger.leave();
        // The next daemon would not know what it is about.
        if matches!(state.phase, Phase::Up(_)) { said } else { Vec::new() }
    }

    /// The client has said its last word, and all of it is written: the daemon is told.
    pub(super) fn client_left(&self) {
        let mut state = self.state();
        state.has_left = true;
        if let Phase::Up(stream) = &state.phase {
            let _ = stream.shutdown(Shutdown::Write); // It may be gone, which is as good.
        }
    }

    /// Whether nothing is to be waited for once the client has left.
    pub(super) fn has_left(&self) -> bool {
        self.state().has_left
    }

    pub(super) fn daemon_says(&self, message: Option<&Message<'_>>, line: &[u8]) -> Verdict {
        let mut state = self.state();
        if matches!((&state.phase, message), (Phase::Over(_), Some(Message::Answer { .. }))) {
            return Verdict::Swallow; // The client has been told that none comes.
        }
        state.ledger.daemon_says(message, line)
    }

    /// There is a connection for the client's words.
    pub(super) fn up(&self, stream: Arc<UnixStream>) {
        self.go_up(self.state(), stream);
    }

    fn go_up(&self, mut state: MutexGuard<'_, State>, stream: Arc<UnixStream>) {
        if matches!(state.phase, Phase::Over(_)) {
            return; // It came too late: the client has been told that none comes.
        }
        if state.has_left {
            let _ = stream.shutdown(Shutdown::Write); // It may be gone, which is as good.
        }
        state.phase = Phase::Up(stream);
        self.wake(state);
    }

    /// Whether there was a connection, and may be one again.
    pub(super) fn was_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(_) | Phase::Down)
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(_))
    }

    /// Whether the client waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.state().ledger.has_open()
    }

    /// The connection is not used any more, and nobody is left who writes there.
    pub(super) fn sever(&self, stream: &UnixStream) {
        let _ = stream.shutdown(Shutdown::Both); // So that whoever writes there notices.
        let mut state = self.state();
        while state.writer != Writer::Nobody {
            state.writer = Writer::Awaited;
            state = self.calm.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if matches!(state.phase, Phase::Up(_)) {
            state.phase = Phase::Down;
        }
    }

    /// The connection was lost. Answers what the client must hear.
    pub(super) fn lost(&self, cause: &str) -> Vec<u8> {
        self.state().ledger.lost(cause)
    }

    /// What a new daemon must hear and answer first.
    pub(super) fn greeting(&self) -> Option<Vec<u8>> {
        self.state().ledger.greeting()
    }

    /// Takes the turn for a replay: what it says, and what the client hears after it.
    pub(super) fn begin_replay(&self) -> (Vec<u8>, &'static str) {
        let mut state = self.state();
        state.writer = Writer::Somebody;
        (state.ledger.replay(), state.ledger.news_of_a_new_daemon())
    }

    /// Gives the turn back after a replay; `stream` if it was wholly written.
    pub(super) fn end_replay(&self, stream: Option<Arc<UnixStream>>) {
        let mut state = self.state();
        self.calm_down(&mut state);
        if let Some(stream) = stream {
            self.go_up(state, stream);
        }
    }

    /// Gives up: every request is answered with `why`, those of the future too.
    ///
    /// Answers what the client must hear, and whether it then knows all.
    pub(super) fn over(&self, why: CallError) -> (Vec<u8>, bool) {
        let mut state = self.state();
        let told = state.ledger.abandon(&why);
        let is_all = state.has_left || (!told.is_empty() && !state.is_waiting);
        state.phase = Phase::Over(Arc::new(why));
        self.wake(state);
        (told, is_all)
    }

    fn calm_down(&self, state: &mut State) {
        if std::mem::replace(&mut state.writer, Writer::Nobody) == Writer::Awaited {
            self.calm.notify_all();
        }
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let is_waiting = state.is_waiting;
        drop(state);
        if is_waiting {
            let _ = (&self.alarm).write(&[1]); // If it is full, there are signs enough.
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
