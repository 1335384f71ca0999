//! Connecting to a daemon: retries, time limits, and starting a daemon if none runs.

use std::fs::{File, TryLockError};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use xy_config::Paths;
use xy_ipc::ConnectError;
use xy_protocol::error::{CallError, ErrorKind};

use super::batch::pause;
use super::environment::cleaned;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::launch::{query_info, this_program};
use crate::link::no_daemon;
use crate::verbs::daemon::StderrCapture;

/// How long to wait for the first connection. Clients give up after 30 s or more.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for a new daemon after a connection was lost.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay before this process starts a daemon. A user who has stopped the last daemon may be about
/// to start another.
const START_DELAY: Duration = Duration::from_secs(1);

/// A connection that lasted this long resets the back-off.
const STABLE_AFTER: Duration = Duration::from_secs(2);

/// Delay before the next start after a started daemon has exited.
const START_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Number of failed starts after which to give up. The first may fail because a daemon is exiting.
const MAX_FAILED_STARTS: u32 = 2;

/// Time limit of the query for the hint of an error.
const HINT_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits on reaching a daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) may_start: bool,
    /// Replaces the default time limits.
    pub(super) within: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Connector {
    paths: Paths,
    limits: Limits,
    starter: Starter,
    /// The time at which to give up.
    deadline: Deadline,
    /// The total waiting time, which determines the next wait.
    waited: Duration,
    /// The cause of the last connection loss.
    lost: Option<String>,
    /// The time at which the current connection counts as stable.
    stable_at: Option<Deadline>,
    was_welcomed: bool,
    /// True if the daemon was stopped on request, so this process must not start another.
    was_shut_down: bool,
}

impl Connector {
    pub(super) fn new(paths: Paths, limits: Limits) -> Self {
        Self {
            paths,
            limits,
            starter: Starter::default(),
            deadline: Deadline::after(limits.within.unwrap_or(FIRST_CONNECT_TIMEOUT)),
            waited: Duration::ZERO,
            lost: None,
            stable_at: None,
            was_welcomed: false,
            was_shut_down: false,
        }
    }

    /// Connects to a daemon, retrying until a limit is reached or the failure is permanent.
    pub(super) fn connect(&mut self) -> Result<UnixStream, Failure> {
        if self.lost.is_some() {
            // Limits retries with a daemon that rejects or loses every connection.
            self.check_deadline(None)?;
            self.wait();
        }
        loop {
            let error = match xy_ipc::client::find(&self.paths.mcp_socket_candidates()) {
                Ok(found) => {
                    self.starter.reset();
                    return Ok(found.stream);
                }
                // Retrying cannot resolve these.
                Err(
                    error @ (ConnectError::NoPermission { .. }
                    | ConnectError::Unsafe { .. }
                    | ConnectError::Foreign { .. }),
                ) => return Err(no_daemon(&error)),
                Err(error) => error,
            };
            self.check_deadline(Some(&error))?;
            if error.is_not_listening() {
                self.start_or_wait(&error)?;
            }
            self.wait();
        }
    }

    /// Records that the daemon has accepted the connection.
    pub(super) fn record_welcome(&mut self) {
        self.was_welcomed = true;
        self.was_shut_down = false;
        self.stable_at = Some(Deadline::after(STABLE_AFTER));
    }

    /// Records that the daemon exits on request.
    pub(super) fn record_goodbye(&mut self) {
        self.was_shut_down = true;
    }

    /// Records that the connection was lost.
    pub(super) fn record_loss(&mut self, cause: String) {
        self.lost = Some(cause);
        let Some(stable_at) = self.stable_at.take() else {
            return; // The daemon never accepted the connection, so the deadline stays.
        };
        self.deadline = Deadline::after(self.limits.within.unwrap_or(RECONNECT_TIMEOUT));
        if stable_at.has_passed() {
            self.waited = Duration::ZERO;
        }
    }

    fn wait(&mut self) {
        let moment = self.deadline.remaining_at_most(pause_after(self.waited));
        pause(moment);
        self.waited += moment;
    }

    fn start_or_wait(&mut self, error: &ConnectError) -> Result<(), Failure> {
        if self.limits.may_start && !self.was_shut_down {
            let is_due = !self.was_welcomed || self.waited >= START_DELAY;
            return if is_due { self.starter.poll(&self.paths) } else { Ok(()) };
        }
        // A daemon that holds the lock is starting.
        if self.was_welcomed || is_locked(&self.paths.lock_file) {
            return Ok(());
        }
        Err(no_daemon(error))
    }

