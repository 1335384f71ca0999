//! Which came first: the end of a container's first process, or the hang-up of its stream.
//!
//! An engine hangs up once a container has ended; a container that is cut off ends because of it.
//! Whoever looks only then sees the same of both. But the kernel puts what it has to say into the
//! order in which it happened, whether anybody waits for it or not: so it is asked to watch both
//! from the beginning, and read once.

use std::os::fd::BorrowedFd;

use crate::cpu;

/// A container's first process and its stream, watched.
#[derive(Debug)]
pub struct Sequence {
    leader: u32,
    container: String,
    /// What the kernel has seen of both; not if it cannot (before Linux 5.3).
    #[cfg(target_os = "linux")]
    seen: Option<linux::Seen>,
}

impl Sequence {
    /// Watches from now on. `None` if this is not the first process of that container, or of one
    /// that this system does not run itself. Without its stream less is known.
    pub fn watch(leader: u32, container: &str, stream: Option<BorrowedFd<'_>>) -> Option<Self> {
        #[cfg(target_os = "linux")]
        let seen = stream.and_then(|stream| linux::Seen::watch(leader, stream));
        #[cfg(not(target_os = "linux"))]
        let _ = stream;
        // Looked at after it is watched, so the one that is watched is this one.
        cpu::is_minded_for(leader, container).then(|| Self {
            leader,
            container: container.to_owned(),
            #[cfg(target_os = "linux")]
            seen,
        })
    }

    /// Whether the stream, which is over, was so while the process still ran.
    pub fn is_cut_off(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(first) = self.seen.as_ref().and_then(linux::Seen::first) {
            return first == linux::STREAM;
        }
        cpu::is_minded_for(self.leader, &self.container)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::event::Timespec;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    const PROCESS: u64 = 1;
    pub(super) const STREAM: u64 = 2;

    #[derive(Debug)]
    pub(super) struct Seen {
        events: OwnedFd,
        /// Watched only while it is open. The stream is not kept open here.
        _process: OwnedFd,
    }

    impl Seen {
        pub(super) fn watch(leader: u32, stream: BorrowedFd<'_>) -> Option<Self> {
            let leader = Pid::from_raw(leader.try_into().ok()?)?;
            let process = pidfd_open(leader, PidfdFlags::empty()).ok()?;
            let events = epoll::create(CreateFlags::CLOEXEC).ok()?;
            // In this order: if both are over already, it has ended by itself as far as we know.
            epoll::add(&events, &process, EventData::new_u64(PROCESS), EventFlags::IN).ok()?;
            epoll::add(&events, stream, EventData::new_u64(STREAM), EventFlags::RDHUP).ok()?;
            Some(Self { events, _process: process })
        }

        /// What happened first, if anything did.
        pub(super) fn first(&self) -> Option<u64> {
            let mut found = [MaybeUninit::uninit(); 2];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let first = rustix::io::retry_on_intr(|| {
                let (found, _) = epoll::wait(&self.events, &mut found[..], Some(&at_once))?;
                Ok(found.first().map(|event| event.data.u64()))
            });
            first.ok().flatten()
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::cpu::Minded;

    const WORD: &str = "the-word";

    /// Nobody looks before both are over.
    #[test]
    fn what_came_first_is_known_afterwards() {
        for is_cut_off in [true, false] {
            let (stream, mut engine) = UnixStream::pair().unwrap();
            let minded = Minded::new(WORD);
            let sequence = Sequence::watch(minded.pid, WORD, Some(stream.as_fd())).unwrap();
            engine.write_all(b"words that nobody reads").unwrap();
            if is_cut_off {
                drop(engine);
                drop(minded);
            } else {
                drop(minded);
                drop(engine);
            }
            assert_eq!(sequence.is_cut_off(), is_cut_off);
            assert_eq!(sequence.is_cut_off(), is_cut_off, "and stays so");
        }
    }

    #[test]
    fn a_stream_that_ends_in_another_way_counts_while_the_process_runs() {
        for has_stream in [true, false] {
            let (stream, _engine) = UnixStream::pair().unwrap();
            let minded = Minded::new(WORD);
            let stream = has_stream.then(|| stream.as_fd());
            let sequence = Sequence::watch(minded.pid, WORD, stream).unwrap();
            assert!(sequence.is_cut_off());
            drop(minded);
            assert!(!sequence.is_cut_off());
        }
    }

    #[test]
    fn a_process_of_somebody_else_is_not_watched() {
        let (stream, _engine) = UnixStream::pair().unwrap();
        let minded = Minded::new(WORD);
        for (pid, word) in [(minded.pid, "another"), (0, WORD), (u32::MAX, WORD)] {
            assert!(Sequence::watch(pid, word, Some(stream.as_fd())).is_none(), "{pid} {word}");
        }
    }
}
