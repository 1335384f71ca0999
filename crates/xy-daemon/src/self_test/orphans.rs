//! The test for orphans: processes and containers of earlier daemons that no server owns.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{CheckStatus, OrphanHealth, Repair};

use crate::daemon::Daemon;

/// Maximum time for container engines. Slower cleanups happen at intervals.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds orphans, and ends them if `repair` is set.
pub(super) async fn test(daemon: &Daemon, repair: bool, repairs: &mut Vec<Repair>) -> OrphanHealth {
    let looking = daemon.containers.tidy_up(repair);
    let unowned = timeout(ENGINE_TIMEOUT, looking).await.unwrap_or_default();
    if !unowned.removed.is_empty() {
        let (containers, reason) = (unowned.removed, "no server owned them".to_owned());
        repairs.push(Repair::ContainersRemoved { containers, reason });
    }
    let containers = unowned.left;
    let status = if containers.is_empty() { CheckStatus::Ok } else { CheckStatus::Error };
    let Some(reaped) = daemon.processes.reap(|| leaders(daemon), repair).await else {
        let note = "servers started or stopped during the test, so owners are unknown: try again";
        return OrphanHealth { status, pids: Vec::new(), containers, note: Some(note.to_owned()) };
    };
    let ended: Vec<u32> =
        reaped.found.iter().copied().filter(|pid| !reaped.left.contains(pid)).collect();
    if !ended.is_empty() {
        let reason = "no server owned them".to_owned();
        repairs.push(Repair::ProcessesReaped { pids: ended, reason });
    }
    let status = if reaped.left.is_empty() { status } else { CheckStatus::Error };
    OrphanHealth { status, pids: reaped.left, containers, note: None }
}

/// Returns the leader processes of all running servers.
fn leaders(daemon: &Daemon) -> HashSet<u32> {
    let roster = daemon.fleet.roster();
    let instances = roster.values().flat_map(|member| member.instances.values());
    instances.filter_map(|instance| instance.now().pid).collect()
}