    fn check_deadline(&self, error: Option<&ConnectError>) -> Result<(), Failure> {
        if !self.deadline.has_passed() {
            return Ok(());
        }
        let default = if self.was_welcomed { RECONNECT_TIMEOUT } else { FIRST_CONNECT_TIMEOUT };
        let within = humantime::format_duration(self.limits.within.unwrap_or(default));
        let why = match (error, &self.lost) {
            (Some(error), _) => error.to_string(),
            (None, Some(lost)) => lost.clone(),
            (None, None) => "no daemon is listening".to_owned(),
        };
        let error = CallError::new(
            ErrorKind::NotRunning,
            format!("the daemon could not be reached within {within}"),
        );
        Err(Failure::Unreachable(error.cause(why).hint(self.timeout_hint())))
    }

    fn timeout_hint(&self) -> String {
        match query_info(&self.paths.control_socket_candidates(), Deadline::after(HINT_TIMEOUT)) {
            Some(info) => format!(
                "a daemon runs (pid {}, version {}) but accepts no MCP clients: replace it with \
                 `xy daemon --detach --replace`",
                info.pid, info.version
            ),
            None => format!("see {}", self.paths.daemon_log.display()),
        }
    }
}

/// Returns the next wait: a quarter of the time waited so far, at most one second.
fn pause_after(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// Returns true if a daemon holds the lock.
fn is_locked(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Starts daemons, one at a time. The daemon's lock ensures that only one runs.
#[derive(Debug, Default)]
struct Starter {
    running: Option<(Child, StderrCapture)>,
    /// The earliest time of the next start.
    next_at: Option<Deadline>,
    failures: u32,
}

impl Starter {
    /// Starts a daemon, or checks on the one being started. Fails after repeated failures.
    fn poll(&mut self, paths: &Paths) -> Result<(), Failure> {
        let Some((child, words)) = &mut self.running else {
            if self.next_at.is_none_or(Deadline::has_passed) {
                self.running = Some(start().map_err(|cause| not_started(&cause.to_string()))?);
            }
            return Ok(());
        };
        words.read_for(Duration::ZERO);
        let status = match child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status,
            Err(cause) => return Err(not_started(&cause.to_string())),
        };
        words.drain();
        let said = String::from_utf8_lossy(&words.text).trim().to_owned();
        self.running = None;
        self.next_at = Some(Deadline::after(START_RETRY_DELAY));
        // Another process has started a daemon, or the old one is still exiting.
        if status.success() || is_locked(&paths.lock_file) {
            self.failures = 0;
            return Ok(());
        }
        self.failures += 1;
        if self.failures < MAX_FAILED_STARTS {
            return Ok(());
        }
        Err(not_started(if said.is_empty() { "it exited immediately" } else { &said }))
    }

    /// Resets the failures after a connection, and reaps the started process.
    fn reset(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // It exits by itself now that a daemon runs, and must be reaped.
            let _ = super::spawn("reap", move || drop(child.wait()));
        }
        self.next_at = None;
        self.failures = 0;
    }
}

/// Starts `xy daemon --detach` with this program, in its own process group and with the
/// environment of a login session.
fn start() -> std::io::Result<(Child, StderrCapture)> {
    let mut child = this_program()?
        .args(["daemon", "--detach"])
        .env_clear()
        .envs(cleaned(std::env::vars_os()))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let words = StderrCapture::of(&mut child);
    Ok((child, words))
}

fn not_started(said: &str) -> Failure {
    let error =
        CallError::new(ErrorKind::NotRunning, "no daemon is running, and it could not be started");
    Failure::Unreachable(error.cause(said).hint("run `xy daemon` to see details"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_second() {
        let mut waited = Duration::ZERO;
        let mut waits = Vec::new();
        while waited < Duration::from_secs(10) {
            waits.push(pause_after(waited));
            waited += pause_after(waited);
        }
        assert_eq!(waits[0], Duration::from_millis(2));
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&Duration::from_secs(1)));
        assert!(waits.len() < 50, "{}", waits.len());
    }

    #[test]
    fn lock_is_detected_without_taking_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xy.pid");
        assert!(!is_locked(&path));
        let file = File::create(&path).unwrap();
        assert!(!is_locked(&path));
        file.try_lock().unwrap();
        assert!(is_locked(&path));
        drop(file);
        assert!(!is_locked(&path));
    }
}
