//! Carries bytes between an attached stream and the pipes of whoever speaks with a server.
//!
//! One stream has all three: stdin one way, stdout and stderr in turns the other way. Nothing
//! is kept here but the piece that is being carried: who is slow makes the other side wait.

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
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::engine::{Pieces, next};
use super::kept::{PlaceFile, TornMark};
use super::log::LogSink;
use super::missed::{Counter, Missed, overlap};
use crate::launch::millis;
use crate::wait::time_of_day;

/// So much is carried at once.
const PIECE: usize = 64 * 1024;

/// A shorter piece that ends a line is written whole or not at all.
const WHOLE: usize = 4096;

/// How soon it is looked whether what was passed on has been read; then less and less often.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);

/// After this time without a write, what was written has arrived.
const ARRIVES_WITHIN: Duration = Duration::from_secs(2);

/// How long a fresh stream is listened to for what the engine's log has as well.
const FRESH_WITHIN: Duration = Duration::from_millis(100);

/// Our ends of the pipes, and where the rest goes.
#[derive(Debug)]
pub(super) struct Carrier {
    /// To whoever speaks with it: what it says on its stdout. None if that is for its log.
    pub(super) stdout: Option<pipe::Sender>,
    /// From whoever speaks with it. None once that has been closed.
    pub(super) stdin: Option<pipe::Receiver>,
    pub(super) log: LogSink,
    pub(super) counter: Counter,
    pub(super) place: PlaceFile,
    pub(super) torn: TornMark,
    /// Whether it may hear that nothing more will come: its end has been asked for, and its engine
    /// would pass that on.
    pub(super) is_ending: Arc<AtomicBool>,
    /// Whether whoever speaks with it has closed its pipe, and all in it has been carried.
    pub(super) is_in_done: watch::Sender<bool>,
}

/// The other ends.
#[derive(Debug)]
pub(super) struct PipeEnds {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
}

/// Two pipes: our ends, and those of whoever speaks with the server.
pub(super) fn pipes() -> io::Result<(pipe::Receiver, pipe::Sender, PipeEnds)> {
    let (stdin, their_stdin) = io::pipe()?;
    let (their_stdout, stdout) = io::pipe()?;
    let (stdin, stdout): (OwnedFd, OwnedFd) = (stdin.into(), stdout.into());
    let ends = PipeEnds { stdin: their_stdin.into(), stdout: their_stdout.into() };
    for end in [&stdin, &stdout, &ends.stdin, &ends.stdout] {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    Ok((pipe::Receiver::from_owned_fd(stdin)?, pipe::Sender::from_owned_fd(stdout)?, ends))
}

/// Why nothing is carried any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// What was written last may not have arrived: half a message, or one that is lost.
    pub(super) is_doubtful: bool,
}

/// What is known of the way in, also when it is dropped half-way.
#[derive(Debug)]
struct WayIn {
    began: Instant,
    /// Not all that was taken has been written.
    is_busy: AtomicBool,
    /// When it was last written, in milliseconds since it began; 0 for never.
    wrote_ms: AtomicU64,
}

impl WayIn {
    fn is_doubtful(&self) -> bool {
        let wrote = self.wrote_ms.load(Ordering::Relaxed);
        let since = millis(self.began.elapsed()).saturating_sub(wrote);
        self.is_busy.load(Ordering::Relaxed) || (wrote > 0 && since < millis(ARRIVES_WITHIN))
    }
}

