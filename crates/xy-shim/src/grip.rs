//! A grip: a small process that keeps the stream of one container open while no daemon does.
//!
//! Podman closes the stdin of a container with the first stream that goes. A grip has the same
//! stream as the daemon, and reads and writes nothing on it: what is said while no daemon is
//! there waits in the kernel. It hands the stream to whoever comes and may have it, one at a time.
//!
//! It ends when the stream is hung up, or when it is told to, and takes its socket's file with it.
//! A file that is still there afterwards means that the container was cut off: whoever held its
//! stream was killed, or its engine hung up while it ran.

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

use crate::door::Door;
use crate::sequence::Sequence;
use crate::sys;

/// What makes this binary a grip.
pub const VERB: &str = "grip";

/// The first byte for whoever comes; another version would say another one.
const GREETING: u8 = 1;

/// How long a greeting is: that byte and the number of this process.
pub const GREETING_BYTES: usize = 5;

/// A longer word is none of ours.
const LONGEST_WORD: usize = 64;

/// What a daemon says to a grip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The container is not needed any more, or gone.
    End,
    /// The first process of the container.
    Leader(u32),
}

impl Word {
    /// As it is on the wire.
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

/// The number of the process that greets like this, if it is a grip that we understand.
pub fn greeted_by(greeting: &[u8]) -> Option<u32> {
    let (version, number) = greeting.split_first()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    (*version == GREETING).then_some(number)
}

/// Whether nobody is at the other end of a stream any more.
pub fn is_hung_up(stream: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(stream, hang_up())];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let looked = rustix::io::retry_on_intr(|| poll(&mut asked, Some(&at_once)));
    looked.is_ok() && is_over(asked[0].revents())
}

/// Holds the stream on fd 0 and listens on fd 1, until the stream is over.
///
/// To be called first thing in `main`: there must be no other thread.
pub fn run() -> ExitCode {
    sys::close_inherited();
    match Grip::of_this_process(std::env::args_os().skip(2)).and_then(Grip::hold) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            // Read by nobody, unless it was somebody at a terminal who began it.
            let words = format!("xy: the stream of a container cannot be held: {cause}\n");
            let _ = rustix::io::write(stdio::stderr(), words.as_bytes());
            ExitCode::FAILURE
        }
    }
}

struct Grip {
    stream: OwnedFd,
    door: Door,
    /// The id of the container.
    container: String,
    /// It and its first process, once that is known.
    sequence: Option<Sequence>,
    visitor: Option<OwnedFd>,
}

/// Why there is nothing to hold any more.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    HungUp,
    ToldTo,
}

impl Grip {
    fn of_this_process(mut words: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let path = words.next().map(PathBuf::from);
        let container = words.next().and_then(|it| it.into_string().ok());
        let (Some(path), Some(container)) = (path, container) else {
            return Err(io::Error::other("this is for the daemon, which says whose it is"));
        };
        let stream = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
        let listener = rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3)?;
        let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        stdio::dup2_stdin(&nothing)?;
        stdio::dup2_stdout(&nothing)?;
        let _ = rustix::process::setsid(); // Fails only for one that leads a group already.
        #[cfg(target_os = "linux")]
        {
            let _ = rustix::thread::set_name(c"xy-grip"); // Or `ps` would call it `exe`.
        }
        sys::clear_signal_mask();
        let door = Door::of(UnixListener::from(listener), path)?;
        Ok(Self { stream, door, container, sequence: None, visitor: None })
    }

    fn hold(mut self) -> io::Result<()> {
        let over = self.until_over()?;
        if over == Over::HungUp && self.sequence.as_ref().is_some_and(Sequence::is_cut_off) {
            self.door.leave_file();
        }
        Ok(())
    }

    fn until_over(&mut self) -> io::Result<Over> {
        loop {
            let other = self.visitor.as_ref().map_or(self.door.as_fd(), AsFd::as_fd);
            let mut ready = [
                PollFd::from_borrowed_fd(self.stream.as_fd(), hang_up()),
                PollFd::from_borrowed_fd(other, PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let (stream, other) = (ready[0].revents(), ready[1].revents());
            if is_over(stream) {
                return Ok(Over::HungUp);
            }
            if other.is_empty() {
                continue;
            }
            match &self.visitor {
                None => self.let_in(),
                Some(visitor) => match hear(visitor.as_fd()) {
                    Some(Word::End) => return Ok(Over::ToldTo),
                    Some(Word::Leader(pid)) => {
                        self.sequence =
                            Sequence::watch(pid, &self.container, Some(self.stream.as_fd()));
                    }
                    None => self.visitor = None,
                },
            }
        }
    }

    /// Hands the stream to whoever has come, if it is somebody of ours.
    fn let_in(&mut self) {
        // Who has gone again is nobody.
        let Ok(Some(visitor)) = self.door.accept() else { return };
        if greet(visitor.as_fd(), self.stream.as_fd()).is_ok() {
            self.visitor = Some(visitor);
        }
    }
}

fn greet(visitor: BorrowedFd<'_>, stream: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut greeting = [GREETING, 0, 0, 0, 0];
    greeting[1..].copy_from_slice(&std::process::id().to_le_bytes());
    let descriptors = [stream];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(&greeting)];
    rustix::io::retry_on_intr(|| sendmsg(visitor, &parts, &mut ancillary, SendFlags::empty()))?;
    Ok(())
}

