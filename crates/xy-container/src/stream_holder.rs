//! The daemon's side of a stream holder: the process that keeps the stream of a Podman container
//! open while no daemon does (`xy_shim::stream_holder`).
//!
//! Dropping a [`StreamHolder`] leaves the process to another daemon; only [`StreamHolder::end`]
//! ends it.

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
use xy_shim::env_mark::MARK;
use xy_shim::listener;
use xy_shim::pidfd::ProcessHandle;
use xy_shim::stream_holder::{GREETING_BYTES, HolderCommand, VERB, is_hung_up, parse_greeting};
use xy_supervisor::launch::until_reaped;
use xy_supervisor::launch::{receive_flags, set_cloexec};

use crate::shared::SharedState;

/// Time for a holder to identify itself, which is its only task.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a holder to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Length of the part of a container's id in the socket's name. It is unique within a home, and
/// socket paths must be short.
const SHORT_ID_CHARS: usize = 12;

/// A stream holder and its stream.
#[derive(Debug)]
pub(crate) struct StreamHolder {
    link: UnixStream,
    /// This daemon's descriptor of the stream, from which a lost holder can be replaced.
    stream: OwnedFd,
    pid: u32,
    process: Option<ProcessHandle>,
    /// Set if this daemon started it.
    child: Option<Child>,
    path: PathBuf,
}

/// Returns the socket of a container's stream holder.
pub(crate) fn path(state_dir: &Path, container: &str) -> PathBuf {
    let short: String = container.chars().take(SHORT_ID_CHARS).collect();
    state_dir.join(format!("{short}.sock"))
}

impl StreamHolder {
    /// Starts a holder for this stream.
    pub(crate) async fn spawn(
        shared: &SharedState,
        container: &str,
        stream: OwnedFd,
    ) -> io::Result<Self> {
        let Some(program) = &shared.holder_program else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let path = path(&shared.state_dir, container);
        let _ = fs::remove_file(&path); // It belongs to a holder that was lost.
        let listener = listener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let mut command = Command::new(program);
        command.arg0("xy").arg(VERB).arg(&path).arg(container).env_remove(MARK).current_dir("/");
        command.stdin(Stdio::from(stream.try_clone()?));
        command.stdout(Stdio::from(OwnedFd::from(listener))).stderr(Stdio::null());
        let child = shared.shims.spawn(&mut command);
        drop(command); // With the listener, which only the holder may have.
        let started = match child {
            Err(error) => Err(error),
            Ok(mut child) => match Self::connect(&path).await {
                Ok((stream_holder, _)) => Ok(Self { child: Some(child), stream, ..stream_holder }),
                Err(error) => {
                    let pid = child.id();
                    let _ = child.kill().await; // It may have exited by itself.
                    shared.shims.forget(pid);
                    Err(error)
                }
            },
        };
        if started.is_err() {
            let _ = fs::remove_file(&path);
        }
        started
    }

    /// Connects to a holder that an earlier daemon started; returns it with its stream.
    pub(crate) async fn find(state_dir: &Path, container: &str) -> io::Result<(Self, OwnedFd)> {
        Self::connect(&path(state_dir, container)).await
    }

    async fn connect(path: &Path) -> io::Result<(Self, OwnedFd)> {
        let link = listener::connect(path)?;
        link.set_nonblocking(true)?;
        let link = UnixStream::from_std(link)?;
        let greeting_result = timeout(GREETING_TIMEOUT, greeting(&link)).await;
        let (pid, stream) =
            greeting_result.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (process, own_stream) = (ProcessHandle::new(pid), stream.try_clone()?);
        Ok((
            Self { link, stream: own_stream, pid, process, child: None, path: path.to_owned() },
            stream,
        ))
    }

    /// Returns the stream.
    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns true if the other end of the stream is closed.
    pub(crate) fn is_over(&self) -> bool {
        is_hung_up(self.stream.as_fd())
    }

    /// Replaces a holder that was lost by another for the same stream.
    pub(crate) async fn respawn(self, shared: &SharedState, container: &str) -> io::Result<Self> {
        let Self { stream, child, pid, .. } = self;
        reap(child, pid, shared).await;
        Self::spawn(shared, container, stream).await
    }

    /// Sends a command; the holder may have exited this instant.
    pub(crate) fn send(&self, command: HolderCommand) {
        let _ = self.link.try_write(&command.to_bytes()); // A few bytes always have room.
    }

    /// Resolves when it has exited. Cancel-safe.
    pub(crate) async fn until_gone(&self) {
        loop {
            if self.link.readable().await.is_err() {
                return;
            }
            match self.link.try_read(&mut [0; 16]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
                Ok(_) => {} // A holder sends nothing after its greeting.
            }
        }
    }

    /// Ends it, and drops the stream.
    pub(crate) async fn end(self, shared: &SharedState) {
        self.send(HolderCommand::End);
        if timeout(EXIT_TIMEOUT, self.until_gone()).await.is_err()
            && let Some(process) = &self.process
        {
            process.signal(Signal::KILL); // It may have been suspended.
        }
        let Self { child, pid, path, .. } = self;
        reap(child, pid, shared).await;
        let _ = fs::remove_file(path); // Most holders have removed it.
    }
}

/// Waits until a holder that has exited is reaped.
async fn reap(child: Option<Child>, pid: u32, shared: &SharedState) {
    match child {
        // It is a child of no process here.
        None => _ = timeout(EXIT_TIMEOUT, until_reaped(pid)).await,
        Some(mut child) => {
            if timeout(EXIT_TIMEOUT, child.wait()).await.is_ok() {
                shared.shims.forget(Some(pid));
            }
        }
    }
}

/// Ends the holder that listens at this socket, if there is one, and removes the file.
pub(crate) async fn end_at(shared: &SharedState, path: &Path) {
    if !path.exists() {
        return;
    }
    if let Ok((stream_holder, _)) = StreamHolder::connect(path).await {
        return stream_holder.end(shared).await;
    }
    let _ = fs::remove_file(path); // No holder listens there any more.
}

/// Ends the holder of a container's stream, if there is one.
pub(crate) async fn end_for(shared: &SharedState, container: &str) {
    end_at(shared, &path(&shared.state_dir, container)).await;
}

/// Returns true if a container's holder was lost, or the container was cut off. The socket file
/// then exists, but no process listens on it.
pub(crate) fn is_lost(state_dir: &Path, container: &str) -> bool {
    let path = path(state_dir, container);
    path.exists() && listener::connect(&path).is_err()
}

/// Returns all socket files in that folder.
pub(crate) fn all(state_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state_dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect()
}

/// Receives the greeting: the holder's process id, with the stream.
async fn greeting(link: &UnixStream) -> io::Result<(u32, OwnedFd)> {
    loop {
        link.readable().await?;
        let greeting_result = link.try_io(Interest::READABLE, || {
            let mut greeting = [0; GREETING_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut greeting)];
            let count = recvmsg(link, &mut parts, &mut control, receive_flags())?.bytes;
            let mut streams = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next().map(set_cloexec),
                _ => None,
            });
            let pid = parse_greeting(&greeting[..count]);
            pid.zip(streams.next()).ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        match greeting_result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            greeting_result => return greeting_result,
        }
    }
}
