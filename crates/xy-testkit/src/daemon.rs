//! `xy daemon` in the foreground, as a child of the test.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process;
use crate::wait::poll;

/// How long a daemon may take to exit.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A running daemon. It keeps running when this is dropped; its [`crate::Home`] stops it.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Returns its process id.
    pub pid: u32,
    child: Arc<Mutex<Child>>,
    stderr: PathBuf,
}

impl Daemon {
    pub(crate) fn new(child: Child, stderr: PathBuf) -> Self {
        Self { pid: child.id(), child: Arc::new(Mutex::new(child)), stderr }
    }

    /// Sends SIGTERM and waits until the daemon has exited.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        self.send_term();
        self.wait()
    }

    /// Sends SIGTERM without waiting.
    pub fn send_term(&self) {
        // The process id is not reused before the child is reaped.
        if let Ok(None) = self.child().try_wait() {
            process::terminate(self.pid);
        }
    }

    /// Kills the daemon without a chance to clean up. Its servers may use their whole grace period;
    /// tests with slow servers must wait for them.
    pub fn kill9(&self) {
        let mut child = self.child();
        let _ = child.kill(); // It may have exited.
        child.wait().expect("a child of ours can be waited for");
    }

    /// Waits until the daemon exits by itself.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        self.ends_within(END_TIMEOUT).unwrap_or_else(|| {
            panic!(
                "daemon {} did not end within {END_TIMEOUT:?}; stderr:\n{}",
                self.pid,
                self.stderr()
            )
        })
    }

    /// Returns true if the daemon has not exited.
    pub fn is_running(&self) -> bool {
        self.status().is_none()
    }

    /// Returns what the daemon has written to stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Returns the exit status, if the daemon has exited.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child of ours can be waited for")
    }

    pub(crate) fn ends_within(&self, limit: Duration) -> Option<ExitStatus> {
        // Locked only for each check, so that other threads can check meanwhile.
        poll(limit, || self.status())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
