//! The beginning of a shim: a clean process, a connection, an order.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::stdio;

use crate::control::Control;
use crate::door::Door;
use crate::exec;
use crate::identity::Identity;
use crate::life::Life;
use crate::signals::Signals;
use crate::sys;
use crate::wire::{Order, PROTOCOL, Problem, Report, StartFault, StartOrder};

/// Read at most this much of one pipe before looking at the others.
const CHUNK: usize = 64 * 1024;

/// How long a daemon may take to read the last words.
pub(crate) const LAST_WORDS_WITHIN: Duration = Duration::from_secs(5);

/// One life of a server, from the order on fd 0 to the last line on disk.
///
/// To be called first thing in `main`: there must be no other thread.
pub fn run() -> ExitCode {
    match live() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let words = format!("xy: the shim could not begin: {cause}\n");
            let _ = rustix::io::write(stdio::stderr(), words.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// What a shim is before it has a server.
pub(crate) struct Shim {
    pub(crate) control: Control,
    pub(crate) signals: Signals,
    /// Where everything that is read passes through.
    pub(crate) chunk: Vec<u8>,
}

fn live() -> io::Result<()> {
    sys::close_inherited();
    let control = Control::new(take_control()?);
    become_independent();
    let mut shim = Shim { control, signals: Signals::listen()?, chunk: vec![0; CHUNK] };
    let Some(order) = shim.wait_for_start()? else {
        return Ok(()); // Nothing was started, so nothing is left.
    };
    // Found first, started then: whoever runs is known to be there.
    let door = be_found(&order);
    match start(&order) {
        Ok(started) => Life::begin(shim, &order, started, door).run(),
        Err(fault) => {
            shim.control.outbox.put_report(&Report::StartFailed(fault));
            shim.control.flush_within(LAST_WORDS_WITHIN);
        }
    }
    Ok(())
}

impl Shim {
    /// The order to start; `None` if the daemon thinks better of it.
    fn wait_for_start(&mut self) -> io::Result<Option<Box<StartOrder>>> {
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
            if self.signals.told_to_end() {
                return Ok(None);
            }
            self.control.read(&mut self.chunk);
        }
    }
}

/// Moves the connection out of the way: fd 0 is not ours to speak on.
fn take_control() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdin(&nothing)?;
    rustix::io::ioctl_fionbio(&control, true)?;
    Ok(control)
}

fn become_independent() {
    let _ = rustix::process::setsid(); // Fails only for one that leads a group already.
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let _ = rustix::thread::set_name(c"xy-shim"); // Or `ps` would call it `exe`.
    }
    sys::clear_signal_mask();
}

/// Opens a door and says where, and whose it is, in the lock that our stdout is.
///
/// What cannot be found (the disk is full) is not started the less; it ends with its daemon.
fn be_found(order: &StartOrder) -> Option<Door> {
    let socket = order.socket.as_ref()?;
    let door = Door::open(Path::new(socket)).ok()?;
    let mut lock = File::from(rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3).ok()?);
    let identity = Identity::of_this_process(&order.life, socket).ok()?;
    identity.write(&mut lock).ok()?;
    Some(door)
}

fn start(order: &StartOrder) -> Result<exec::Started, StartFault> {
    if order.protocol != PROTOCOL {
        let problem = Problem::Protocol { expected: PROTOCOL };
        return Err(StartFault { problem, errno: None });
    }
    exec::start(order)
}
