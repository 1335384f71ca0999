//! Reaching a daemon: the waits, their limits, and starting one if nobody is there.

use std::fs::{File, TryLockError};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use xy_config::Paths;
use xy_ipc::ConnectError;
use xy_protocol::error::{CallError, ErrorKind};

use super::carry::pause;
use super::environment::cleaned;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::launch::{ask_who_it_is, this_program};
use crate::link::no_daemon;
use crate::verbs::daemon::LastWords;

/// How long the first daemon is waited for: clients give up after 30 s or more.
const FIRST_WITHIN: Duration = Duration::from_secs(20);

/// How long a successor is waited for.
const NEXT_WITHIN: Duration = Duration::from_secs(60);

/// How long whoever ended a daemon has to start the next one before we do.
const START_AFTER: Duration = Duration::from_secs(1);

/// A connection that lasted so long was no false start.
const PROVED_AFTER: Duration = Duration::from_secs(2);

/// The wait after a start that came to nothing because somebody holds the lock.
const START_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// One may fail because of a daemon that was just ending.
const MAX_FAILED_STARTS: u32 = 2;

/// How long a daemon may take to say that it is there, for the hint in an error.
const SAYS_SO_WITHIN: Duration = Duration::from_secs(1);

/// What may be done to reach a daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) may_start: bool,
    /// In place of our own limits.
    pub(super) within: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Dial {
    paths: Paths,
    limits: Limits,
    starter: Starter,
    /// When to give up.
    deadline: Deadline,
    /// How long was waited already; the next wait depends on it.
    waited: Duration,
    /// How the last connection was lost.
    lost: Option<String>,
    /// A daemon that lets us in, and when that will have proved something.
    proved_at: Option<Deadline>,
    was_welcomed: bool,
    /// Somebody ended the daemon on purpose, so it is theirs to start the next one.
    is_sent_off: bool,
}

impl Dial {
    pub(super) fn new(paths: Paths, limits: Limits) -> Self {
        Self {
            paths,
            limits,
            starter: Starter::default(),
            deadline: Deadline::after(limits.within.unwrap_or(FIRST_WITHIN)),
            waited: Duration::ZERO,
            lost: None,
            proved_at: None,
            was_welcomed: false,
            is_sent_off: false,
        }
    }

    /// Waits for a connection; fails if that makes no sense any more.
    pub(super) fn reach(&mut self) -> Result<UnixStream, Failure> {
        if self.lost.is_some() {
            // The daemon that lets nobody in, or falls over each time, has had its turn.
            self.give_up_if_late(None)?;
            self.wait();
        }
        loop {
            let error = match xy_ipc::client::find(&self.paths.mcp_places()) {
                Ok(found) => {
                    self.starter.forget();
                    return Ok(found.stream);
                }
                // Waiting helps with none of these.
                Err(
                    error @ (ConnectError::NoPermission { .. }
                    | ConnectError::Unsafe { .. }
                    | ConnectError::Foreign { .. }),
                ) => return Err(no_daemon(&error)),
                Err(error) => error,
            };
            self.give_up_if_late(Some(&error))?;
            if error.is_not_listening() {
                self.nobody_is_there(&error)?;
            }
            self.wait();
        }
    }

    /// The daemon has let us in.
    pub(super) fn welcomed(&mut self) {
        self.was_welcomed = true;
        self.is_sent_off = false;
        self.proved_at = Some(Deadline::after(PROVED_AFTER));
    }

    /// The daemon goes, because somebody told it to.
    pub(super) fn sent_off(&mut self) {
        self.is_sent_off = true;
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self, cause: String) {
        self.lost = Some(cause);
        let Some(proved_at) = self.proved_at.take() else {
            return; // A daemon that does not let us in is as good as none.
        };
        self.deadline = Deadline::after(self.limits.within.unwrap_or(NEXT_WITHIN));
        if proved_at.has_passed() {
            self.waited = Duration::ZERO;
        }
    }

    fn wait(&mut self) {
        let moment = self.deadline.left_at_most(pause_after(self.waited));
        pause(moment);
        self.waited += moment;
    }

