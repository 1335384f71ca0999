//! The demo's daemon: started, waited for, and taken down whatever happened to it.

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
use crate::interrupts::{Interrupts, Woken, readable};
use crate::launch::{Came, this_program, until_it_answers};
use crate::link::Link;

/// How long the daemon may take to stop two servers and itself.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// How long is waited between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The folder and the daemon in it.
#[derive(Debug)]
pub(super) struct Stage {
    daemon: Child,
    home: Home,
    /// Whether it has had servers to leave behind.
    has_answered: bool,
}

impl Stage {
    pub(super) fn set_up() -> Result<Self, Failure> {
        let failed = |cause| Failure::internal("the demo could not be set up", cause);
        let program = std::env::current_exe().map_err(failed)?;
        let home = Home::create(&std::env::temp_dir(), &program).map_err(failed)?;
        let daemon = spawn_daemon(&home).map_err(failed)?;
        Ok(Self { daemon, home, has_answered: false })
    }

    /// Waits until the daemon answers; `None` if somebody wants us to end before.
    pub(super) fn open(&mut self, interrupts: &Interrupts) -> Result<Option<Link>, Failure> {
        let socket = self.socket();
        let came = until_it_answers(&mut self.daemon, &socket, |moment| {
            interrupts.wait(None, moment) != Woken::Interrupted
        });
        match came {
            Ok(Came::Answers(_)) => {
                self.has_answered = true;
                Link::find(&socket).map(Some)
            }
            Ok(Came::GivenUp) => Ok(None),
            Ok(Came::Ended(status)) => Err(self.did_not_start(&status.to_string())),
            Ok(Came::TooLate) => Err(self.did_not_start("it does not answer")),
            Err(cause) => Err(self.did_not_start(&cause.to_string())),
        }
    }

    /// What to type in another terminal.
    pub(super) fn exports(&self) -> String {
        let export = |(variable, folder): (&str, PathBuf)| {
            format!("  export {variable}={}\n", folder.display())
        };
        self.home.variables().into_iter().map(export).collect()
    }

    /// Ends the servers and the daemon, and removes the folder.
    ///
    /// A daemon that died has left its servers to the next one, so there is a next one.
    pub(super) fn tear_down(mut self) -> Result<(), Failure> {
        let failed = |cause| Failure::internal("the demo could not be ended", cause);
        if self.has_answered && self.daemon.try_wait().map_err(failed)?.is_some() {
            self.daemon = spawn_daemon(&self.home).map_err(failed)?;
            let socket = self.socket();
            let _ = until_it_answers(&mut self.daemon, &socket, |moment| {
                readable(&[], moment);
                true
            });
        }
        if let Ok(mut client) = Client::find(&self.socket()) {
            let _ = client.answer_within(Some(ENDS_WITHIN));
            let _ = client.call(&Request::Shutdown);
        }
        if self.ends_within(ENDS_WITHIN) {
            return Ok(());
        }
        self.send(Signal::TERM);
        if self.ends_within(ENDS_WITHIN) {
            return Ok(());
        }
        self.send(Signal::KILL);
        self.ends_within(ENDS_WITHIN);
        let error = CallError::new(ErrorKind::TimedOut, "the demo's daemon had to be killed");
        Err(error.hint("its servers end by themselves within seconds").into())
    }

    fn socket(&self) -> [PathBuf; 1] {
        let [.., (_, runtime)] = self.home.variables();
        [runtime.join("xy.sock")]
    }

    fn ends_within(&mut self, within: Duration) -> bool {
        let deadline = Deadline::after(within);
        while !deadline.has_passed() {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return true;
            }
            readable(&[], LOOK_AGAIN_AFTER);
        }
        false
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal); // It is our child: its number is not another's.
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
        .process_group(0) // Ctrl-C is for us; we tell the daemon ourselves.
        .spawn()
}
