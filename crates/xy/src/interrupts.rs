//! Waiting for termination signals, for verbs that must clean up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitResult {
    /// A termination signal arrived.
    Interrupted,
    /// The other source is readable.
    Ready,
    /// The time limit is reached.
    TimedOut,
}

/// A handler of termination signals. While it exists, they only wake [`Interrupts::wait`].
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

    /// Waits until a signal arrives, `other` becomes readable, or `within` has passed.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, within: Duration) -> WaitResult {
        match other {
            Some(other) => match readable(&[self.signals.as_fd(), other], within)[..] {
                [true, _] => WaitResult::Interrupted,
                [_, true] => WaitResult::Ready,
                _ => WaitResult::TimedOut,
            },
            None => match readable(&[self.signals.as_fd()], within)[..] {
                [true] => WaitResult::Interrupted,
                _ => WaitResult::TimedOut,
            },
        }
    }
}

/// Waits until a source is readable or closed, and returns which are. Sleeps if there are none.
pub(crate) fn readable(sources: &[BorrowedFd<'_>], within: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        sources.iter().map(|source| PollFd::new(source, PollFlags::IN)).collect();
    let limit = Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) => polled.iter().map(|source| !source.revents().is_empty()).collect(),
        // Interrupted by a signal: the caller waits again.
        Err(_) => vec![false; sources.len()],
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn wait_ends_by_signal_input_or_timeout() {
        let interrupts = Interrupts::listen().unwrap();
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let wait = |within| interrupts.wait(Some(reader.as_fd()), Duration::from_millis(within));
        assert_eq!(wait(1), WaitResult::TimedOut);
        writer.write_all(b"x").unwrap();
        assert_eq!(wait(5000), WaitResult::Ready);
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(wait(5000), WaitResult::Interrupted);
    }
}
