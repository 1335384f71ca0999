//! `xy shutdown`: stop all servers, then the daemon.

use std::path::Path;
use std::time::Duration;

use xy_config::Paths;
use xy_ipc::Client;
use xy_protocol::control::{Request, ShuttingDown};
use xy_protocol::error::{CallError, ErrorKind};

use crate::cli::Json;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::interrupts::readable;
use crate::link::{Link, call_failed, read};
use crate::output::Output;

/// How long a daemon that has hung up may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// How long is waited between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Stop all servers, then the daemon
///
/// Waits until every server has ended and the daemon is gone.
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
    let result = link.ask_promptly(&Request::Shutdown)?;
    let ShuttingDown { pid } = read(&result)?;
    let process = Process::find(pid);
    link.client.wait_for_hang_up().map_err(call_failed)?;
    let is_gone = until_gone(&link.socket, &process);
    drop(spinner);
    if !is_gone {
        let error = CallError::new(ErrorKind::TimedOut, "the daemon has not ended")
            .cause(format!("process {pid} still runs, though it has hung up"))
            .hint(format!("see {}", paths.daemon_log.display()));
        return Err(error.into());
    }
    if args.json.json {
        return output.json(&result);
    }
    output.print(&format!("daemon {pid} has ended\n"))
}

fn until_gone(socket: &Path, process: &Process) -> bool {
    let deadline = Deadline::after(GONE_WITHIN);
    while !deadline.has_passed() {
        if Client::connect(socket).is_err_and(|error| error.is_not_listening()) {
            return process.ends_within(deadline.left_at_most(GONE_WITHIN));
        }
        readable(&[], LOOK_AGAIN_AFTER);
    }
    false
}

/// The daemon's process. Its lock goes with it, so whoever starts the next one at
/// once has to know that it has really ended.
struct Process {
    #[cfg(target_os = "linux")]
    handle: Option<rustix::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Process {
    fn find(pid: u32) -> Self {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};

        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // One that cannot be found is gone, or hidden from us: the socket has to do.
        Self { handle: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) }
    }

    fn ends_within(&self, within: Duration) -> bool {
        use std::os::fd::AsFd;

        self.handle.as_ref().is_none_or(|handle| readable(&[handle.as_fd()], within)[0])
    }
}

#[cfg(not(target_os = "linux"))]
impl Process {
    fn find(_: u32) -> Self {
        Self {}
    }

    fn ends_within(&self, _: Duration) -> bool {
        true // Only its socket can be seen, and that is gone.
    }
}