    fn nobody_is_there(&mut self, error: &ConnectError) -> Result<(), Failure> {
        if self.limits.may_start && !self.is_sent_off {
            let is_due = !self.was_welcomed || self.waited >= START_AFTER;
            return if is_due { self.starter.go_on(&self.paths) } else { Ok(()) };
        }
        // One that holds the lock is on its way.
        if self.was_welcomed || is_locked(&self.paths.lock_file) {
            return Ok(());
        }
        Err(no_daemon(error))
    }

    fn give_up_if_late(&self, error: Option<&ConnectError>) -> Result<(), Failure> {
        if !self.deadline.has_passed() {
            return Ok(());
        }
        let default = if self.was_welcomed { NEXT_WITHIN } else { FIRST_WITHIN };
        let within = humantime::format_duration(self.limits.within.unwrap_or(default));
        let why = match (error, &self.lost) {
            (Some(error), _) => error.to_string(),
            (None, Some(lost)) => lost.clone(),
            (None, None) => "nobody is there".to_owned(),
        };
        let error = CallError::new(
            ErrorKind::NotRunning,
            format!("the daemon could not be reached within {within}"),
        );
        Err(Failure::Unreachable(error.cause(why).hint(self.advice())))
    }

    fn advice(&self) -> String {
        match ask_who_it_is(&self.paths.control_places(), Deadline::after(SAYS_SO_WITHIN)) {
            Some(info) => format!(
                "a daemon runs (pid {}, version {}), but lets no MCP client in: replace it with \
                 `xy daemon --detach --replace`",
                info.pid, info.version
            ),
            None => format!("see {}", self.paths.daemon_log.display()),
        }
    }
}

/// How long to wait when so much was waited already: a quarter of it, up to a second.
fn pause_after(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// Whether somebody holds the daemon's lock.
fn is_locked(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Starts daemons, one at a time. The daemon's own lock sees to it that there is only one.
#[derive(Debug, Default)]
struct Starter {
    running: Option<(Child, LastWords)>,
    /// Not before that.
    next_at: Option<Deadline>,
    failures: u32,
}

impl Starter {
    /// Starts a daemon unless one is being started; fails if none will come.
    fn go_on(&mut self, paths: &Paths) -> Result<(), Failure> {
        let Some((child, words)) = &mut self.running else {
            if self.next_at.is_none_or(Deadline::has_passed) {
                self.running = Some(start().map_err(|cause| not_started(&cause.to_string()))?);
            }
            return Ok(());
        };
        words.listen(Duration::ZERO);
        let status = match child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status,
            Err(cause) => return Err(not_started(&cause.to_string())),
        };
        words.drain();
        let said = String::from_utf8_lossy(&words.text).trim().to_owned();
        self.running = None;
        self.next_at = Some(Deadline::after(START_AGAIN_AFTER));
        // Somebody else was faster, or is still ending.
        if status.success() || is_locked(&paths.lock_file) {
            self.failures = 0;
            return Ok(());
        }
        self.failures += 1;
        if self.failures < MAX_FAILED_STARTS {
            return Ok(());
        }
        Err(not_started(if said.is_empty() { "it ended at once" } else { &said }))
    }

    /// Somebody is there, so that the next start is another matter.
    fn forget(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // It ends by itself, now that there is a daemon; nobody else would bury it.
            let _ = super::spawn("reap", move || drop(child.wait()));
        }
        self.next_at = None;
        self.failures = 0;
    }
}

/// Runs `xy daemon --detach` of this very program, out of the client's reach: in a group of
/// its own, and with a login's environment.
fn start() -> std::io::Result<(Child, LastWords)> {
    let mut child = this_program()?
        .args(["daemon", "--detach"])
        .env_clear()
        .envs(cleaned(std::env::vars_os()))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let words = LastWords::of(&mut child);
    Ok((child, words))
}

fn not_started(said: &str) -> Failure {
    let error =
        CallError::new(ErrorKind::NotRunning, "no daemon is running, and it could not be started");
    Failure::Unreachable(error.cause(said).hint("try `xy daemon` to see more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_moments_to_a_second() {
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
    fn a_lock_is_seen_from_outside_and_not_taken() {
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
