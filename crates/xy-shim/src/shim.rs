//! A shim before it has a server: its connection to the daemon, its signals, and its read buffer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};

use crate::control::Control;
use crate::signals::Signals;
use crate::wire::{Order, StartOrder};

/// Size of one read: a source is read this far before the next one is polled.
const CHUNK: usize = 64 * 1024;

/// A shim before it has a server.
pub(crate) struct Shim {
    pub(crate) control: Control,
    pub(crate) signals: Signals,
    /// Buffer for every read.
    pub(crate) chunk: Vec<u8>,
}

impl Shim {
    /// Creates a shim for the daemon at the other end of `socket`, and installs the signal
    /// handlers.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            control: Control::new(socket),
            signals: Signals::listen()?,
            chunk: vec![0; CHUNK],
        })
    }

    /// Waits for the order to start. Returns `None` if the daemon hangs up or sends another order.
    pub(crate) fn wait_for_start(&mut self) -> io::Result<Option<Box<StartOrder>>> {
        loop {
            match self.control.next_order(|_, _| ()) {
                Some(Order::Start(order)) => return Ok(Some(order)),
                Some(_) => return Ok(None),
                None => {}
            }
            let Some((socket, _)) = self.control.interest() else { return Ok(None) };
            let mut ready = [
                PollFd::from_borrowed_fd(socket, PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            self.signals.clear();
            if self.signals.is_termination_requested() {
                return Ok(None);
            }
            self.control.read(&mut self.chunk);
        }
    }
}
