//! The relay of bytes between an attached stream and the pipes of a protocol driver.
//!
//! One stream carries stdin in one direction, stdout and stderr in the other. The relay buffers
//! only the chunk in transit: a slow reader makes the other side wait.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bollard::container::{AttachContainerResults, LogOutput};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use xy_shim::end_watch::EndWatch;
use xy_supervisor::wait::millis;
use xy_supervisor::wait::{time_of_day, until};

use crate::engine::{ChunkStream, next};
use crate::log::LogSink;
use crate::log_gap::{MissedOutput, OutputCounter, OutputPosition, PositionTracker};
use crate::state_file::{PositionFile, TornMark};

/// Size of one read.
const READ_BYTES: usize = 64 * 1024;

/// Maximum size of a write to the stream that is delivered whole or not at all, if it ends a line.
const ATOMIC_WRITE_BYTES: usize = 4096;

/// First interval between two checks whether forwarded output has been read; it then doubles up to
/// the maximum.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time after a write when it has certainly arrived.
const DELIVERY_TIME: Duration = Duration::from_secs(2);

/// The relay's ends of the pipes, and the other destinations of the output.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Pipe to the protocol driver for the server's stdout. `None` if stdout is only logged.
    pub(crate) stdout: Option<pipe::Sender>,
    /// True if the protocol driver did not accept some output.
    pub(crate) has_undelivered: bool,
    /// Pipe from the protocol driver for the server's stdin. `None` once the driver has closed it.
    pub(crate) stdin: Option<pipe::Receiver>,
    pub(crate) log: LogSink,
    pub(crate) counter: OutputCounter,
    pub(crate) position: PositionFile,
    pub(crate) torn: TornMark,
    /// Whether closing stdin is passed on: the end has been requested, and the engine then closes
    /// the container's stdin.
    pub(crate) is_ending: Arc<AtomicBool>,
    /// True once the protocol driver has closed its pipe, and everything in it has been written.
    pub(crate) stdin_drained: watch::Sender<bool>,
    /// Notified when the container is to be left to another daemon.
    pub(crate) handover: Arc<Notify>,
    /// Tells whether the stream or the first process ended first, at an engine that closes the
    /// stream only after the exit.
    pub(crate) end_watch: Option<Arc<EndWatch>>,
}

/// The protocol driver's ends of the pipes.
#[derive(Debug)]
pub(crate) struct PipeEnds {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
}

/// Creates two pipes; returns the ends of the relay and those of the protocol driver.
pub(crate) fn pipes() -> io::Result<(pipe::Receiver, pipe::Sender, PipeEnds)> {
    let (stdin, driver_stdin) = io::pipe()?;
    let (driver_stdout, stdout) = io::pipe()?;
    let (stdin, stdout): (OwnedFd, OwnedFd) = (stdin.into(), stdout.into());
    let ends = PipeEnds { stdin: driver_stdin.into(), stdout: driver_stdout.into() };
    for end in [&stdin, &stdout, &ends.stdin, &ends.stdout] {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    Ok((pipe::Receiver::from_owned_fd(stdin)?, pipe::Sender::from_owned_fd(stdout)?, ends))
}

/// The end of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disconnect {
    /// The last write may not have arrived: a message may be cut, or lost.
    pub(crate) is_doubtful: bool,
    /// The container was certainly running, so its exit was not the cause.
    pub(crate) container_was_running: bool,
}

/// Progress of the input, which is needed even if its future is dropped.
#[derive(Debug)]
struct InputProgress {
    started_at: Instant,
    /// True while some input that was read is not yet written.
    is_busy: AtomicBool,
    /// Time of the last write, in milliseconds since `started_at`; 0 for never.
    wrote_ms: AtomicU64,
}

impl InputProgress {
    fn is_doubtful(&self) -> bool {
        let wrote = self.wrote_ms.load(Ordering::Relaxed);
        let since = millis(self.started_at.elapsed()).saturating_sub(wrote);
        self.is_busy.load(Ordering::Relaxed) || (wrote > 0 && since < millis(DELIVERY_TIME))
    }
}

