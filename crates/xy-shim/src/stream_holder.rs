//! The stream holder: a small process that keeps the stream of one container open while no daemon
//! does.
//!
//! Podman closes the stdin of a container when the first of its streams closes. The holder shares
//! the daemon's stream, and neither reads nor writes it: output produced while no daemon runs waits
//! in the kernel. The holder hands the stream to one client of the same user at a time.
//!
//! The holder ends when the stream is hung up, or when it is told to, and removes its socket file.
//! A file left behind means that the container was cut off: the holder was killed, or the engine
//! hung up while the container ran.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::stdio;

use crate::end_watch::EndWatch;
use crate::listener::Listener;
use crate::sys;

/// The command-line verb that runs this binary as a stream holder.
pub const VERB: &str = "grip";

/// First byte sent to a client; it names the version of this exchange.
const GREETING: u8 = 1;

/// Length of the greeting: that byte and the holder's process ID.
pub const GREETING_BYTES: usize = 5;

/// Size of the read buffer for commands; it holds several commands.
const MAX_COMMAND_BYTES: usize = 64;

/// A command from the daemon to a stream holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderCommand {
    /// Ends the holder: the container is not needed any more, or is gone.
    End,
    /// Names the first process of the container.
    Leader(u32),
}

impl HolderCommand {
    /// Returns the command as it is sent.
    pub fn to_bytes(self) -> [u8; 5] {
        let (kind, number) = match self {
            Self::End => (b'E', 0),
            Self::Leader(pid) => (b'L', pid),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, number) = bytes.split_first()?;
        match kind {
            b'E' => Some(Self::End),
            b'L' => Some(Self::Leader(u32::from_le_bytes(number.try_into().ok()?))),
            _ => None,
        }
    }
}

/// Returns the process ID of the holder that sent this greeting. Returns `None` for another
/// version.
pub fn parse_greeting(greeting: &[u8]) -> Option<u32> {
    let (version, number) = greeting.split_first()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    (*version == GREETING).then_some(number)
}

/// Returns true if the other end of a stream is closed.
pub fn is_hung_up(stream: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stream, hang_up_flags())];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let result = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once)));
    result.is_ok() && is_hang_up(polled[0].revents())
}

/// Holds the stream on fd 0 and listens on fd 1, until the stream is hung up.
///
/// Must be called first thing in `main`, while the process has no other thread.
pub fn run() -> ExitCode {
    sys::close_inherited();
    match StreamHolder::from_this_process(std::env::args_os().skip(2)).and_then(StreamHolder::hold)
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            // Seen only by a user who started this by hand.
            let message = format!("xy: the stream of a container cannot be held: {cause}\n");
            let _ = rustix::io::write(stdio::stderr(), message.as_bytes());
            ExitCode::FAILURE
        }
    }
}

struct StreamHolder {
    stream: OwnedFd,
    listener: Listener,
    /// The ID of the container.
    container: String,
    /// Watches the stream and the container's first process, once that is known.
    end_watch: Option<EndWatch>,
    client: Option<OwnedFd>,
}

/// Why the holder ends.
#[derive(Debug, PartialEq, Eq)]
enum EndCause {
    Hangup,
    Requested,
}

impl StreamHolder {
    fn from_this_process(mut args: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let path = args.next().map(PathBuf::from);
        let container = args.next().and_then(|it| it.into_string().ok());
        let (Some(path), Some(container)) = (path, container) else {
            return Err(io::Error::other(
                "only the daemon starts this process, with a socket path and a container id",
            ));
        };
        let stream = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
        let listener = rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3)?;
        let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        stdio::dup2_stdin(&nothing)?;
        stdio::dup2_stdout(&nothing)?;
        let _ = rustix::process::setsid(); // Fails only if the process already leads a group.
        #[cfg(target_os = "linux")]
        {
            let _ = rustix::thread::set_name(c"xy-grip"); // Otherwise `ps` shows `exe`.
        }
        sys::clear_signal_mask();
        let listener = Listener::from_bound(UnixListener::from(listener), path)?;
        Ok(Self { stream, listener, container, end_watch: None, client: None })
    }

    fn hold(mut self) -> io::Result<()> {
        let cause = self.wait_for_end()?;
        if cause == EndCause::Hangup && self.end_watch.as_ref().is_some_and(EndWatch::was_cut_off) {
            self.listener.keep_file();
        }
        Ok(())
    }

    fn wait_for_end(&mut self) -> io::Result<EndCause> {
        loop {
            let other = self.client.as_ref().map_or(self.listener.as_fd(), AsFd::as_fd);
            let mut ready = [
                PollFd::from_borrowed_fd(self.stream.as_fd(), hang_up_flags()),
                PollFd::from_borrowed_fd(other, PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let (stream, other) = (ready[0].revents(), ready[1].revents());
            if is_hang_up(stream) {
                return Ok(EndCause::Hangup);
            }
            if other.is_empty() {
                continue;
            }
            match &self.client {
                None => self.accept(),
                Some(client) => match read_command(client.as_fd()) {
                    Some(HolderCommand::End) => return Ok(EndCause::Requested),
                    Some(HolderCommand::Leader(pid)) => {
                        self.end_watch =
                            EndWatch::watch(pid, &self.container, Some(self.stream.as_fd()));
                    }
                    None => self.client = None,
                },
            }
        }
    }

    /// Hands the stream to a client that has connected.
    fn accept(&mut self) {
        // A client of another user, or one that has gone again, is ignored.
        let Ok(Some(client)) = self.listener.accept() else { return };
        if send_greeting(client.as_fd(), self.stream.as_fd()).is_ok() {
            self.client = Some(client);
        }
    }
}

fn send_greeting(client: BorrowedFd<'_>, stream: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut greeting = [GREETING, 0, 0, 0, 0];
    greeting[1..].copy_from_slice(&std::process::id().to_le_bytes());
    let descriptors = [stream];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(&greeting)];
    rustix::io::retry_on_intr(|| sendmsg(client, &parts, &mut ancillary, SendFlags::empty()))?;
    Ok(())
}

