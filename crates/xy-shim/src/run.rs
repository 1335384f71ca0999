//! Start of a shim: cleans up the process, takes the connection and waits for an order.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::stdio;

use crate::control::Control;
use crate::exec;
use crate::identity::Identity;
use crate::instance::Instance;
use crate::listener::Listener;
use crate::signals::Signals;
use crate::sys;
use crate::wire::{Order, PROTOCOL, Problem, Report, StartFault, StartOrder};

/// Size of one read: a source is read this far before the next one is polled.
const CHUNK: usize = 64 * 1024;

/// How long the shim waits at its end for the daemon to read the remaining frames.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs one life of a server, from the order on fd 0 to the last line on disk.
///
/// Must be called first thing in `main`, while the process has no other thread.
pub fn run() -> ExitCode {
    match run_shim() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let message = format!("xy: the shim could not start: {cause}\n");
            let _ = rustix::io::write(stdio::stderr(), message.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// A shim before it has a server.
pub(crate) struct Shim {
    pub(crate) control: Control,
    pub(crate) signals: Signals,
    /// Buffer for every read.
    pub(crate) chunk: Vec<u8>,
}

fn run_shim() -> io::Result<()> {
    sys::close_inherited();
    let control = Control::new(take_control()?);
    become_independent();
    let mut shim = Shim { control, signals: Signals::listen()?, chunk: vec![0; CHUNK] };
    let Some(order) = shim.wait_for_start()? else {
        return Ok(()); // Nothing was started, so nothing is left.
    };
    // The identity is published before the start, so that a running server can always be found.
    let listener = publish_identity(&order);
    match start(&order) {
        Ok(started) => Instance::new(shim, &order, started, listener).run(),
        Err(fault) => {
            shim.control.outbox.put_report(&Report::StartFailed(fault));
            shim.control.flush_within(FLUSH_TIMEOUT);
        }
    }
    Ok(())
}

impl Shim {
    /// Waits for the order to start. Returns `None` if the daemon hangs up or sends another order.
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
            if self.signals.is_termination_requested() {
                return Ok(None);
            }
            self.control.read(&mut self.chunk);
        }
    }
}

/// Moves the connection away from fd 0, which is replaced by `/dev/null`.
fn take_control() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    stdio::dup2_stdin(&nothing)?;
    rustix::io::ioctl_fionbio(&control, true)?;
    Ok(control)
}

fn become_independent() {
    let _ = rustix::process::setsid(); // Fails only if the process already leads a group.
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let _ = rustix::thread::set_name(c"xy-shim"); // Otherwise `ps` shows `exe`.
    }
    sys::clear_signal_mask();
}

/// Listens at the ordered socket and writes this process's identity to the lock file on stdout.
///
/// Returns `None` if that fails, for example on a full disk. The server starts all the same, but
/// ends with its daemon.
fn publish_identity(order: &StartOrder) -> Option<Listener> {
    let socket = order.socket.as_ref()?;
    let listener = Listener::bind(Path::new(socket)).ok()?;
    let mut lock = File::from(rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3).ok()?);
    let identity = Identity::of_current_process(&order.life, socket).ok()?;
    identity.write(&mut lock).ok()?;
    Some(listener)
}

fn start(order: &StartOrder) -> Result<exec::StartedServer, StartFault> {
    if order.protocol != PROTOCOL {
        let problem = Problem::Protocol { expected: PROTOCOL };
        return Err(StartFault { problem, errno: None });
    }
    exec::start(order)
}
