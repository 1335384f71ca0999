//! Starts this program as a daemon and waits until it is ready.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use xy_ipc::Client;
use xy_protocol::control::{Info, Request};

use crate::clock::Deadline;

/// How long a daemon may take to become ready, including the adoption of shims.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The outcome of starting a daemon.
#[derive(Debug)]
pub(crate) enum StartOutcome {
    /// The daemon answers.
    Ready(Box<Info>),
    /// The daemon has exited.
    Exited(ExitStatus),
    /// The daemon runs but does not answer in time.
    TimedOut,
    /// The caller stopped waiting.
    Interrupted,
}

/// Returns a command that runs this program, even if its file has been replaced since.
pub(crate) fn this_program() -> io::Result<Command> {
    let mut command = if cfg!(target_os = "linux") {
        Command::new("/proc/self/exe")
    } else {
        Command::new(std::env::current_exe()?)
    };
    command.arg0("xy");
    Ok(command)
}

/// Waits until the daemon `child` answers at one of `places`, exits, or the time limit is reached.
///
/// `pause` sleeps for a moment, and returns false to stop waiting.
pub(crate) fn wait_until_ready(
    child: &mut Child,
    places: &[PathBuf],
    mut pause: impl FnMut(Duration) -> bool,
) -> io::Result<StartOutcome> {
    let deadline = Deadline::after(START_TIMEOUT);
    while !deadline.has_passed() {
        if let Some(status) = child.try_wait()? {
            return Ok(StartOutcome::Exited(status));
        }
        if let Some(info) = query_info(places, deadline)
            && info.pid == child.id()
        {
            return Ok(StartOutcome::Ready(Box::new(info)));
        }
        if !pause(deadline.remaining_at_most(POLL_INTERVAL)) {
            return Ok(StartOutcome::Interrupted);
        }
    }
    Ok(StartOutcome::TimedOut)
}

/// Queries the daemon at one of `places`; returns `None` if none answers.
pub(crate) fn query_info(places: &[PathBuf], deadline: Deadline) -> Option<Info> {
    let mut client = Client::find(places).ok()?;
    let within = deadline.remaining_at_most(START_TIMEOUT).max(Duration::from_millis(1));
    client.set_timeout(Some(within)).ok()?;
    client.call_as(&Request::Info).ok()
}
