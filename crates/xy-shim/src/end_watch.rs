//! Determines which came first: the exit of a container's first process, or the hang-up of its
//! stream.
//!
//! An engine hangs up after a container has ended; a container that is cut off ends because of the
//! hang-up. Seen afterwards, both cases look the same. The kernel queues events in their order,
//! whether or not a process waits for them. So both are watched from the beginning, and the queue
//! is read once.

use std::os::fd::BorrowedFd;

use crate::cpu;

/// A watch on a container's first process and on its stream.
#[derive(Debug)]
pub struct EndWatch {
    leader: u32,
    container: String,
    /// The kernel's events of both; `None` where it cannot watch them (before Linux 5.3).
    #[cfg(target_os = "linux")]
    events: Option<linux::EventQueue>,
}

impl EndWatch {
    /// Starts to watch. Returns `None` if `leader` is not the first process of that container, or
    /// if this system does not run the container itself.
    ///
    /// Without a stream, only the process is checked, and only when asked.
    pub fn watch(leader: u32, container: &str, stream: Option<BorrowedFd<'_>>) -> Option<Self> {
        #[cfg(target_os = "linux")]
        let events = stream.and_then(|stream| linux::EventQueue::watch(leader, stream));
        #[cfg(not(target_os = "linux"))]
        let _ = stream;
        // Checked after the watch has begun, so the watched process is the checked one.
        cpu::parent_has_argument(leader, container).then(|| Self {
            leader,
            container: container.to_owned(),
            #[cfg(target_os = "linux")]
            events,
        })
    }

    /// Returns true if the stream, which is over, ended while the process still ran.
    pub fn was_cut_off(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(first) = self.events.as_ref().and_then(linux::EventQueue::first) {
            return first == linux::STREAM;
        }
        cpu::parent_has_argument(self.leader, &self.container)
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
    pub(super) struct EventQueue {
        events: OwnedFd,
        /// The kernel watches the process only while this is open. The stream is not kept open
        /// here.
        _process: OwnedFd,
    }

    impl EventQueue {
        pub(super) fn watch(leader: u32, stream: BorrowedFd<'_>) -> Option<Self> {
            let leader = Pid::from_raw(leader.try_into().ok()?)?;
            let process = pidfd_open(leader, PidfdFlags::empty()).ok()?;
            let events = epoll::create(CreateFlags::CLOEXEC).ok()?;
            // If both are over already, the process comes first: the container has ended by itself
            // as far as is known.
            epoll::add(&events, &process, EventData::new_u64(PROCESS), EventFlags::IN).ok()?;
            epoll::add(&events, stream, EventData::new_u64(STREAM), EventFlags::RDHUP).ok()?;
            Some(Self { events, _process: process })
        }

        /// Returns the first event, if any.
        pub(super) fn first(&self) -> Option<u64> {
            let mut ready = [MaybeUninit::uninit(); 2];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let first = rustix::io::retry_on_intr(|| {
                let (ready, _) = epoll::wait(&self.events, &mut ready[..], Some(&at_once))?;
                Ok(ready.first().map(|event| event.data.u64()))
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
    use crate::cpu::ChildOfMonitor;

    const WORD: &str = "the-word";

    /// The watch is read only after both are over.
    #[test]
    fn first_event_is_known_afterwards() {
        for is_cut_off in [true, false] {
            let (stream, mut engine) = UnixStream::pair().unwrap();
            let child = ChildOfMonitor::new(WORD);
            let end_watch = EndWatch::watch(child.pid, WORD, Some(stream.as_fd())).unwrap();
            engine.write_all(b"unread words").unwrap();
            if is_cut_off {
                drop(engine);
                drop(child);
            } else {
                drop(child);
                drop(engine);
            }
            assert_eq!(end_watch.was_cut_off(), is_cut_off);
            assert_eq!(end_watch.was_cut_off(), is_cut_off, "and stays so");
        }
    }

    #[test]
    fn without_events_a_running_process_was_cut_off() {
        for has_stream in [true, false] {
            let (stream, _engine) = UnixStream::pair().unwrap();
            let child = ChildOfMonitor::new(WORD);
            let stream = has_stream.then(|| stream.as_fd());
            let end_watch = EndWatch::watch(child.pid, WORD, stream).unwrap();
            assert!(end_watch.was_cut_off());
            drop(child);
            assert!(!end_watch.was_cut_off());
        }
    }

    #[test]
    fn unrelated_process_is_not_watched() {
        let (stream, _engine) = UnixStream::pair().unwrap();
        let child = ChildOfMonitor::new(WORD);
        for (pid, word) in [(child.pid, "another"), (0, WORD), (u32::MAX, WORD)] {
            assert!(EndWatch::watch(pid, word, Some(stream.as_fd())).is_none(), "{pid} {word}");
        }
    }
}
