//! An attached stream of our own, which can be left in the middle and taken up by another daemon.
//!
//! A daemon may be killed at any instant. So nothing is taken off the stream before it has been
//! looked at and written down where the stream is then; whoever comes next sees whether it was
//! taken. Of what was taken and not used the engine's log has a copy (`missed.rs`). Frames are
//! read in pieces, so their size does not matter. All of it is pure but the reading.

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
use xy_shim::grip::is_hung_up;

use crate::plain_file::open_own;

/// So much is looked at at once: two frames of Podman's.
const PIECE: usize = 16 * 1024;

/// The head of an answer is not longer.
const LONGEST_HEAD: usize = 16 * 1024;

/// How long an engine may take to say why it does not attach.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// The head of a frame.
const HEAD: usize = 8;

/// No more of a piece than this is compared.
const COMPARED: usize = 4096;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// Where in a stream we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct At {
    /// Bytes of stdout and of stderr that were taken.
    pub(super) out: u64,
    pub(super) err: u64,
    /// Of which kind the frame is that we are in, and how much of it is left.
    kind: u8,
    left: u32,
}

/// What is to be taken next.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// So many bytes.
    length: usize,
    /// The last so many of them are something that was said.
    said: usize,
    /// Where the stream is then.
    after: At,
}

/// Decides what to take of a stream of which these are the next bytes; `None` if there are too
/// few. Pure.
fn step(at: At, next: &[u8]) -> Result<Option<Step>, io::Error> {
    let (head, kind, left) = match next {
        _ if at.left > 0 => (0, at.kind, at.left),
        [kind, _, _, _, a, b, c, d, ..] => (HEAD, *kind, u32::from_be_bytes([*a, *b, *c, *d])),
        _ => return Ok(None),
    };
    if kind > STDERR {
        return Err(io::Error::other("the engine sends something else than a container's output"));
    }
    let said = (next.len() - head).min(usize::try_from(left).unwrap_or(usize::MAX));
    if head + said == 0 {
        return Ok(None);
    }
    let (count, taken) = (said as u64, u32::try_from(said).unwrap_or(left));
    let mut after = At { kind, left: left - taken, ..at };
    match kind {
        STDOUT => after.out += count,
        STDERR => after.err += count,
        _ => {} // What was said to it.
    }
    Ok(Some(Step { length: head + said, said, after }))
}

/// What is written down before something is taken, and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Taking {
    before: At,
    after: At,
    /// How much is taken, and what it is; nothing once it has been taken.
    length: u64,
    is_like: u64,
}

impl Taking {
    const BYTES: usize = 8 * 8;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let frame = |at: At| u64::from(at.kind) << 32 | u64::from(at.left);
        let (one, two) = (self.before, self.after);
        let numbers =
            [one.out, one.err, frame(one), two.out, two.err, frame(two), self.length, self.is_like];
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
            At { out, err, kind, left }
        };
        let (before, after) = (at(), at());
        Self { before, after, length: next(), is_like: next() }
    }

    /// Where the stream is if these are its next bytes: before what was to be taken if that is
    /// still there. Pure.
    fn settled(self, next: &[u8]) -> At {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        let is_there =
            length > 0 && next.get(..length).is_some_and(|bytes| likeness(bytes) == self.is_like);
        if is_there { self.before } else { self.after }
    }
}

/// A number for some bytes (FNV-1a), by which they are known again. Pure.
fn likeness(bytes: &[u8]) -> u64 {
    let compared = bytes.iter().take(COMPARED);
    compared.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How much has been taken off a stream, on disk.
#[derive(Debug)]
pub(super) struct TakenFile(File);

impl TakenFile {
    /// That of a stream of which nothing was taken. It has its place on the disk from now on.
    pub(super) fn begin(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = Self(open_own(&mut options, path)?);
        file.write(Taking::default())?;
        Ok(file)
    }

    /// That of a stream that an earlier daemon read, if it could say where it was.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let file = Self(open_own(File::options().read(true).write(true), path)?);
        file.read()?;
        Ok(file)
    }

    fn read(&self) -> io::Result<Taking> {
        let mut bytes = [0; Taking::BYTES];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(Taking::from_bytes(&bytes))
    }

    fn write(&self, taking: Taking) -> io::Result<()> {
        self.0.write_all_at(&taking.to_bytes(), 0)
    }

    /// Nobody knows any more: an empty file says so, and needs no room.
    fn give_up(self) {
        let _ = self.0.set_len(0); // A disk that refuses this too has more to tell than we do.
    }
}

