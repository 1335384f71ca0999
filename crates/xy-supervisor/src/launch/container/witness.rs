//! Whether the kernel has killed in a container for want of memory.
//!
//! Podman often does not notice: its helper hears of the kill and of the end at the same moment,
//! and may heed only the latter. The kernel keeps count, but only as long as the container's
//! group is there. So the end of its first process is waited for here, and the count read at
//! once; Podman takes a tenth of a second or more before it removes the group.
//!
//! What was killed long before that end was something else in the container, and is not why it
//! ended. So the count is looked at now and then, and only what is new counts.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use xy_shim::cgroup::OomKills;

/// How long it may take to hear of an end that the engine has told already.
const HEARS_WITHIN: Duration = Duration::from_secs(1);

/// How often the count is looked at. A kill is why a container ended if it was no earlier than the
/// look before the last: the end of a large process takes its time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Who sees the end of a container's first process.
#[derive(Debug, Clone)]
pub(super) struct Witness {
    /// Whether there was a kill, once it is over.
    saw: watch::Receiver<Option<bool>>,
}

impl Witness {
    /// One for the container with this id, if its first process is really one of this machine.
    pub(super) fn of(pid: u32, id: &str) -> Option<Self> {
        if !xy_shim::cpu::is_minded_for(pid, id) {
            return None;
        }
        let ended = until_ended(pid)?;
        let mut kills = OomKills::of(pid, id)?;
        let (tell, saw) = watch::channel(None);
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(ended);
            loop {
                tokio::select! {
                    biased; // What is true at its end must not be taken for what was before.
                    () = &mut ended => {
                        let _ = tell.send_replace(Some(kills.has_risen()));
                        return;
                    }
                    () = tell.closed() => return, // Nobody wants to know.
                    () = sleep(LOOK_EVERY) => kills.look(),
                }
            }
        });
        Some(Self { saw })
    }

    /// One of a container that has ended.
    #[cfg(test)]
    pub(super) fn that_saw(is_killed: bool) -> Self {
        Self { saw: watch::channel(Some(is_killed)).1 }
    }

    /// Whether there was a kill, of a container that has ended.
    pub(super) async fn saw_kill(&self) -> bool {
        let mut saw = self.saw.clone();
        let told = timeout(HEARS_WITHIN, saw.wait_for(Option::is_some)).await;
        matches!(told, Ok(Ok(told)) if *told == Some(true))
    }
}

/// Resolves when a process has ended; `None` if that cannot be heard of.
#[cfg(target_os = "linux")]
fn until_ended(pid: u32) -> Option<impl Future<Output = ()> + Send + 'static> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use tokio::net::unix::pipe::Receiver;

    let pid = Pid::from_raw(pid.cast_signed())?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // It is no pipe, and nothing is read from it; it is readable once the process has ended.
    let held = Receiver::from_owned_fd_unchecked(held).ok()?;
    Some(async move {
        let _ = held.readable().await; // An error would be the end, too.
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
    async fn the_end_of_a_process_is_heard_of_and_not_before() {
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
    async fn who_is_nobodys_container_has_no_witness() {
        assert!(Witness::of(std::process::id(), "abc").is_none());
        assert!(Witness::of(0, "abc").is_none());
    }
}
