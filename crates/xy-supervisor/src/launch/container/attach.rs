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
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use xy_shim::sequence::Sequence;

use super::engine::{Pieces, next};
use super::kept::{PlaceFile, TornMark};
use super::log::LogSink;
use super::missed::{Counter, Missed, Noting, Place};
use crate::launch::millis;
use crate::wait::{time_of_day, until};

/// So much is carried at once.
const PIECE: usize = 64 * 1024;

/// A shorter piece that ends a line is written whole or not at all.
const WHOLE: usize = 4096;

/// How soon it is looked whether what was passed on has been read; then less and less often.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);

/// After this time without a write, what was written has arrived.
const ARRIVES_WITHIN: Duration = Duration::from_secs(2);

/// Our ends of the pipes, and where the rest goes.
#[derive(Debug)]
pub(super) struct Carrier {
    /// To whoever speaks with it: what it says on its stdout. None if that is for its log.
    pub(super) stdout: Option<pipe::Sender>,
    /// Something was said that whoever speaks with it did not want any more.
    pub(super) is_unheard: bool,
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
    /// Rings when it is to be left to another daemon.
    pub(super) leave: Arc<Notify>,
    /// Its stream and first process, if its engine hangs up only once that is gone.
    pub(super) sequence: Option<Arc<Sequence>>,
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
    /// The container certainly ran at that moment, so it was not its end that cut the stream.
    pub(super) is_outlived: bool,
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
    /// Passes on what was missed before this stream, then carries until it is cut, or the
    /// container has ended.
    pub(super) async fn carry(
        mut self,
        attached: AttachContainerResults,
        missed: Missed,
    ) -> (Self, Cut) {
        let AttachContainerResults { mut output, mut input } = attached;
        self.count(&missed);
        let way_in = WayIn {
            began: Instant::now(),
            is_busy: AtomicBool::new(false),
            wrote_ms: AtomicU64::new(0),
        };
        {
            let Self {
                stdout,
                is_unheard,
                stdin,
                log,
                counter,
                place,
                torn,
                is_ending,
                is_in_done,
                leave,
                ..
            } = &mut self;
            let out = async {
                let heard = counter.heard();
                *is_unheard |= !pass_on_missed(missed, stdout.as_mut(), log, heard).await;
                let way_out = WayOut { stdout: stdout.as_mut(), is_unheard, log, counter, place };
                carry_out(&mut output, way_out, leave).await;
            };
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
        let is_outlived = self.sequence.as_ref().is_some_and(|it| it.is_cut_off());
        (self, Cut { is_doubtful: way_in.is_doubtful(), is_outlived })
    }

    /// Notes how far it is, once nothing is carried any more.
    pub(super) fn note(&mut self) {
        let used = used(self.stdout.as_ref(), self.is_unheard, &self.log, &self.counter);
        let mut noting = Noting::after(self.place.noted());
        if let Some(noted) = noting.step(&self.counter, used) {
            self.place.write(&noted);
        }
    }

    /// Passes on what was missed before the end.
    pub(super) async fn make_good(&mut self, missed: Missed) {
        self.count(&missed);
        let (stdout, heard) = (self.stdout.as_mut(), self.counter.heard());
        self.is_unheard |= !pass_on_missed(missed, stdout, &self.log, heard).await;
    }

    /// Counts what was missed, which goes another way.
    pub(super) fn count(&mut self, missed: &Missed) {
        self.counter.hear(true, &missed.err, now_ms(), 0);
        self.counter.miss_err(missed.err_lost);
        self.counter.hear(false, &missed.out, now_ms(), 0);
    }
}

/// Where the bytes of a stream go.
struct WayOut<'a> {
    stdout: Option<&'a mut pipe::Sender>,
    is_unheard: &'a mut bool,
    log: &'a LogSink,
    counter: &'a mut Counter,
    place: &'a mut PlaceFile,
}

