//! A socket that also receives file descriptors.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// A socket, and the descriptor received last.
#[derive(Debug)]
pub(super) struct DescriptorStream {
    pub(super) stream: UnixStream,
    pub(super) descriptor: Option<OwnedFd>,
}

impl Read for DescriptorStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let received = recvmsg(&self.stream, &mut parts, &mut ancillary, flags())?;
        for message in ancillary.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for descriptor in descriptors {
                // This fails only for a descriptor that is not open.
                let _ = fcntl_setfd(&descriptor, FdFlags::CLOEXEC);
                self.descriptor = Some(descriptor);
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(target_os = "linux")]
fn flags() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

#[cfg(not(target_os = "linux"))]
fn flags() -> RecvFlags {
    RecvFlags::empty() // There is no such flag; each received descriptor gets the flag instead.
}