/// Reads a command. Returns `None` if the client is gone or sent an unknown command.
///
/// Each command is one write, and commands are far apart in time.
fn read_command(client: BorrowedFd<'_>) -> Option<HolderCommand> {
    let mut bytes = [0; MAX_COMMAND_BYTES];
    let count = rustix::io::retry_on_intr(|| rustix::io::read(client, &mut bytes)).ok()?;
    let mut commands =
        bytes[..count].chunks(HolderCommand::End.to_bytes().len()).map(HolderCommand::parse);
    let first = commands.next().flatten()?;
    // If several commands arrive together, the last one counts.
    Some(commands.flatten().last().unwrap_or(first))
}

/// Flags polled on a stream whose data is not read here.
#[cfg(target_os = "linux")]
fn hang_up_flags() -> PollFlags {
    PollFlags::RDHUP
}

#[cfg(not(target_os = "linux"))]
fn hang_up_flags() -> PollFlags {
    PollFlags::empty() // A hang-up is always reported.
}

fn is_hang_up(seen: PollFlags) -> bool {
    seen.intersects(hang_up_flags() | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::thread::{JoinHandle, spawn};

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;
    use crate::listener;

    /// A holder on one end of a socket pair; the other end is the engine's.
    fn holder(folder: &Path) -> (JoinHandle<io::Result<()>>, UnixStream) {
        let (stream, engine) = UnixStream::pair().unwrap();
        let path = folder.join("g.sock");
        let listener = Listener::from_bound(listener::bind(&path).unwrap(), path).unwrap();
        let container = "the-word".to_owned();
        let holder = StreamHolder {
            stream: stream.into(),
            listener,
            container,
            end_watch: None,
            client: None,
        };
        (spawn(|| holder.hold()), engine)
    }

    fn connect_client(folder: &Path) -> (UnixStream, UnixStream) {
        let client = listener::connect(&folder.join("g.sock")).unwrap();
        let mut greeting = [0; GREETING_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut greeting)];
        recvmsg(&client, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap();
        let mut streams = ancillary.drain().filter_map(|it| match it {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let stream = streams.next().expect("the stream comes with the greeting");
        assert_eq!(parse_greeting(&greeting), Some(std::process::id()));
        (client, stream.into())
    }

    #[test]
    fn each_client_continues_the_stream_of_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let (holder, mut engine) = holder(folder.path());
        let (first, mut stream) = connect_client(folder.path());
        stream.write_all(b"hello").unwrap();
        engine.write_all(b"one two").unwrap();
        let mut three = [0; 3];
        stream.read_exact(&mut three).unwrap();
        drop((first, stream));
        let (mut second, mut stream) = connect_client(folder.path());
        let mut four = [0; 4];
        stream.read_exact(&mut four).unwrap();
        assert_eq!((&three, &four), (b"one", b" two"));
        second.write_all(&HolderCommand::End.to_bytes()).unwrap();
        holder.join().unwrap().unwrap();
        assert!(!folder.path().join("g.sock").exists());
        drop(stream);
        let mut received = Vec::new();
        engine.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"hello", "and the stream is closed");
    }

    #[test]
    fn only_one_client_gets_the_stream_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (holder, _engine) = holder(folder.path());
        let (first, _stream) = connect_client(folder.path());
        let other = listener::connect(&folder.path().join("g.sock")).unwrap();
        other.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        let refused = (&other).read(&mut [0; 8]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop((first, other));
        let (mut last, _stream) = connect_client(folder.path());
        last.write_all(&HolderCommand::End.to_bytes()).unwrap();
        holder.join().unwrap().unwrap();
    }

    #[test]
    fn hang_up_ends_the_holder_with_or_without_a_client() {
        for has_client in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (holder, mut engine) = holder(folder.path());
            let client = has_client.then(|| connect_client(folder.path()));
            engine.write_all(b"last words").unwrap();
            drop(engine);
            holder.join().unwrap().unwrap();
            assert!(!folder.path().join("g.sock").exists());
            if let Some((_, mut stream)) = client {
                assert!(is_hung_up(stream.as_fd()));
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert_eq!(received, b"last words");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cut_off_container_leaves_the_socket_file() {
        let folder = tempfile::tempdir().unwrap();
        let child = crate::cpu::ChildOfMonitor::new("the-word");
        let (holder, engine) = holder(folder.path());
        let (mut client, _stream) = connect_client(folder.path());
        client.write_all(&HolderCommand::Leader(child.pid).to_bytes()).unwrap();
        // The command is read before the hang-up of the client is.
        drop(client);
        let (client, _stream) = connect_client(folder.path());
        drop(engine);
        holder.join().unwrap().unwrap();
        assert!(folder.path().join("g.sock").exists());
        drop(client);
    }

    #[test]
    fn commands_round_trip_and_nonsense_is_rejected() {
        for command in
            [HolderCommand::End, HolderCommand::Leader(7), HolderCommand::Leader(u32::MAX)]
        {
            assert_eq!(HolderCommand::parse(&command.to_bytes()), Some(command));
        }
        for nonsense in [&b""[..], b"x", b"L", b"L123456", b"\0\0\0\0\0"] {
            assert_eq!(HolderCommand::parse(nonsense), None);
        }
        assert_eq!(parse_greeting(&[2, 1, 0, 0, 0]), None);
        assert_eq!(parse_greeting(&[1, 1]), None);
    }
}
