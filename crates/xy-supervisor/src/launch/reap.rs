//! Ending what no server owns, while servers come and go.
//!
//! A process of ours is an orphan if no shim minds its life: a shim holds its lock from before
//! its server begins until nothing of it is left. So who is found first, and whose life has no
//! lock afterwards, has outlived its shim. Locks can be lost with their folder; so the lives of
//! leaders that are known to run are never over, and one look is not enough.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use xy_shim::marked;

use super::adopt::is_of_home;
use super::orphans::Lives;
use super::process::ProcessLauncher;

/// How often it is tried to learn who minds which life: a shim that has just begun does not
/// say yet.
const TRIES: u32 = 8;

/// How long between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(150);

/// What no server owned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    /// What was found.
    pub found: Vec<u32>,
    /// What is still there.
    pub left: Vec<u32>,
}

/// What one look at all processes of ours brought.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    /// Each process and its life.
    processes: Vec<(u32, String)>,
}

impl Look {
    /// The processes whose life nobody minds.
    fn orphans(&self, owned: &HashSet<String>, leaders: &HashSet<u32>) -> Vec<(u32, String)> {
        let led: HashSet<&String> =
            self.processes.iter().filter(|it| leaders.contains(&it.0)).map(|it| &it.1).collect();
        let is_orphan = |life: &String| !owned.contains(life) && !led.contains(life);
        self.processes.iter().filter(|it| is_orphan(&it.1)).cloned().collect()
    }
}

/// Lives that are known to be over.
struct Over {
    home: String,
    over: HashSet<String>,
}

impl Lives for Over {
    fn is_ours(&self, life: &str) -> bool {
        is_of_home(life, &self.home)
    }

    fn is_over(&self, life: &str) -> bool {
        self.over.contains(life)
    }
}

impl ProcessLauncher {
    /// Finds the processes that no server owns, and ends them if it `is_to_end`. `leaders` are
    /// the leaders of all servers that run now. `None` if it is not known who minds what.
    pub async fn reap(
        &self,
        leaders: impl Fn() -> HashSet<u32>,
        is_to_end: bool,
    ) -> Option<Reaped> {
        let first = self.orphans(&leaders).await?;
        if first.is_empty() {
            return Some(Reaped::default());
        }
        sleep(LOOK_AGAIN).await;
        let second = self.orphans(&leaders).await?;
        let before: HashSet<&String> = first.iter().map(|(_, life)| life).collect();
        let sure: Vec<_> = second.iter().filter(|(_, life)| before.contains(life)).collect();
        let found: Vec<u32> =
            sure.iter().map(|(pid, _)| *pid).collect::<BTreeSet<_>>().into_iter().collect();
        if !is_to_end || found.is_empty() {
            return Some(Reaped { left: found.clone(), found });
        }
        let over = sure.iter().map(|(_, life)| life.clone()).collect();
        let lives = Over { home: self.home().to_owned(), over };
        let left = self.shims().end_orphans(Arc::new(lives)).await;
        Some(Reaped { found, left })
    }

    async fn orphans(&self, leaders: &impl Fn() -> HashSet<u32>) -> Option<Vec<(u32, String)>> {
        for _ in 0..TRIES {
            // Processes first, who minds them second: see above.
            let look = self.look().await?;
            if look.processes.is_empty() {
                return Some(Vec::new());
            }
            if let Some(owned) = self.owned_lives() {
                return Some(look.orphans(&owned, &leaders()));
            }
            sleep(LOOK_AGAIN).await;
        }
        None
    }

    /// To look at every process of a machine takes a while.
    async fn look(&self) -> Option<Look> {
        let home = self.home().to_owned();
        let found = spawn_blocking(move || marked::processes(|life| is_of_home(life, &home)));
        let processes = found.await.ok()?.into_iter().map(|it| (it.pid, it.life)).collect();
        Some(Look { processes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_neither_a_lock_nor_a_leader_that_runs_is_an_orphan() {
        let process = |pid, life: &str| (pid, life.to_owned());
        let look = Look {
            processes: vec![
                process(1, "minded"),
                process(2, "led"),
                process(3, "led"),
                process(4, "over"),
                process(5, "over"),
            ],
        };
        let owned = HashSet::from(["minded".to_owned()]);
        let orphans = look.orphans(&owned, &HashSet::from([2, 9]));
        assert_eq!(orphans, [process(4, "over"), process(5, "over")]);
        assert_eq!(look.orphans(&owned, &HashSet::new()).len(), 4);
        assert!(Look::default().orphans(&owned, &HashSet::new()).is_empty());
    }
}
