//! Recording of a session: all messages with their times, in a file for a bug report.
//!
//! The upward and downward threads copy lines into a bounded queue; another thread masks and
//! writes them. A full or slow disk ends the recording, never the session.

mod create;
mod writer;

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::SIGXFSZ;
use xy_config::Paths;
use xy_protocol::mask::MessageMasker;
use xy_protocol::time::Timestamp;

use crate::clock::{Deadline, Stopwatch};
use crate::failure::Failure;
use crate::output::Output;
use writer::{End, RecordingWriter};

/// Maximum size of a recording, in bytes.
const MAX_RECORDING: u64 = 256 * 1024 * 1024;

/// Maximum size of the queue, in bytes. A larger entry has the queue for itself.
const MAX_QUEUED: usize = 64 * 1024 * 1024;

/// Overhead of an entry in the queue, in bytes.
const ENTRY_OVERHEAD: usize = 128;

/// How long a message waits for room in the queue before the recording ends.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of the session waits until everything is written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The side that a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Client,
    Server,
    /// The bridge itself, in place of the server.
    Bridge,
}

/// One entry of a recording.
#[derive(Debug)]
struct Entry {
    at: Duration,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Complete lines, each a message.
    Lines { from: Origin, lines: Vec<u8> },
    /// An event of the bridge.
    Event { event: &'static str, cause: Option<String> },
}

impl Content {
    /// Returns its size in the queue.
    fn size(&self) -> usize {
        ENTRY_OVERHEAD
            + match self {
                Self::Lines { lines, .. } => lines.len(),
                Self::Event { cause, .. } => cause.as_ref().map_or(0, String::len),
            }
    }
}

/// The recording of one session, for all threads of the bridge.
#[derive(Debug)]
pub(super) struct Recorder {
    queue: Arc<Queue>,
}

impl Recorder {
    /// Creates the file and starts the thread that writes to it.
    pub(super) fn start(path: &Path, paths: Paths) -> Result<Self, Failure> {
        // Without a handler, exceeding the file size limit would kill the bridge.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
        let file = create::create(path)?;
        let started = crate::clock::now();
        let queue = Arc::new(Queue::new(MAX_QUEUED, QUEUE_TIMEOUT));
        let shared = Arc::clone(&queue);
        super::spawn("recording", move || write(&shared, file, started, &paths))
            .map_err(|cause| Failure::internal("the recording could not be started", cause))?;
        Ok(Self { queue })
    }

    /// Records complete lines.
    pub(super) fn record(&self, from: Origin, lines: &[u8]) {
        if !lines.is_empty() {
            self.push(Content::Lines { from, lines: lines.to_vec() });
        }
    }

    /// Records an event of the bridge.
    pub(super) fn note(&self, event: &'static str, cause: Option<String>) {
        self.push(Content::Event { event, cause });
    }

    /// Waits until everything is written, within a limit.
    pub(super) fn finish(&self, output: &mut Output) {
        self.note("session ended", None);
        if !self.queue.close(FLUSH_TIMEOUT) {
            output.print_stderr(&warning(&End::TooSlow(FLUSH_TIMEOUT)));
        }
    }

    fn push(&self, content: Content) {
        if self.queue.push(content) == PushOutcome::Overrun {
            // On a separate thread, as the session must not block on stderr.
            let warning = warning(&End::TooSlow(QUEUE_TIMEOUT));
            let _ = super::spawn("warning", move || Output::new().print_stderr(&warning));
        }
    }
}

/// Writes entries until the session or the recording ends.
fn write(queue: &Queue, file: File, started: Timestamp, paths: &Paths) {
    // Reading settings may take a while; the queue holds messages meanwhile.
    let masker = MessageMasker::new(xy_daemon::diagnostics::secrets_on_disk(paths));
    let mut writer = RecordingWriter::new(file, MAX_RECORDING, masker);
    let mut result = writer.write_header(started, std::env::args_os().skip(1));
    while result.is_ok()
        && let Some(entry) = queue.next()
    {
        result = writer.write(&entry);
        queue.mark_written(&entry);
    }
    match result {
        // The user was warned when the queue had no room.
        _ if queue.is_overrun() => {
            writer.write_end(queue.clock.elapsed(), &End::TooSlow(QUEUE_TIMEOUT));
        }
        Ok(()) => {}
        Err(end) => {
            queue.discard();
            Output::new().print_stderr(&warning(&end));
        }
    }
    queue.mark_done();
}

fn warning(end: &End) -> String {
    format!("warning: the recording is incomplete, but the session is not affected: {end}\n")
}

/// Entries that are not written yet.
#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    clock: Stopwatch,
    max_bytes: usize,
    timeout: Duration,
}

#[derive(Debug)]
struct QueueState {
    entries: VecDeque<Entry>,
    /// The size of all entries, with the one that is being written.
    bytes: usize,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// No entries are accepted; the rest is written.
    Closing,
    /// There was no room in time. The writer may hang, and nothing waits for it.
    Overrun,
    /// The writer has ended.
    Done,
}

/// The result of adding an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushOutcome {
    Queued,
    /// The recording had ended before.
    Dropped,
    /// There was no room in time; this entry has ended the recording.
    Overrun,
}