impl Relay {
    /// Forwards missed output, then relays until the stream ends or the container has exited.
    pub(crate) async fn run(
        mut self,
        attached: AttachContainerResults,
        missed: MissedOutput,
    ) -> (Self, Disconnect) {
        let AttachContainerResults { mut output, mut input } = attached;
        self.count(&missed);
        let input_progress = InputProgress {
            started_at: Instant::now(),
            is_busy: AtomicBool::new(false),
            wrote_ms: AtomicU64::new(0),
        };
        {
            let Self {
                stdout,
                has_undelivered,
                stdin,
                log,
                counter,
                position,
                torn,
                is_ending,
                stdin_drained,
                handover,
                ..
            } = &mut self;
            let out = async {
                let received = counter.exact_position();
                *has_undelivered |= !forward_missed(missed, stdout.as_mut(), log, received).await;
                let sinks = OutputSinks {
                    stdout: stdout.as_mut(),
                    has_undelivered,
                    log,
                    counter,
                    position,
                };
                relay_output(&mut output, sinks, handover).await;
            };
            let inward = async {
                relay_input(stdin, &mut input, torn, &input_progress).await;
                stdin_drained.send_replace(true);
                if is_ending.load(Ordering::Relaxed) {
                    let _ = input.shutdown().await; // The stream may be gone already.
                }
            };
            tokio::pin!(out, inward);
            let mut is_in_open = true;
            loop {
                tokio::select! {
                    () = &mut out => break,
                    () = &mut inward, if is_in_open => is_in_open = false,
                }
            }
        }
        let container_was_running = self.end_watch.as_ref().is_some_and(|it| it.was_cut_off());
        (self, Disconnect { is_doubtful: input_progress.is_doubtful(), container_was_running })
    }

    /// Notes the position after the relay has ended.
    pub(crate) fn note(&mut self) {
        let consumed =
            consumed(self.stdout.as_ref(), self.has_undelivered, &self.log, &self.counter);
        let mut tracker = PositionTracker::after(self.position.noted());
        if let Some(noted) = tracker.step(&self.counter, consumed) {
            self.position.write(&noted);
        }
    }

    /// Forwards output that was missed before the exit.
    pub(crate) async fn deliver(&mut self, missed: MissedOutput) {
        self.count(&missed);
        let (stdout, received) = (self.stdout.as_mut(), self.counter.exact_position());
        self.has_undelivered |= !forward_missed(missed, stdout, &self.log, received).await;
    }

    /// Counts missed output that is forwarded another way.
    pub(crate) fn count(&mut self, missed: &MissedOutput) {
        self.counter.add(true, &missed.err, now_ms(), 0);
        self.counter.skip_err(missed.err_lost);
        self.counter.add(false, &missed.out, now_ms(), 0);
    }
}

/// The destinations of the output.
struct OutputSinks<'a> {
    stdout: Option<&'a mut pipe::Sender>,
    has_undelivered: &'a mut bool,
    log: &'a LogSink,
    counter: &'a mut OutputCounter,
    position: &'a mut PositionFile,
}

/// Relays from the stream to the pipe and to the log, until the stream ends or is handed over.
async fn relay_output(
    output: &mut ChunkStream<LogOutput>,
    sinks: OutputSinks<'_>,
    handover: &Notify,
) {
    let OutputSinks { mut stdout, has_undelivered, log, counter, position } = sinks;
    let mut tracker = PositionTracker::after(position.noted());
    loop {
        let asked_at = Instant::now();
        let mut pause = MIN_POLL_INTERVAL;
        let piece = loop {
            let consumed = consumed(stdout.as_deref(), *has_undelivered, log, counter);
            if let Some(noted) = tracker.step(counter, consumed) {
                position.write(&noted);
            }
            let look_at = (!tracker.is_done(counter)).then(|| Instant::now() + pause);
            tokio::select! {
                biased;
                // The caller of the handover notes the position.
                () = handover.notified() => return,
                piece = next(output) => break piece,
                () = until(look_at) => pause = (pause * 2).min(MAX_POLL_INTERVAL),
            }
        };
        let (is_stderr, bytes) = match piece {
            None | Some(Err(_)) => return,
            Some(Ok(LogOutput::StdErr { message })) => (true, message),
            Some(Ok(LogOutput::StdIn { .. })) => continue,
            Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => {
                (false, message)
            }
        };
        counter.add(is_stderr, &bytes, now_ms(), millis(asked_at.elapsed()));
        let received = counter.exact_position();
        let end_offset = if is_stderr { received.err } else { received.out };
        *has_undelivered |=
            !forward(is_stderr, bytes, end_offset, stdout.as_deref_mut(), log).await;
    }
}