/// From the stream to the pipe and to the log, until it is over or is to be left.
async fn carry_out(output: &mut Pieces<LogOutput>, way_out: WayOut<'_>, leave: &Notify) {
    let WayOut { mut stdout, is_unheard, log, counter, place } = way_out;
    let mut noting = Noting::after(place.noted());
    loop {
        let asked_at = Instant::now();
        let mut pause = LOOK_AGAIN;
        let piece = loop {
            let used = used(stdout.as_deref(), *is_unheard, log, counter);
            if let Some(noted) = noting.step(counter, used) {
                place.write(&noted);
            }
            let look_at = (!noting.is_done(counter)).then(|| Instant::now() + pause);
            tokio::select! {
                biased;
                // Whoever wants that notes the rest.
                () = leave.notified() => return,
                piece = next(output) => break piece,
                () = until(look_at) => pause = (pause * 2).min(LOOK_AT_LEAST),
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
        let heard = counter.heard();
        let ends = if is_stderr { heard.err } else { heard.out };
        *is_unheard |= !pass_on(is_stderr, bytes, ends, stdout.as_deref_mut(), log).await;
    }
}

/// How much of what was heard has been used. What whoever speaks with it has not read yet, and what
/// is not logged yet, is lost with this daemon.
fn used(
    stdout: Option<&pipe::Sender>,
    is_unheard: bool,
    log: &LogSink,
    counter: &Counter,
) -> [u64; 2] {
    let out = match stdout {
        Some(pipe) => counter.heard().out.saturating_sub(unread_in(pipe, is_unheard)),
        None => log.logged(false),
    };
    [out, log.logged(true)]
}

/// Passes on what was missed, which is the last that was `heard`.
async fn pass_on_missed(
    missed: Missed,
    mut stdout: Option<&mut pipe::Sender>,
    log: &LogSink,
    heard: Place,
) -> bool {
    let Missed { out, err, err_lost, gaps } = missed;
    if gaps[1] {
        log.miss(true, None);
    }
    let err_ends = heard.err.saturating_sub(err_lost);
    pass_on(true, Bytes::from(err), err_ends, stdout.as_deref_mut(), log).await;
    if err_lost > 0 {
        log.miss(true, Some(heard.err));
    }
    if gaps[0] && stdout.is_none() {
        log.miss(false, None);
    }
    pass_on(false, Bytes::from(out), heard.out, stdout, log).await
}

/// `false` if nobody speaks with it any more, so nobody has had it.
async fn pass_on(
    is_stderr: bool,
    bytes: Bytes,
    ends: u64,
    stdout: Option<&mut pipe::Sender>,
    log: &LogSink,
) -> bool {
    match stdout {
        Some(stdout) if !is_stderr => stdout.write_all(&bytes).await.is_ok(),
        _ => {
            log.write(is_stderr, bytes, ends).await;
            true
        }
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

/// How many bytes in a pipe have not been read. All of them, as far as anybody knows, once it has
/// not taken some.
fn unread_in(pipe: &pipe::Sender, is_unheard: bool) -> u64 {
    if is_unheard {
        return u64::MAX;
    }
    // Where it cannot be seen it is taken for read, as a daemon that is killed may lose it.
    rustix::io::ioctl_fionread(pipe).unwrap_or(if cfg!(target_os = "linux") { u64::MAX } else { 0 })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use xy_protocol::server::ServerName;

    use super::super::kept::Keeper;
    use super::super::log::Ledger;
    use super::super::stream;
    use super::*;
    use crate::instance::InstanceKey;
    use crate::logs::LogBook;

    /// A carrier of a container whose engine is at the other end.
    fn carrier(folder: &std::path::Path) -> (Carrier, PipeEnds, Keeper) {
        let key = InstanceKey::shared(ServerName::new("one").unwrap());
        let keeper = Keeper::new(folder, &key, "abc", std::path::Path::new("/d.sock"));
        let (stdin, stdout, ends) = pipes().unwrap();
        let ledger = Ledger::begin(keeper.lines(), [0; 2]);
        let (log, _) = LogSink::open(&folder.join("one.log"), Arc::new(LogBook::default()), ledger);
        let place = keeper.place();
        let carrier = Carrier {
            stdout: Some(stdout),
            is_unheard: false,
            stdin: Some(stdin),
            log,
            counter: Counter::after(place.noted()),
            place,
            torn: keeper.torn_mark(),
            is_ending: Arc::default(),
            is_in_done: watch::channel(false).0,
            leave: Arc::default(),
            sequence: None,
        };
        (carrier, ends, keeper)
    }

    #[tokio::test]
    async fn what_cannot_be_had_of_stderr_does_not_hold_up_what_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let (mut carrier, _ends, keeper) = carrier(folder.path());
        for (err, err_lost, noted) in [("oops\n", 7, 12), ("", 3, 15)] {
            let missed = Missed { err: err.into(), err_lost, ..Missed::default() };
            carrier.make_good(missed).await;
            carrier.log.leave().await;
            carrier.note();
            assert_eq!(keeper.place().noted().err, noted);
            assert!(Noting::after(keeper.place().noted()).is_done(&carrier.counter));
        }
        let kept = super::super::log::take_up(
            keeper.lines(),
            &folder.path().join("one.log"),
            keeper.place().noted(),
            true,
        );
        assert_eq!(kept.ledger.logged(), [0, 15], "and the next daemon believes it");
    }

    /// The daemon is replaced, and whoever spoke with it reads no more, or has read all.
    #[tokio::test]
    async fn what_is_said_to_nobody_is_left_to_the_next_daemon() {
        for is_read in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (carrier, PipeEnds { stdin, stdout }, keeper) = carrier(folder.path());
            let (ours, mut engine) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let (attached, _) = stream::resume(ours.into(), None).unwrap();
            let leave = carrier.leave.clone();
            let carrying = tokio::spawn(carrier.carry(attached, Missed::default()));
            let mut reader = pipe::Receiver::from_owned_fd(stdout).ok().filter(|_| is_read);
            engine.write_all(b"\x01\0\0\0\0\0\0\x04one\n").unwrap();
            if let Some(reader) = &mut reader {
                let mut line = [0; 4];
                reader.read_exact(&mut line).await.unwrap();
                assert_eq!(&line, b"one\n");
            } else {
                // Until it has been taken off the stream.
                engine.write_all(b"\x02\0\0\0\0\0\0\x05oops\n").unwrap();
                let log = folder.path().join("one.log");
                let is_logged =
                    || std::fs::read_to_string(&log).is_ok_and(|it| it.contains("oops"));
                while !is_logged() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            leave.notify_one();
            let (mut carrier, _) = carrying.await.unwrap();
            carrier.log.leave().await;
            carrier.note();
            let noted = keeper.place().noted();
            assert_eq!((noted.out, noted.err), if is_read { (4, 0) } else { (0, 5) });
            drop((stdin, reader));
        }
    }
}
