//! The demo's daemon: starting, waiting for it, and stopping it in any state.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use xy_ipc::Client;
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};

use super::home::Home;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::interrupts::{Interrupts, WaitResult, readable};
use crate::launch::{StartOutcome, this_program, wait_until_ready};
use crate::link::Link;

/// How long the daemon may take to stop its two servers and exit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The demo's folder and daemon.
#[derive(Debug)]
pub(super) struct DemoHome {
    daemon: Child,
    home: Home,
    /// True if the daemon may have started servers.
    has_answered: bool,
}

impl DemoHome {
    pub(super) fn set_up() -> Result<Self, Failure> {
        let failed = |cause| Failure::internal("the demo could not be set up", cause);
        let program = std::env::current_exe().map_err(failed)?;
        let home = Home::create(&std::env::temp_dir(), &program).map_err(failed)?;
        let daemon = spawn_daemon(&home).map_err(failed)?;
        Ok(Self { daemon, home, has_answered: false })
    }

    /// Waits until the daemon is ready. Returns `None` if interrupted.
    pub(super) fn open(&mut self, interrupts: &Interrupts) -> Result<Option<Link>, Failure> {
        let socket = self.socket();
        let came = wait_until_ready(&mut self.daemon, &socket, |moment| {
            interrupts.wait(None, moment) != WaitResult::Interrupted
        });
        match came {
            Ok(StartOutcome::Ready(_)) => {
                self.has_answered = true;
                Link::find(&socket).map(Some)
            }
            Ok(StartOutcome::Interrupted) => Ok(None),
            Ok(StartOutcome::Exited(status)) => Err(self.did_not_start(&status.to_string())),
            Ok(StartOutcome::TimedOut) => Err(self.did_not_start("it does not answer")),
            Err(cause) => Err(self.did_not_start(&cause.to_string())),
        }
    }

    /// Returns the shell commands that select this daemon in another terminal.
    pub(super) fn exports(&self) -> String {
        let export = |(variable, folder): (&str, PathBuf)| {
            format!("  export {variable}={}\n", folder.display())
        };
        self.home.variables().into_iter().map(export).collect()
    }

    /// Stops the servers and the daemon, and removes the folder.
    ///
    /// A daemon that died has left its servers running, so another one is started to stop them.
    pub(super) fn tear_down(mut self) -> Result<(), Failure> {
        let failed = |cause| Failure::internal("the demo could not be ended", cause);
        if self.has_answered && self.daemon.try_wait().map_err(failed)?.is_some() {
            self.daemon = spawn_daemon(&self.home).map_err(failed)?;
            let socket = self.socket();
            let _ = wait_until_ready(&mut self.daemon, &socket, |moment| {
                readable(&[], moment);
                true
            });
        }
        if let Ok(mut client) = Client::find(&self.socket()) {
            let _ = client.set_timeout(Some(SHUTDOWN_TIMEOUT));
            let _ = client.call(&Request::Shutdown);
        }
        if self.exits_within(SHUTDOWN_TIMEOUT) {
            return Ok(());
        }
        self.send(Signal::TERM);
        if self.exits_within(SHUTDOWN_TIMEOUT) {
            return Ok(());
        }
        self.send(Signal::KILL);
        self.exits_within(SHUTDOWN_TIMEOUT);
        let error = CallError::new(ErrorKind::TimedOut, "the demo's daemon had to be killed");
        Err(error.hint("wait a few seconds for its servers to exit").into())
    }

    fn socket(&self) -> [PathBuf; 1] {
        let [.., (_, runtime)] = self.home.variables();
        [runtime.join("xy.sock")]
    }

    fn exits_within(&mut self, within: Duration) -> bool {
        let deadline = Deadline::after(within);
        while !deadline.has_passed() {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return true;
            }
            readable(&[], POLL_INTERVAL);
        }
        false
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal); // A child keeps its id until it is reaped.
        }
    }

    fn did_not_start(&self, cause: &str) -> Failure {
        let said = fs::read_to_string(self.home.daemon_stderr()).unwrap_or_default();
        let cause = format!("{cause}\n{}", said.trim());
        Failure::internal("the demo's daemon did not start", cause.trim())
    }
}

fn spawn_daemon(home: &Home) -> std::io::Result<Child> {
    let stderr = File::options().create(true).append(true).open(home.daemon_stderr())?;
    this_program()?
        .arg("daemon")
        .envs(home.variables())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .process_group(0) // Ctrl-C must reach only the demo, which then stops the daemon.
        .spawn()
}
