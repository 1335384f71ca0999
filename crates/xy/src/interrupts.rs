//! Ctrl-C and its kin as something that can be waited for, for verbs with things to tidy up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Somebody wants us to end.
    Interrupted,
    /// The other thing that was waited for is there.
    Ready,
    /// The time is over.
    TimeIsUp,
}

/// From its making on, a signal to end only wakes us.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: UnixStream,
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Self> {
        let (signals, from_handler) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, from_handler.try_clone()?)?;
        }
        Ok(Self { signals })
    }

    /// Waits for a signal, for `other` to become readable, or until `within` is over.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, within: Duration) -> Woken {
        match other {
            Some(other) => match readable(&[self.signals.as_fd(), other], within)[..] {
                [true, _] => Woken::Interrupted,
                [_, true] => Woken::Ready,
                _ => Woken::TimeIsUp,
            },
            None => match readable(&[self.signals.as_fd()], within)[..] {
                [true] => Woken::Interrupted,
                _ => Woken::TimeIsUp,
            },
        }
    }
}

/// Waits until one of `sources` is readable or at its end; with none, just waits.
pub(crate) fn readable(sources: &[BorrowedFd<'_>], within: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        sources.iter().map(|source| PollFd::new(source, PollFlags::IN)).collect();
    let limit = Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) => polled.iter().map(|source| !source.revents().is_empty()).collect(),
        // Interrupted by a signal: whoever waits looks again.
        Err(_) => vec![false; sources.len()],
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_wait_ends_by_a_signal_by_a_word_or_by_itself() {
        let interrupts = Interrupts::listen().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let wait = |within| interrupts.wait(Some(ours.as_fd()), Duration::from_millis(within));
        assert_eq!(wait(1), Woken::TimeIsUp);
        theirs.write_all(b"x").unwrap();
        assert_eq!(wait(5000), Woken::Ready);
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(wait(5000), Woken::Interrupted);
    }
}
