//! Killing processes that no server owns, while servers start and stop.
//!
//! A process of this home is an orphan if no shim owns its life. A shim holds its lock from before
//! its server starts until none of its processes is left. So a process that was listed before the
//! locks were read, and whose life has no lock, has outlived its shim.
//!
//! Lock files can be lost with their folder. So the lives of known running leaders are never over,
//! and one scan is not enough.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use xy_shim::env_mark;

use super::home::is_of_home;
use super::orphans::LifeFilter;
use super::process::ProcessLauncher;

/// Number of attempts to read all lock owners: a shim that has just started has not identified
/// itself yet.
const MAX_ATTEMPTS: u32 = 8;

/// Time between two scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(150);

/// Processes that no server owned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Process ids that were found.
    pub found: Vec<u32>,
    /// Process ids that still exist.
    pub left: Vec<u32>,
}

/// The processes of this home that one scan found.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessScan {
    /// Each process id with its life.
    processes: Vec<(u32, String)>,
}

impl ProcessScan {
    /// Returns the processes whose life has no owner.
    fn orphans(&self, owned: &HashSet<String>, leaders: &HashSet<u32>) -> Vec<(u32, String)> {
        let led: HashSet<&String> =
            self.processes.iter().filter(|it| leaders.contains(&it.0)).map(|it| &it.1).collect();
        let is_orphan = |life: &String| !owned.contains(life) && !led.contains(life);
        self.processes.iter().filter(|it| is_orphan(&it.1)).cloned().collect()
    }
}

/// Lives that are known to be over.
struct EndedLives {
    home: String,
    over: HashSet<String>,
}

impl LifeFilter for EndedLives {
    fn owns(&self, life: &str) -> bool {
        is_of_home(life, &self.home)
    }

    fn is_over(&self, life: &str) -> bool {
        self.over.contains(life)
    }
}

impl ProcessLauncher {
    /// Finds the processes that no server owns, and kills them if `is_to_end` is set.
    ///
    /// `leaders` returns the leaders of all running servers. Returns `None` if the owners of lives
    /// cannot be determined.
    pub async fn reap(
        &self,
        leaders: impl Fn() -> HashSet<u32>,
        is_to_end: bool,
    ) -> Option<ReapReport> {
        let first = self.orphans(&leaders).await?;
        if first.is_empty() {
            return Some(ReapReport::default());
        }
        sleep(SCAN_INTERVAL).await;
        let second = self.orphans(&leaders).await?;
        let before: HashSet<&String> = first.iter().map(|(_, life)| life).collect();
        let sure: Vec<_> = second.iter().filter(|(_, life)| before.contains(life)).collect();
        let found: Vec<u32> =
            sure.iter().map(|(pid, _)| *pid).collect::<BTreeSet<_>>().into_iter().collect();
        if !is_to_end || found.is_empty() {
            return Some(ReapReport { left: found.clone(), found });
        }
        let over = sure.iter().map(|(_, life)| life.clone()).collect();
        let lives = EndedLives { home: self.home().to_owned(), over };
        let left = self.shims().end_orphans(Arc::new(lives)).await;
        Some(ReapReport { found, left })
    }

    async fn orphans(&self, leaders: &impl Fn() -> HashSet<u32>) -> Option<Vec<(u32, String)>> {
        for _ in 0..MAX_ATTEMPTS {
            // The order matters: processes first, then their owners. See the module documentation.
            let scan = self.scan().await?;
            if scan.processes.is_empty() {
                return Some(Vec::new());
            }
            if let Some(owned) = self.owned_lives() {
                return Some(scan.orphans(&owned, &leaders()));
            }
            sleep(SCAN_INTERVAL).await;
        }
        None
    }

    /// Scans all processes of the machine, which takes a while.
    async fn scan(&self) -> Option<ProcessScan> {
        let home = self.home().to_owned();
        let found = spawn_blocking(move || env_mark::processes(|life| is_of_home(life, &home)));
        let processes = found.await.ok()?.into_iter().map(|it| (it.pid, it.life)).collect();
        Some(ProcessScan { processes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_lock_or_leader_is_orphan() {
        let process = |pid, life: &str| (pid, life.to_owned());
        let scan = ProcessScan {
            processes: vec![
                process(1, "minded"),
                process(2, "led"),
                process(3, "led"),
                process(4, "over"),
                process(5, "over"),
            ],
        };
        let owned = HashSet::from(["minded".to_owned()]);
        let orphans = scan.orphans(&owned, &HashSet::from([2, 9]));
        assert_eq!(orphans, [process(4, "over"), process(5, "over")]);
        assert_eq!(scan.orphans(&owned, &HashSet::new()).len(), 4);
        assert!(ProcessScan::default().orphans(&owned, &HashSet::new()).is_empty());
    }
}
