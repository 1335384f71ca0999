//! The daemon's side of a grip: the process that keeps the stream of a container of Podman's
//! open while no daemon does (`xy_shim::grip`).
//!
//! Whoever lets go of one leaves it to another daemon; only [`Grip::end`] ends it.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use xy_shim::door;
use xy_shim::grip::{GREETING_BYTES, VERB, Word, greeted_by, is_hung_up};
use xy_shim::held::Held;
use xy_shim::marked::MARK;

use super::Shared;
use crate::launch::shim_link::{private, receive_flags};
use crate::launch::shim_process::until_reaped;

/// How long one may take to say who it is: it has nothing else to do.
const GREETS_WITHIN: Duration = Duration::from_secs(5);

/// How long one may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// So much of an id tells a container from all others of a home; paths of sockets are short.
const SHORT_ID: usize = 12;

/// A grip, and the stream it holds.
#[derive(Debug)]
pub(super) struct Grip {
    link: UnixStream,
    /// Ours; a grip that is lost can be followed by another while we have it.
    stream: OwnedFd,
    pid: u32,
    process: Option<Held>,
    /// If we started it.
    child: Option<Child>,
    path: PathBuf,
}

/// Where the grip of a container listens.
pub(super) fn path(kept_dir: &Path, container: &str) -> PathBuf {
    let short: String = container.chars().take(SHORT_ID).collect();
    kept_dir.join(format!("{short}.sock"))
}

impl Grip {
    /// Starts one that holds this stream.
    pub(super) async fn begin(
        shared: &Shared,
        container: &str,
        stream: OwnedFd,
    ) -> io::Result<Self> {
        let Some(program) = &shared.grip else { return Err(io::ErrorKind::Unsupported.into()) };
        let path = path(&shared.kept_dir, container);
        let _ = fs::remove_file(&path); // That of one that was lost.
        let listener = door::listen(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let mut command = Command::new(program);
        command.arg0("xy").arg(VERB).arg(&path).arg(container).env_remove(MARK).current_dir("/");
        command.stdin(Stdio::from(stream.try_clone()?));
        command.stdout(Stdio::from(OwnedFd::from(listener))).stderr(Stdio::null());
        let child = shared.shims.spawn(&mut command);
        drop(command); // With the listener: only the grip has it.
        let begun = match child {
            Err(error) => Err(error),
            Ok(mut child) => match Self::meet(&path).await {
                Ok((grip, _)) => Ok(Self { child: Some(child), stream, ..grip }),
                Err(error) => {
                    let pid = child.id();
                    let _ = child.kill().await; // It may have ended by itself.
                    shared.shims.forget(pid);
                    Err(error)
                }
            },
        };
        if begun.is_err() {
            let _ = fs::remove_file(&path);
        }
        begun
    }

    /// Goes on with one that an earlier daemon started, and the stream it holds.
    pub(super) async fn find(kept_dir: &Path, container: &str) -> io::Result<(Self, OwnedFd)> {
        Self::meet(&path(kept_dir, container)).await
    }

    async fn meet(path: &Path) -> io::Result<(Self, OwnedFd)> {
        let link = door::connect(path)?;
        link.set_nonblocking(true)?;
        let link = UnixStream::from_std(link)?;
        let greeted = timeout(GREETS_WITHIN, greeting(&link)).await;
        let (pid, stream) = greeted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (process, ours) = (Held::new(pid), stream.try_clone()?);
        Ok((Self { link, stream: ours, pid, process, child: None, path: path.to_owned() }, stream))
    }

    /// What it holds.
    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether there is nothing to hold any more.
    pub(super) fn is_over(&self) -> bool {
        is_hung_up(self.stream.as_fd())
    }

    /// Another for the same stream, instead of one that was lost.
    pub(super) async fn again(self, shared: &Shared, container: &str) -> io::Result<Self> {
        let Self { stream, child, pid, .. } = self;
        reaped(child, pid, shared).await;
        Self::begin(shared, container, stream).await
    }

    /// Says something; it may have ended this instant.
    pub(super) fn tell(&self, word: Word) {
        let _ = self.link.try_write(&word.to_bytes()); // A few bytes always have room.
    }

    /// Resolves when it has ended. Cancel-safe.
    pub(super) async fn until_gone(&self) {
        loop {
            if self.link.readable().await.is_err() {
                return;
            }
            match self.link.try_read(&mut [0; 16]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
                Ok(_) => {} // It has nothing to say.
            }
        }
    }

    /// Ends it, and lets go of the stream.
    pub(super) async fn end(self, shared: &Shared) {
        self.tell(Word::End);
        if timeout(ENDS_WITHIN, self.until_gone()).await.is_err()
            && let Some(process) = &self.process
        {
            process.signal(Signal::KILL); // Somebody has stopped it.
        }
        let Self { child, pid, path, .. } = self;
        reaped(child, pid, shared).await;
        let _ = fs::remove_file(path); // Most have done so themselves.
    }
}

/// Waits until nothing is left of one that has ended.
async fn reaped(child: Option<Child>, pid: u32, shared: &Shared) {
    match child {
        None => _ = timeout(ENDS_WITHIN, until_reaped(pid)).await, // It is nobody's child here.
        Some(mut child) => {
            if timeout(ENDS_WITHIN, child.wait()).await.is_ok() {
                shared.shims.forget(Some(pid));
            }
        }
    }
}

/// Ends whoever listens there, if anybody does, and removes the file.
pub(super) async fn end_at(shared: &Shared, path: &Path) {
    if !path.exists() {
        return;
    }
    if let Ok((grip, _)) = Grip::meet(path).await {
        return grip.end(shared).await;
    }
    let _ = fs::remove_file(path); // Nobody is there any more.
}

/// Whether the grip of a container was lost, or the container was cut off: the file is there, and
/// nobody listens.
pub(super) fn is_lost(kept_dir: &Path, container: &str) -> bool {
    let path = path(kept_dir, container);
    path.exists() && door::connect(&path).is_err()
}

/// All files of sockets in that folder.
pub(super) fn all(kept_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(kept_dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect()
}

/// Who is there, and the stream that comes with the greeting.
async fn greeting(link: &UnixStream) -> io::Result<(u32, OwnedFd)> {
    loop {
        link.readable().await?;
        let greeted = link.try_io(Interest::READABLE, || {
            let mut greeting = [0; GREETING_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut greeting)];
            let count = recvmsg(link, &mut parts, &mut control, receive_flags())?.bytes;
            let mut streams = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next().map(private),
                _ => None,
            });
            let pid = greeted_by(&greeting[..count]);
            pid.zip(streams.next()).ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        match greeted {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            greeted => return greeted,
        }
    }
}
