//! `xy shutdown`: stops all servers, then the daemon.

use std::path::Path;
use std::time::Duration;

use xy_config::Paths;
use xy_ipc::Client;
use xy_protocol::control::{Request, ShutdownResult};
use xy_protocol::error::{CallError, ErrorKind};

use crate::args::Json;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::interrupts::readable;
use crate::link::{Link, call_failed, read};
use crate::output::Output;

/// How long the daemon may take to exit after it has closed the connection.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Stop all servers, then the daemon
///
/// Waits until all servers and the daemon have exited.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy shutdown")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?;
    let mut link = Link::open_at(&paths)?;
    let spinner = output.spinner("stopping all servers and the daemon");
    let result = link.query(&Request::Shutdown)?;
    let ShutdownResult { pid } = read(&result)?;
    let process = Process::find(pid);
    link.client.wait_for_hang_up().map_err(call_failed)?;
    let is_gone = wait_until_gone(&link.socket, &process);
    drop(spinner);
    if !is_gone {
        let error = CallError::new(ErrorKind::TimedOut, "the daemon did not exit in time")
            .cause(format!("process {pid} closed its connection but still runs"))
            .hint(format!("see {}", paths.daemon_log.display()));
        return Err(error.into());
    }
    if args.json.json {
        return output.json(&result);
    }
    output.print(&format!("daemon {pid} has ended\n"))
}

fn wait_until_gone(socket: &Path, process: &Process) -> bool {
    let deadline = Deadline::after(EXIT_TIMEOUT);
    while !deadline.has_passed() {
        if Client::connect(socket).is_err_and(|error| error.is_not_listening()) {
            return process.exits_within(deadline.remaining_at_most(EXIT_TIMEOUT));
        }
        readable(&[], POLL_INTERVAL);
    }
    false
}

/// The daemon's process. The daemon holds its lock until it exits, so a new daemon can start only
/// after that.
struct Process {
    #[cfg(target_os = "linux")]
    handle: Option<rustix::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Process {
    fn find(pid: u32) -> Self {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};

        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // A process that cannot be found has exited or is hidden: then the socket must do.
        Self { handle: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) }
    }

    fn exits_within(&self, within: Duration) -> bool {
        use std::os::fd::AsFd;

        self.handle.as_ref().is_none_or(|handle| readable(&[handle.as_fd()], within)[0])
    }
}

#[cfg(not(target_os = "linux"))]
impl Process {
    fn find(_: u32) -> Self {
        Self {}
    }

    fn exits_within(&self, _: Duration) -> bool {
        true // Only its socket can be observed, and that is gone.
    }
}