impl Queue {
    fn new(max_bytes: usize, timeout: Duration) -> Self {
        let state = QueueState { entries: VecDeque::new(), bytes: 0, phase: Phase::Open };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { state, changed, clock: Stopwatch::start(), max_bytes, timeout }
    }

    /// Adds an entry, and waits for room if necessary.
    fn push(&self, content: Content) -> PushOutcome {
        let size = content.size();
        let deadline = Deadline::after(self.timeout);
        let mut state = self.state();
        loop {
            if state.phase != Phase::Open {
                return PushOutcome::Dropped;
            }
            if state.bytes == 0 || state.bytes + size <= self.max_bytes {
                break;
            }
            let left = deadline.remaining_at_most(self.timeout);
            if left.is_zero() {
                state.phase = Phase::Overrun;
                state.entries.clear();
                return PushOutcome::Overrun;
            }
            state = self.wait(state, left);
        }
        // Under the lock, so that times never decrease.
        state.entries.push_back(Entry { at: self.clock.elapsed(), content });
        state.bytes += size;
        self.changed.notify_all();
        PushOutcome::Queued
    }

    /// Waits for the next entry; `None` if none will come.
    fn next(&self) -> Option<Entry> {
        let mut state = self.state();
        loop {
            if let Some(entry) = state.entries.pop_front() {
                return Some(entry);
            }
            if state.phase != Phase::Open {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Frees the room of an entry.
    fn mark_written(&self, entry: &Entry) {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_sub(entry.content.size());
        self.changed.notify_all();
    }

    /// Accepts no more entries and drops those that are not written.
    fn discard(&self) {
        let mut state = self.state();
        state.entries.clear();
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        self.changed.notify_all();
    }

    fn is_overrun(&self) -> bool {
        self.state().phase == Phase::Overrun
    }

    fn mark_done(&self) {
        self.state().phase = Phase::Done;
        self.changed.notify_all();
    }

    /// Accepts no more entries and waits for the writer; returns false if it takes too long.
    fn close(&self, within: Duration) -> bool {
        let deadline = Deadline::after(within);
        let mut state = self.state();
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        self.changed.notify_all();
        while state.phase == Phase::Closing {
            let left = deadline.remaining_at_most(within);
            if left.is_zero() {
                return false;
            }
            state = self.wait(state, left);
        }
        true
    }

    fn wait<'q>(
        &self,
        state: MutexGuard<'q, QueueState>,
        within: Duration,
    ) -> MutexGuard<'q, QueueState> {
        let waited = self.changed.wait_timeout(state, within);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: usize) -> Content {
        Content::Lines { from: Origin::Client, lines: vec![b'x'; bytes] }
    }

    #[test]
    fn entries_are_taken_in_order_with_times_that_never_decrease() {
        let queue = Queue::new(MAX_QUEUED, QUEUE_TIMEOUT);
        for length in 1..=3 {
            assert_eq!(queue.push(line(length)), PushOutcome::Queued);
        }
        let entries: Vec<Entry> = (0..3).map(|_| queue.next().unwrap()).collect();
        assert!(entries.is_sorted_by_key(|entry| entry.at));
        let sizes: Vec<usize> = entries.iter().map(|it| it.content.size()).collect();
        assert_eq!(sizes, [1, 2, 3].map(|length| ENTRY_OVERHEAD + length));
    }

    #[test]
    fn full_queue_ends_the_recording() {
        let queue = Queue::new(1000, Duration::ZERO);
        assert_eq!(queue.push(line(5000)), PushOutcome::Queued, "one entry always has room");
        assert_eq!(queue.push(line(1)), PushOutcome::Overrun);
        assert_eq!(queue.push(line(1)), PushOutcome::Dropped);
        assert!(queue.next().is_none() && queue.is_overrun());
        assert!(queue.close(Duration::ZERO), "a writer that hangs is not waited for");
    }

    #[test]
    fn failed_recording_drops_entries() {
        let queue = Queue::new(MAX_QUEUED, QUEUE_TIMEOUT);
        queue.push(line(1));
        queue.discard();
        assert_eq!(queue.push(line(1)), PushOutcome::Dropped);
        assert!(queue.next().is_none());
    }

    #[test]
    fn written_entries_free_space() {
        let queue = Queue::new(1000, Duration::ZERO);
        for _ in 0..100 {
            assert_eq!(queue.push(line(800)), PushOutcome::Queued);
            let entry = queue.next().unwrap();
            queue.mark_written(&entry);
        }
    }

    #[test]
    fn closed_queue_returns_remaining_entries() {
        let queue = Queue::new(MAX_QUEUED, QUEUE_TIMEOUT);
        queue.push(line(1));
        assert!(!queue.close(Duration::ZERO), "an entry is not written");
        assert_eq!(queue.push(line(1)), PushOutcome::Dropped);
        assert!(queue.next().is_some());
        assert!(queue.next().is_none());
        assert!(!queue.close(Duration::ZERO), "the writer has not ended");
        queue.mark_done();
        assert!(queue.close(Duration::ZERO));
    }
}
