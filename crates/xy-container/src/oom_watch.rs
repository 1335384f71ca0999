//! Detection of kills for lack of memory, from the kernel's count.
//!
//! Podman often misses such a kill: its helper learns of the kill and of the exit at the same
//! moment, and may handle only the latter. The kernel's count exists only as long as the
//! container's cgroup. So this watches the first process and reads the count at its exit; Podman
//! takes at least a tenth of a second to remove the cgroup.
//!
//! A kill long before the exit hit another process of the container and is not the reason for the
//! exit. So the count is sampled, and only a recent rise counts.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use xy_shim::cgroup::OomKills;

/// Time for the result, once the engine has reported the exit.
const RESULT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two samples. A kill is the reason for an exit if it is no older than the sample
/// before the last: a large process takes a while to exit.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// A watch on the first process of a container.
#[derive(Debug, Clone)]
pub(crate) struct OomWatch {
    /// Whether there was a kill; `None` until the process has exited.
    killed: watch::Receiver<Option<bool>>,
}

impl OomWatch {
    /// Starts a watch on the container with this id. Returns `None` if its first process is not one
    /// of this machine.
    pub(crate) fn of(pid: u32, id: &str) -> Option<Self> {
        if !xy_shim::cpu::parent_has_argument(pid, id) {
            return None;
        }
        let ended = until_ended(pid)?;
        let mut kills = OomKills::of(pid, id)?;
        let (sender, killed) = watch::channel(None);
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(ended);
            loop {
                tokio::select! {
                    biased; // At the exit the final count must not be taken for a sample.
                    () = &mut ended => {
                        let _ = sender.send_replace(Some(kills.has_risen()));
                        return;
                    }
                    () = sender.closed() => return, // The watch was dropped.
                    () = sleep(SAMPLE_INTERVAL) => kills.advance(),
                }
            }
        });
        Some(Self { killed })
    }

    /// Returns a watch on a container that has exited.
    #[cfg(test)]
    pub(crate) fn that_saw(is_killed: bool) -> Self {
        Self { killed: watch::channel(Some(is_killed)).1 }
    }

    /// Returns true if a container that has exited was killed for lack of memory.
    pub(crate) async fn saw_kill(&self) -> bool {
        let mut killed = self.killed.clone();
        let result = timeout(RESULT_TIMEOUT, killed.wait_for(Option::is_some)).await;
        matches!(result, Ok(Ok(result)) if *result == Some(true))
    }
}

/// Resolves when a process has exited. Returns `None` if it cannot be watched.
#[cfg(target_os = "linux")]
fn until_ended(pid: u32) -> Option<impl Future<Output = ()> + Send + 'static> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use tokio::net::unix::pipe::Receiver;

    let pid = Pid::from_raw(pid.cast_signed())?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // A pidfd is not a pipe and nothing is read from it, but it becomes readable at the exit.
    let held = Receiver::from_owned_fd_unchecked(held).ok()?;
    Some(async move {
        let _ = held.readable().await; // An error means the exit, too.
    })
}

#[cfg(not(target_os = "linux"))]
fn until_ended(_pid: u32) -> Option<std::future::Pending<()>> {
    None // Containers are in a machine of their own there.
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn process_exit_is_detected_and_not_earlier() {
        let mut child = tokio::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ended = until_ended(child.id().unwrap()).unwrap();
        let mut ended = std::pin::pin!(ended);
        assert!(timeout(Duration::from_millis(50), &mut ended).await.is_err());
        drop(child.stdin.take());
        timeout(Duration::from_secs(20), ended).await.unwrap();
    }

    #[tokio::test]
    async fn process_outside_containers_is_not_watched() {
        assert!(OomWatch::of(std::process::id(), "abc").is_none());
        assert!(OomWatch::of(0, "abc").is_none());
    }
}
