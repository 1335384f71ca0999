//! An attached stream that one daemon can leave at any byte and another can resume.
//!
//! A daemon may be killed at any instant. So bytes are peeked at, and the position after them is
//! written down, before they are taken off the stream. The next daemon can then tell whether they
//! were taken. The engine's log has a copy of output that was taken but not used (`log_gap.rs`).
//!
//! Frames are read in parts, so their size does not matter. Everything but the reading is pure.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bytes::Bytes;
use futures_core::Stream;
use rustix::net::{RecvFlags, Shutdown, recv};
use tokio::io::{AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;
use xy_config::trust::open_own;
use xy_shim::stream_holder::is_hung_up;

/// Size of one read: two frames of Podman's.
const CHUNK_BYTES: usize = 16 * 1024;

/// Maximum size of the head of a response.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Time for an engine to say why it does not attach.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Size of a frame's header.
const FRAME_HEADER_BYTES: usize = 8;

/// Maximum length of the compared beginning of a read.
const FINGERPRINT_BYTES: usize = 4096;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// A position within a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StreamPosition {
    /// Bytes of stdout and of stderr that were taken.
    pub(crate) out: u64,
    pub(crate) err: u64,
    /// Kind of the current frame, and how much of it is left.
    kind: u8,
    left: u32,
}

/// The next part of a stream to take.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Number of bytes.
    length: usize,
    /// How many of them, at the end, are output.
    output_len: usize,
    /// The position after them.
    after: StreamPosition,
}

/// Decides what to take of a stream with these next bytes; returns `None` if they are too few.
/// Pure.
fn step(at: StreamPosition, next: &[u8]) -> Result<Option<Step>, io::Error> {
    let (head, kind, left) = match next {
        _ if at.left > 0 => (0, at.kind, at.left),
        [kind, _, _, _, a, b, c, d, ..] => {
            (FRAME_HEADER_BYTES, *kind, u32::from_be_bytes([*a, *b, *c, *d]))
        }
        _ => return Ok(None),
    };
    if kind > STDERR {
        return Err(io::Error::other("the engine sent data that is not container output"));
    }
    let output_len = (next.len() - head).min(usize::try_from(left).unwrap_or(usize::MAX));
    if head + output_len == 0 {
        return Ok(None);
    }
    let (count, taken) = (output_len as u64, u32::try_from(output_len).unwrap_or(left));
    let mut after = StreamPosition { kind, left: left - taken, ..at };
    match kind {
        STDOUT => after.out += count,
        STDERR => after.err += count,
        _ => {} // Input, echoed.
    }
    Ok(Some(Step { length: head + output_len, output_len, after }))
}

/// The record that is written before bytes are taken, and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ReadIntent {
    before: StreamPosition,
    after: StreamPosition,
    /// Number of bytes about to be taken, and their fingerprint; 0 once they have been.
    length: u64,
    fingerprint: u64,
}

impl ReadIntent {
    const BYTES: usize = 8 * 8;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let frame = |at: StreamPosition| u64::from(at.kind) << 32 | u64::from(at.left);
        let (one, two) = (self.before, self.after);
        let numbers = [
            one.out,
            one.err,
            frame(one),
            two.out,
            two.err,
            frame(two),
            self.length,
            self.fingerprint,
        ];
        let mut bytes = [0; Self::BYTES];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|chunk| chunk.try_into().map(u64::from_le_bytes).unwrap_or_default());
        let mut next = || numbers.next().unwrap_or_default();
        let mut at = || {
            let (out, err, frame) = (next(), next(), next());
            let [_, _, _, kind, ..] = frame.to_be_bytes();
            let left = u32::try_from(frame & u64::from(u32::MAX)).unwrap_or_default();
            StreamPosition { out, err, kind, left }
        };
        let (before, after) = (at(), at());
        Self { before, after, length: next(), fingerprint: next() }
    }

    /// Returns the position of a stream with these next bytes: if they are those about to be taken,
    /// they were not taken. Pure.
    fn position_after_restart(self, next: &[u8]) -> StreamPosition {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        let is_there = length > 0
            && next.get(..length).is_some_and(|bytes| fingerprint(bytes) == self.fingerprint);
        if is_there { self.before } else { self.after }
    }
}

