//! Start of a shim: cleans up the process, takes the connection, and starts the server once it is
//! ordered.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::stdio;

use crate::control::FLUSH_TIMEOUT;
use crate::identity::Identity;
use crate::life::ServerLife;
use crate::listener::Listener;
use crate::shim::Shim;
use crate::wire::{PROTOCOL, Problem, Report, StartFault, StartOrder};
use crate::{exec, sys};

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

fn run_shim() -> io::Result<()> {
    sys::close_inherited();
    let control = take_control()?;
    become_independent();
    let mut shim = Shim::new(control)?;
    let Some(order) = shim.wait_for_start()? else {
        return Ok(()); // Nothing was started, so nothing is left.
    };
    // The identity is published before the start, so that a running server can always be found.
    let listener = publish_identity(&order);
    match start(&order) {
        Ok(started) => ServerLife::new(shim, &order, started, listener).run(),
        Err(fault) => {
            shim.control.outbox.put_report(&Report::StartFailed(fault));
            shim.control.flush_within(FLUSH_TIMEOUT);
        }
    }
    Ok(())
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
