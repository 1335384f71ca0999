//! Closing of a home: stops all processes, and reports everything that is left behind.
//!
//! After a failed test, it only prints the report, as a second panic would hide the first.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use serde_json::Value;

use super::{Home, locked};
use crate::daemon::{Daemon, END_TIMEOUT};
use crate::wait::poll;
use crate::{leaks, process};

impl Home {
    /// Stops everything, and fails the test if anything is left behind.
    #[track_caller]
    pub fn finish(self) {
        let left = self.left_behind();
        assert!(left.is_empty(), "{}", complaint(&left));
    }

    /// Stops everything and returns what the test left behind. Remaining processes are killed.
    pub fn left_behind(mut self) -> Vec<String> {
        self.close()
    }

    fn close(&mut self) -> Vec<String> {
        self.is_closed = true;
        let mut left: Vec<String> =
            self.daemons().iter().filter_map(|daemon| end(daemon, END_TIMEOUT)).collect();
        left.extend(self.end_detached());
        left.extend(leaks::processes(&self.mark));
        // A killed daemon could not clean up; the next daemon would do it.
        let was_killed = |daemon: &Daemon| daemon.status().is_some_and(|it| it.signal().is_some());
        if !self.daemons().last().is_some_and(was_killed) {
            let mut expected = locked(&self.expected).clone();
            expected.push("harness/".to_owned());
            left.extend(leaks::files(&self.root, &expected));
        }
        left
    }

    /// Stops a detached daemon, which is not a child of the test.
    fn end_detached(&self) -> Option<String> {
        let pid = self.ask("info", Value::Null).ok()?["pid"].as_u64()?;
        let pid = u32::try_from(pid).ok().filter(|&pid| pid != std::process::id())?;
        process::terminate(pid);
        let ended = poll(END_TIMEOUT, || !process::is_alive(pid));
        ended.is_none().then(|| format!("daemon {pid} did not end within {END_TIMEOUT:?}"))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let words = self.last_words();
        let left = self.close();
        if std::thread::panicking() {
            tell(&format!("{words}\n{}", complaint(&left)));
        } else {
            assert!(left.is_empty(), "{}", complaint(&left));
        }
    }
}

/// Stops a daemon that the test has started. Returns what was wrong with its exit.
fn end(daemon: &Daemon, limit: Duration) -> Option<String> {
    if !daemon.is_running() {
        return None; // The test has stopped it.
    }
    daemon.send_term();
    let Some(status) = daemon.ends_within(limit) else {
        daemon.kill9();
        let pid = daemon.pid;
        return Some(format!("daemon {pid} did not end within {limit:?} and was killed"));
    };
    (!status.success()).then(|| format!("daemon {} ended badly: {status}", daemon.pid))
}

fn complaint(left: &[String]) -> String {
    if left.is_empty() {
        return "the test left nothing behind".to_owned();
    }
    format!("the test left behind:\n  {}", left.join("\n  "))
}

#[expect(clippy::print_stderr, reason = "the test has failed already, and this may say why")]
fn tell(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;

    fn daemon(folder: &tempfile::TempDir, script: &str) -> Daemon {
        let stderr = folder.path().join("stderr");
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(File::create(&stderr).unwrap());
        let daemon = Daemon::new(command.spawn().unwrap(), stderr);
        poll(END_TIMEOUT, || daemon.stderr().contains("ready")).unwrap();
        daemon
    }

    #[test]
    fn daemon_that_ends_on_request_is_no_problem() {
        let folder = tempfile::tempdir().unwrap();
        let good =
            daemon(&folder, "trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.05; done");
        assert_eq!(end(&good, END_TIMEOUT), None);
    }

    #[test]
    fn daemon_that_exits_with_an_error_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let bad =
            daemon(&folder, "trap 'exit 9' TERM; echo ready >&2; while :; do sleep 0.05; done");
        let told = end(&bad, END_TIMEOUT).unwrap();
        assert_eq!(told, format!("daemon {} ended badly: exit status: 9", bad.pid));
        assert_eq!(end(&bad, END_TIMEOUT), None); // Reported only once.
    }

    #[test]
    fn hanging_daemon_is_killed_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let deaf = daemon(&folder, "trap '' TERM; echo ready >&2; exec sleep 60");
        let told = end(&deaf, Duration::from_millis(50)).unwrap();
        assert!(told.ends_with("did not end within 50ms and was killed"), "{told}");
        assert_eq!(deaf.status().unwrap().signal(), Some(9));
    }
}