/// Returns how many received bytes of stdout and of stderr have been consumed. Output that the
/// protocol driver has not read, or that is not logged yet, is lost with this daemon.
fn consumed(
    stdout: Option<&pipe::Sender>,
    has_undelivered: bool,
    log: &LogSink,
    counter: &OutputCounter,
) -> [u64; 2] {
    let out = match stdout {
        Some(pipe) => {
            counter.exact_position().out.saturating_sub(unread_bytes(pipe, has_undelivered))
        }
        None => log.logged(false),
    };
    [out, log.logged(true)]
}

/// Forwards missed output; `heard` is the position after it.
async fn forward_missed(
    missed: MissedOutput,
    mut stdout: Option<&mut pipe::Sender>,
    log: &LogSink,
    received: OutputPosition,
) -> bool {
    let MissedOutput { out, err, err_lost, gaps } = missed;
    if gaps[1] {
        log.mark_gap(true, None);
    }
    let err_ends = received.err.saturating_sub(err_lost);
    forward(true, Bytes::from(err), err_ends, stdout.as_deref_mut(), log).await;
    if err_lost > 0 {
        log.mark_gap(true, Some(received.err));
    }
    if gaps[0] && stdout.is_none() {
        log.mark_gap(false, None);
    }
    forward(false, Bytes::from(out), received.out, stdout, log).await
}

/// Forwards output; returns false if the protocol driver is gone and has not received it.
async fn forward(
    is_stderr: bool,
    bytes: Bytes,
    end_offset: u64,
    stdout: Option<&mut pipe::Sender>,
    log: &LogSink,
) -> bool {
    match stdout {
        Some(stdout) if !is_stderr => stdout.write_all(&bytes).await.is_ok(),
        _ => {
            log.write(is_stderr, bytes, end_offset).await;
            true
        }
    }
}

/// Relays from the pipe to the stream, until the pipe is closed.
async fn relay_input(
    stdin: &mut Option<pipe::Receiver>,
    input: &mut Pin<Box<dyn AsyncWrite + Send>>,
    torn: &mut TornMark,
    progress: &InputProgress,
) {
    let Some(pipe) = stdin else { return std::future::pending().await };
    let mut piece = vec![0; READ_BYTES];
    loop {
        let length = match pipe.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(length) => length,
        };
        progress.is_busy.store(true, Ordering::Relaxed);
        let bytes = &piece[..length];
        let is_whole = bytes.ends_with(b"\n");
        if !is_whole || length > ATOMIC_WRITE_BYTES {
            torn.set(true);
        }
        if input.write_all(bytes).await.is_err() || input.flush().await.is_err() {
            // The output ends as well, and reports the disconnect.
            return std::future::pending().await;
        }
        progress.wrote_ms.store(millis(progress.started_at.elapsed()).max(1), Ordering::Relaxed);
        progress.is_busy.store(!is_whole, Ordering::Relaxed);
        if is_whole {
            torn.set(false);
        }
    }
    *stdin = None;
}