/// Returns a fingerprint (FNV-1a) by which bytes are recognised. Pure.
fn fingerprint(bytes: &[u8]) -> u64 {
    let compared = bytes.iter().take(FINGERPRINT_BYTES);
    compared.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The position within a stream, on disk.
#[derive(Debug)]
pub(crate) struct ReadJournal(File);

impl ReadJournal {
    /// Creates the file for a new stream. It occupies its place on the disk from now on.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = Self(open_own(&mut options, path)?);
        file.write(ReadIntent::default())?;
        Ok(file)
    }

    /// Opens the file of a stream that an earlier daemon read, if that could record its position.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let file = Self(open_own(File::options().read(true).write(true), path)?);
        file.read()?;
        Ok(file)
    }

    fn read(&self) -> io::Result<ReadIntent> {
        let mut bytes = [0; ReadIntent::BYTES];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(ReadIntent::from_bytes(&bytes))
    }

    fn write(&self, intent: ReadIntent) -> io::Result<()> {
        self.0.write_all_at(&intent.to_bytes(), 0)
    }

    /// Marks the position as unknown. An empty file means that, and needs no space.
    fn give_up(self) {
        let _ = self.0.set_len(0); // On a disk that refuses even this, nothing else can be done.
    }
}

/// Resumes a stream; returns it with its position.
pub(crate) fn resume(
    stream: OwnedFd,
    journal: Option<ReadJournal>,
) -> io::Result<(AttachContainerResults, StreamPosition)> {
    rustix::io::ioctl_fionbio(&stream, true)?;
    let stream = Arc::new(UnixStream::from_std(stream.into())?);
    let mut piece = vec![0; CHUNK_BYTES];
    let count = match recv(&*stream, &mut piece[..], RecvFlags::PEEK) {
        Ok((count, _)) => count,
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(error) => return Err(error.into()),
    };
    let intent = journal.as_ref().map_or_else(|| Ok(ReadIntent::default()), ReadJournal::read)?;
    let at = intent.position_after_restart(&piece[..count]);
    let out = OutputStream { stream: stream.clone(), journal, at, piece };
    Ok((AttachContainerResults { output: Box::pin(out), input: Box::pin(InputStream(stream)) }, at))
}

/// The output of a container.
struct OutputStream {
    stream: Arc<UnixStream>,
    /// `None` if the position cannot be recorded, so no other daemon can resume it.
    journal: Option<ReadJournal>,
    at: StreamPosition,
    piece: Vec<u8>,
}