/// What a visitor says; `None` if it has gone, or says nothing that is understood. Each word is
/// written at once, and the next only after a while.
fn hear(visitor: BorrowedFd<'_>) -> Option<Word> {
    let mut bytes = [0; LONGEST_WORD];
    let count = rustix::io::retry_on_intr(|| rustix::io::read(visitor, &mut bytes)).ok()?;
    let mut words = bytes[..count].chunks(Word::End.to_bytes().len()).map(Word::parse);
    let first = words.next().flatten()?;
    // The last one counts, if several came at once.
    Some(words.flatten().last().unwrap_or(first))
}

/// What is looked for on a stream that nobody here reads.
#[cfg(target_os = "linux")]
fn hang_up() -> PollFlags {
    PollFlags::RDHUP
}

#[cfg(not(target_os = "linux"))]
fn hang_up() -> PollFlags {
    PollFlags::empty() // A hang-up is always told.
}

fn is_over(seen: PollFlags) -> bool {
    seen.intersects(hang_up() | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::thread::{JoinHandle, spawn};

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;
    use crate::door;

    /// A grip on one end of a pair; the other end is that of an engine.
    fn grip(folder: &Path) -> (JoinHandle<io::Result<()>>, UnixStream) {
        let (stream, engine) = UnixStream::pair().unwrap();
        let path = folder.join("g.sock");
        let door = Door::of(door::listen(&path).unwrap(), path).unwrap();
        let container = "the-word".to_owned();
        let grip = Grip { stream: stream.into(), door, container, sequence: None, visitor: None };
        (spawn(|| grip.hold()), engine)
    }

    fn visit(folder: &Path) -> (UnixStream, UnixStream) {
        let visitor = door::connect(&folder.join("g.sock")).unwrap();
        let mut greeting = [0; GREETING_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut greeting)];
        recvmsg(&visitor, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap();
        let mut streams = ancillary.drain().filter_map(|it| match it {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let stream = streams.next().expect("the stream comes with the greeting");
        assert_eq!(greeted_by(&greeting), Some(std::process::id()));
        (visitor, stream.into())
    }

    #[test]
    fn whoever_comes_gets_the_stream_and_goes_on_where_another_left() {
        let folder = tempfile::tempdir().unwrap();
        let (grip, mut engine) = grip(folder.path());
        let (first, mut stream) = visit(folder.path());
        stream.write_all(b"hello").unwrap();
        engine.write_all(b"one two").unwrap();
        let mut three = [0; 3];
        stream.read_exact(&mut three).unwrap();
        drop((first, stream));
        let (mut second, mut stream) = visit(folder.path());
        let mut four = [0; 4];
        stream.read_exact(&mut four).unwrap();
        assert_eq!((&three, &four), (b"one", b" two"));
        second.write_all(&Word::End.to_bytes()).unwrap();
        grip.join().unwrap().unwrap();
        assert!(!folder.path().join("g.sock").exists());
        drop(stream);
        let mut heard = Vec::new();
        engine.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"hello", "and nobody holds it any more");
    }

    #[test]
    fn two_cannot_have_the_stream_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (grip, _engine) = grip(folder.path());
        let (first, _stream) = visit(folder.path());
        let other = door::connect(&folder.path().join("g.sock")).unwrap();
        other.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        let refused = (&other).read(&mut [0; 8]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop((first, other));
        let (mut last, _stream) = visit(folder.path());
        last.write_all(&Word::End.to_bytes()).unwrap();
        grip.join().unwrap().unwrap();
    }

    #[test]
    fn a_stream_that_is_hung_up_ends_it_whoever_is_there() {
        for is_visited in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (grip, mut engine) = grip(folder.path());
            let visitor = is_visited.then(|| visit(folder.path()));
            engine.write_all(b"last words").unwrap();
            drop(engine);
            grip.join().unwrap().unwrap();
            assert!(!folder.path().join("g.sock").exists());
            if let Some((_, mut stream)) = visitor {
                assert!(is_hung_up(stream.as_fd()));
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                assert_eq!(heard, b"last words");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_that_is_cut_off_while_it_runs_leaves_its_file_to_tell_so() {
        let folder = tempfile::tempdir().unwrap();
        let minded = crate::cpu::Minded::new("the-word");
        let (grip, engine) = grip(folder.path());
        let (mut visitor, _stream) = visit(folder.path());
        visitor.write_all(&Word::Leader(minded.pid).to_bytes()).unwrap();
        // It is heard before the visitor is seen to go.
        drop(visitor);
        let (visitor, _stream) = visit(folder.path());
        drop(engine);
        grip.join().unwrap().unwrap();
        assert!(folder.path().join("g.sock").exists());
        drop(visitor);
    }

    #[test]
    fn words_survive_being_bytes_and_nonsense_is_none() {
        for word in [Word::End, Word::Leader(7), Word::Leader(u32::MAX)] {
            assert_eq!(Word::parse(&word.to_bytes()), Some(word));
        }
        for nonsense in [&b""[..], b"x", b"L", b"L123456", b"\0\0\0\0\0"] {
            assert_eq!(Word::parse(nonsense), None);
        }
        assert_eq!(greeted_by(&[2, 1, 0, 0, 0]), None);
        assert_eq!(greeted_by(&[1, 1]), None);
    }
}