fn now_ms() -> u64 {
    millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Returns how many bytes in a pipe have not been read. Once the driver has not accepted some, none
/// count as read.
fn unread_bytes(pipe: &pipe::Sender, has_undelivered: bool) -> u64 {
    if has_undelivered {
        return u64::MAX;
    }
    // Where it cannot be known, output counts as read; a killed daemon may lose it.
    rustix::io::ioctl_fionread(pipe).unwrap_or(if cfg!(target_os = "linux") { u64::MAX } else { 0 })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use xy_protocol::server::ServerName;
    use xy_supervisor::instance::InstanceKey;
    use xy_supervisor::logs::LogBook;

    use super::*;
    use crate::log::Ledger;
    use crate::state_file::StateFile;
    use crate::stream;

    /// Creates a relay of a container whose engine the test plays.
    fn relay(folder: &std::path::Path) -> (Relay, PipeEnds, StateFile) {
        let key = InstanceKey::shared(ServerName::new("one").unwrap());
        let state_file = StateFile::new(folder, &key, "abc", std::path::Path::new("/d.sock"));
        let (stdin, stdout, ends) = pipes().unwrap();
        let ledger = Ledger::begin(state_file.ledger_path(), [0; 2]);
        let (log, _) = LogSink::open(&folder.join("one.log"), Arc::new(LogBook::default()), ledger);
        let position = state_file.position_file();
        let relay = Relay {
            stdout: Some(stdout),
            has_undelivered: false,
            stdin: Some(stdin),
            log,
            counter: OutputCounter::after(position.noted()),
            position,
            torn: state_file.torn_mark(),
            is_ending: Arc::default(),
            stdin_drained: watch::channel(false).0,
            handover: Arc::default(),
            end_watch: None,
        };
        (relay, ends, state_file)
    }

    #[tokio::test]
    async fn lost_stderr_does_not_block_noted_position() {
        let folder = tempfile::tempdir().unwrap();
        let (mut relay, _ends, state_file) = relay(folder.path());
        for (err, err_lost, noted) in [("oops\n", 7, 12), ("", 3, 15)] {
            let missed = MissedOutput { err: err.into(), err_lost, ..MissedOutput::default() };
            relay.deliver(missed).await;
            relay.log.leave().await;
            relay.note();
            assert_eq!(state_file.position_file().noted().err, noted);
            assert!(
                PositionTracker::after(state_file.position_file().noted()).is_done(&relay.counter)
            );
        }
        let kept = crate::log::recover(
            state_file.ledger_path(),
            &folder.path().join("one.log"),
            state_file.position_file().noted(),
            true,
        );
        assert_eq!(kept.ledger.logged(), [0, 15], "and the next daemon believes it");
    }

    /// The daemon is replaced while the driver has read nothing, or everything.
    #[tokio::test]
    async fn unread_output_is_left_to_next_daemon() {
        for is_read in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (relay, PipeEnds { stdin, stdout }, state_file) = relay(folder.path());
            let (ours, mut engine) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let (attached, _) = stream::resume(ours.into(), None).unwrap();
            let handover = relay.handover.clone();
            let relaying = tokio::spawn(relay.run(attached, MissedOutput::default()));
            let mut reader = pipe::Receiver::from_owned_fd(stdout).ok().filter(|_| is_read);
            engine.write_all(b"\x01\0\0\0\0\0\0\x04one\n").unwrap();
            if let Some(reader) = &mut reader {
                let mut line = [0; 4];
                reader.read_exact(&mut line).await.unwrap();
                assert_eq!(&line, b"one\n");
            } else {
                // This output shows that the first has been taken off the stream.
                engine.write_all(b"\x02\0\0\0\0\0\0\x05oops\n").unwrap();
                let log = folder.path().join("one.log");
                let is_logged =
                    || std::fs::read_to_string(&log).is_ok_and(|it| it.contains("oops"));
                while !is_logged() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            handover.notify_one();
            let (mut relay, _) = relaying.await.unwrap();
            relay.log.leave().await;
            relay.note();
            let noted = state_file.position_file().noted();
            assert_eq!((noted.out, noted.err), if is_read { (4, 0) } else { (0, 5) });
            drop((stdin, reader));
        }
    }
}