impl Carrier {
    /// Carries until the stream is cut, or the container has ended.
    pub(super) async fn carry(mut self, attached: AttachContainerResults) -> (Self, Cut) {
        let AttachContainerResults { mut output, mut input } = attached;
        let way_in = WayIn {
            began: Instant::now(),
            is_busy: AtomicBool::new(false),
            wrote_ms: AtomicU64::new(0),
        };
        {
            let Self { stdout, stdin, log, counter, place, torn, is_ending, is_in_done } =
                &mut self;
            let out = carry_out(&mut output, stdout.as_mut(), log, counter, place);
            let inward = async {
                carry_in(stdin, &mut input, torn, &way_in).await;
                is_in_done.send_replace(true);
                if is_ending.load(Ordering::Relaxed) {
                    let _ = input.shutdown().await; // It may be gone already.
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
        (self, Cut { is_doubtful: way_in.is_doubtful() })
    }

    /// Passes on what was missed before a fresh stream.
    pub(super) async fn make_good(&mut self, missed: Missed) {
        self.count(&missed);
        let Self { stdout, log, .. } = self;
        pass_on(true, Bytes::from(missed.err), stdout.as_mut(), log).await;
        pass_on(false, Bytes::from(missed.out), stdout.as_mut(), log).await;
    }

    /// Counts what was missed, which goes another way.
    pub(super) fn count(&mut self, missed: &Missed) {
        self.counter.hear(true, &missed.err, now_ms(), 0);
        self.counter.hear(false, &missed.out, now_ms(), 0);
    }
}

/// What was missed, and what has come on a fresh stream since: once, whichever way it came.
pub(super) async fn with_fresh(mut missed: Missed, output: &mut Pieces<LogOutput>) -> Missed {
    let mut fresh = Missed::default();
    while let Ok(Some(Ok(piece))) = timeout(FRESH_WITHIN, next(output)).await {
        match piece {
            LogOutput::StdErr { message } => fresh.err.extend_from_slice(&message),
            other => fresh.out.extend_from_slice(other.as_ref()),
        }
        if fresh.out.len() + fresh.err.len() > PIECE {
            break;
        }
    }
    let (twice_out, twice_err) =
        (overlap(&missed.out, &fresh.out), overlap(&missed.err, &fresh.err));
    missed.out.extend_from_slice(&fresh.out[twice_out..]);
    missed.err.extend_from_slice(&fresh.err[twice_err..]);
    missed
}

/// From the stream to the pipe and to the log.
async fn carry_out(
    output: &mut Pieces<LogOutput>,
    mut stdout: Option<&mut pipe::Sender>,
    log: &LogSink,
    counter: &mut Counter,
    place: &PlaceFile,
) {
    let mut is_noted = false;
    loop {
        let asked_at = Instant::now();
        let mut pause = LOOK_AGAIN;
        let piece = loop {
            // What whoever speaks with it has not read yet is lost with this daemon.
            let is_used = stdout.as_deref().is_none_or(is_empty);
            if !is_noted && is_used {
                place.write(&counter.place());
                is_noted = true;
            }
            if is_noted {
                break next(output).await;
            }
            match timeout(pause, next(output)).await {
                Ok(piece) => break piece,
                Err(_) => pause = (pause * 2).min(LOOK_AT_LEAST),
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
        counter.hear(is_stderr, &bytes, now_ms(), millis(asked_at.elapsed()));
        pass_on(is_stderr, bytes, stdout.as_deref_mut(), log).await;
        is_noted = false;
    }
}

async fn pass_on(is_stderr: bool, bytes: Bytes, stdout: Option<&mut pipe::Sender>, log: &LogSink) {
    match stdout {
        Some(stdout) if !is_stderr => {
            let _ = stdout.write_all(&bytes).await; // Nobody may speak with it any more.
        }
        _ => log.write(is_stderr, bytes).await,
    }
}

/// From the pipe to the stream, until the pipe is closed.
async fn carry_in(
    stdin: &mut Option<pipe::Receiver>,
    input: &mut Pin<Box<dyn AsyncWrite + Send>>,
    torn: &mut TornMark,
    way: &WayIn,
) {
    let Some(pipe) = stdin else { return std::future::pending().await };
    let mut piece = vec![0; PIECE];
    loop {
        let length = match pipe.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(length) => length,
        };
        way.is_busy.store(true, Ordering::Relaxed);
        let bytes = &piece[..length];
        let is_whole = bytes.ends_with(b"\n");
        if !is_whole || length > WHOLE {
            torn.set(true);
        }
        if input.write_all(bytes).await.is_err() || input.flush().await.is_err() {
            return std::future::pending().await; // The way out is cut as well, and says so.
        }
        way.wrote_ms.store(millis(way.began.elapsed()).max(1), Ordering::Relaxed);
        way.is_busy.store(!is_whole, Ordering::Relaxed);
        if is_whole {
            torn.set(false);
        }
    }
    *stdin = None;
}

fn now_ms() -> u64 {
    millis(time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Whether everything in a pipe has been read.
fn is_empty(pipe: &pipe::Sender) -> bool {
    // Where it cannot be seen it is taken for read, as a daemon that is killed may lose it.
    rustix::io::ioctl_fionread(pipe).is_ok_and(|unread| unread == 0)
        || cfg!(not(target_os = "linux"))
}
