//! `xy daemon` in the foreground, as a child of the test.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process;
use crate::wait::poll;

/// How long a daemon may take to end.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(60);

/// A daemon that was started. It lives on when this is dropped: its [`crate::Home`]
/// ends it.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Its process.
    pub pid: u32,
    child: Arc<Mutex<Child>>,
    stderr: PathBuf,
}

impl Daemon {
    pub(crate) fn new(child: Child, stderr: PathBuf) -> Self {
        Self { pid: child.id(), child: Arc::new(Mutex::new(child)), stderr }
    }

    /// Asks it to end, and waits until it has.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        self.send_term();
        self.wait()
    }

    /// Sends SIGTERM and does not wait.
    pub fn send_term(&self) {
        // While the child is not reaped, its number is not another's.
        if let Ok(None) = self.child().try_wait() {
            process::terminate(self.pid);
        }
    }

    /// Kills it without a chance to clean up. Its servers may take their grace to
    /// end: a test that has patient ones waits for that itself.
    pub fn kill9(&self) {
        let mut child = self.child();
        let _ = child.kill(); // It may have ended.
        child.wait().expect("a child of ours can be waited for");
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        self.ends_within(END_WITHIN).unwrap_or_else(|| {
            panic!(
                "daemon {} did not end within {END_WITHIN:?}; stderr:\n{}",
                self.pid,
                self.stderr()
            )
        })
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        self.status().is_none()
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// How it ended, if it has.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child of ours can be waited for")
    }

    pub(crate) fn ends_within(&self, limit: Duration) -> Option<ExitStatus> {
        // Locked for each look only: others may want to know meanwhile.
        poll(limit, || self.status())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