impl OutputStream {
    /// Takes the next output, with its kind; returns `None` at the end of the stream.
    fn take(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let (stream, at, piece) = (&*self.stream, self.at, &mut self.piece);
        let (count, _) = recv(stream, &mut piece[..], RecvFlags::PEEK)?;
        if count == 0 {
            return Ok(None);
        }
        let Some(step) = step(at, &piece[..count])? else {
            // The header is truncated, or the rest of it is on its way.
            return if is_hung_up(stream.as_fd()) {
                Ok(None)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        };
        let fingerprint = fingerprint(&piece[..step.length]);
        let length = step.length as u64;
        note(&mut self.journal, ReadIntent { before: at, after: step.after, length, fingerprint });
        let (count, _) = recv(stream, &mut piece[..step.length], RecvFlags::empty())?;
        if count != step.length {
            return Err(io::Error::other("another process reads the stream of a container"));
        }
        self.at = step.after;
        let done = ReadIntent { before: self.at, after: self.at, ..ReadIntent::default() };
        note(&mut self.journal, done);
        let output = Bytes::copy_from_slice(&piece[step.length - step.output_len..step.length]);
        Ok(Some((step.after.kind, output)))
    }
}

/// Records an intent. If the disk refuses it, reading goes on, and the next daemon attaches as if
/// the stream had had no holder.
fn note(file: &mut Option<ReadJournal>, intent: ReadIntent) {
    let is_written = file.as_ref().is_none_or(|file| file.write(intent).is_ok());
    if let Some(file) = file.take_if(|_| !is_written) {
        tracing::warn!(
            "the position in a container's stream cannot be recorded: is the disk full?"
        );
        file.give_up();
    }
}

impl Stream for OutputStream {
    type Item = Result<LogOutput, Error>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<LogOutput, Error>>> {
        let this = self.get_mut();
        loop {
            ready!(this.stream.poll_read_ready(context))?;
            let stream = this.stream.clone();
            match stream.try_io(Interest::READABLE, || this.take()) {
                Ok(None) => return Poll::Ready(None),
                Ok(Some((_, output))) if output.is_empty() => {}
                Ok(Some((STDERR, message))) => {
                    return Poll::Ready(Some(Ok(LogOutput::StdErr { message })));
                }
                Ok(Some((STDOUT, message))) => {
                    return Poll::Ready(Some(Ok(LogOutput::StdOut { message })));
                }
                Ok(Some((_, message))) => {
                    return Poll::Ready(Some(Ok(LogOutput::StdIn { message })));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }
}

/// The input of a container. Dropping it does not close the stream, which other processes share.
struct InputStream(Arc<UnixStream>);

impl AsyncWrite for InputStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.0, Shutdown::Write).map_err(Into::into))
    }
}

/// Attaches to a container of the engine at `socket`.
pub(crate) async fn attach(socket: &Path, id: &str) -> Result<OwnedFd, Error> {
    let mut stream = UnixStream::connect(socket).await?;
    let asked = format!(
        "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n\
         Host: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).await?;
    let mut head = vec![0; MAX_HEAD_BYTES];
    let length = read_head(&stream, &mut head).await?;
    match status(&head[..length]) {
        Some(101 | 200) => Ok(OwnedFd::from(stream.into_std()?)),
        Some(status_code) => {
            let message = reason(&stream).await;
            Err(Error::DockerResponseServerError { status_code, message })
        }
        None => Err(io::Error::other("the engine does not speak HTTP").into()),
    }
}

/// Reads the head of a response, and not one byte of the stream after it.
async fn read_head(stream: &UnixStream, head: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let taken = stream.try_io(Interest::READABLE, || {
            let (count, _) = recv(stream, &mut *head, RecvFlags::PEEK)?;
            match head[..count].windows(4).position(|it| it == b"\r\n\r\n") {
                Some(end) => Ok(recv(stream, &mut head[..end + 4], RecvFlags::empty())?.0),
                None if count == head.len() || is_hung_up(stream.as_fd()) => {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match taken {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            taken => return taken,
        }
    }
}

/// Parses the status of a response. Pure.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?;
    line.split(' ').nth(1)?.parse().ok()
}

/// Returns the reason of an engine's refusal, in its words.
async fn reason(stream: &UnixStream) -> String {
    let mut body = Vec::new();
    let reading = async {
        loop {
            stream.readable().await?;
            match stream.try_read_buf(&mut body) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ if body.len() >= MAX_HEAD_BYTES || message(&body).is_some() => return Ok(()),
                _ => {}
            }
        }
    };
    let _ = timeout(REASON_TIMEOUT, reading).await; // A timeout leaves the part that has arrived.
    message(&body).or_else(|| plain(&body)).unwrap_or_else(|| "no reason given".to_owned())
}

/// Returns the message in the body of a response, however it is wrapped. Pure.
fn message(body: &[u8]) -> Option<String> {
    let begin = body.iter().position(|byte| *byte == b'{')?;
    let end = body.iter().rposition(|byte| *byte == b'}')?;
    let body: serde_json::Value = serde_json::from_slice(body.get(begin..=end)?).ok()?;
    Some(body["message"].as_str()?.to_owned())
}

/// Returns the body of a response if it is plain text, as Docker sends for a missing container.
/// Pure.
fn plain(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    (!text.is_empty() && !text.contains('{')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