/// A stream that goes on where it was left, and where that is.
pub(super) fn resume(
    stream: OwnedFd,
    taken: Option<TakenFile>,
) -> io::Result<(AttachContainerResults, At)> {
    rustix::io::ioctl_fionbio(&stream, true)?;
    let stream = Arc::new(UnixStream::from_std(stream.into())?);
    let mut piece = vec![0; PIECE];
    let count = match recv(&*stream, &mut piece[..], RecvFlags::PEEK) {
        Ok((count, _)) => count,
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(error) => return Err(error.into()),
    };
    let taking = taken.as_ref().map_or_else(|| Ok(Taking::default()), TakenFile::read)?;
    let at = taking.settled(&piece[..count]);
    let out = Out { stream: stream.clone(), taken, at, piece };
    Ok((AttachContainerResults { output: Box::pin(out), input: Box::pin(In(stream)) }, at))
}

/// What a container says.
struct Out {
    stream: Arc<UnixStream>,
    /// None if no other daemon can come after this one.
    taken: Option<TakenFile>,
    at: At,
    piece: Vec<u8>,
}

impl Out {
    /// Takes the next piece, if there is one: what was said, and whether on stderr. `None` if
    /// there is nothing more to come.
    fn take(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let (stream, at, piece) = (&*self.stream, self.at, &mut self.piece);
        let (count, _) = recv(stream, &mut piece[..], RecvFlags::PEEK)?;
        if count == 0 {
            return Ok(None);
        }
        let Some(step) = step(at, &piece[..count])? else {
            // The head of a frame is cut off, or the rest of it is on its way.
            return if is_hung_up(stream.as_fd()) {
                Ok(None)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        };
        let is_like = likeness(&piece[..step.length]);
        let length = step.length as u64;
        note(&mut self.taken, Taking { before: at, after: step.after, length, is_like });
        let (count, _) = recv(stream, &mut piece[..step.length], RecvFlags::empty())?;
        if count != step.length {
            return Err(io::Error::other("somebody else reads what a container says"));
        }
        self.at = step.after;
        let done = Taking { before: self.at, after: self.at, ..Taking::default() };
        note(&mut self.taken, done);
        let said = Bytes::copy_from_slice(&piece[step.length - step.said..step.length]);
        Ok(Some((step.after.kind, said)))
    }
}

/// Writes that down. A disk that cannot take it must not keep a server from being heard: the next
/// daemon then attaches as if nobody had held the stream.
fn note(file: &mut Option<TakenFile>, taking: Taking) {
    let is_written = file.as_ref().is_none_or(|file| file.write(taking).is_ok());
    if let Some(file) = file.take_if(|_| !is_written) {
        tracing::warn!("it cannot be noted how much a container has said: is the disk full?");
        file.give_up();
    }
}

impl Stream for Out {
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
                Ok(Some((_, said))) if said.is_empty() => {}
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

/// What is said to a container. It is not closed by being dropped: others have it too.
struct In(Arc<UnixStream>);

impl AsyncWrite for In {
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

/// Attaches to a container of the engine that listens at `socket`.
pub(super) async fn attach(socket: &Path, id: &str) -> Result<OwnedFd, Error> {
    let mut stream = UnixStream::connect(socket).await?;
    let asked = format!(
        "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n\
         Host: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).await?;
    let mut head = vec![0; LONGEST_HEAD];
    let length = take_head(&stream, &mut head).await?;
    match status(&head[..length]) {
        Some(101 | 200) => Ok(OwnedFd::from(stream.into_std()?)),
        Some(status_code) => {
            let message = reason(&stream).await;
            Err(Error::DockerResponseServerError { status_code, message })
        }
        None => Err(io::Error::other("the engine does not speak HTTP").into()),
    }
}

/// Takes the head of an answer, and nothing of what comes after it: that is the stream.
async fn take_head(stream: &UnixStream, head: &mut [u8]) -> io::Result<usize> {
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

/// The status of an answer. Pure.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?;
    line.split(' ').nth(1)?.parse().ok()
}

/// Why an engine refuses, in its words.
async fn reason(stream: &UnixStream) -> String {
    let mut said = Vec::new();
    let reading = async {
        loop {
            stream.readable().await?;
            match stream.try_read_buf(&mut said) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ if said.len() >= LONGEST_HEAD || message(&said).is_some() => return Ok(()),
                _ => {}
            }
        }
    };
    let _ = timeout(REASON_WITHIN, reading).await; // What has come by then must do.
    message(&said).or_else(|| plain(&said)).unwrap_or_else(|| "it says no reason".to_owned())
}

/// The message in the body of an answer, however that is wrapped. Pure.
fn message(body: &[u8]) -> Option<String> {
    let begin = body.iter().position(|byte| *byte == b'{')?;
    let end = body.iter().rposition(|byte| *byte == b'}')?;
    let body: serde_json::Value = serde_json::from_slice(body.get(begin..=end)?).ok()?;
    Some(body["message"].as_str()?.to_owned())
}

/// The body of an answer that is a plain text: Docker says so of a container that is gone. Pure.
fn plain(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    (!text.is_empty() && !text.contains('{')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
