//! A Unix socket that neither blocks nor is inherited, on every platform.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

/// Creates a non-blocking stream socket that children do not inherit.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn new() -> Result<OwnedFd, Errno> {
    use rustix::net::{SocketFlags, socket_with};

    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Creates a non-blocking stream socket that children do not inherit.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn new() -> Result<OwnedFd, Errno> {
    use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};

    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Returns true if the peer has closed both directions. A peer that only stopped sending has not.
pub fn is_hung_up(socket: impl AsFd) -> bool {
    poll_now(socket, PollFlags::empty()).intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Returns true if a read would return at once: with bytes, with EOF, or with an error.
pub(crate) fn is_readable(socket: impl AsFd) -> bool {
    !poll_now(socket, PollFlags::IN).is_empty()
}

fn poll_now(socket: impl AsFd, flags: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(&socket, flags)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&at_once)) {
        Ok(_) => polled[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
