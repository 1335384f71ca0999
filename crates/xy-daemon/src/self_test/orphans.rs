//! Processes and containers of earlier lives that no server owns.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{OrphanHealth, Repair, Verdict};

use crate::daemon::Daemon;

/// How long container engines may take; what they are too slow for is done at intervals.
const ENGINES_WITHIN: Duration = Duration::from_secs(10);

/// Looks for them, and ends them.
pub(super) async fn test(daemon: &Daemon, repair: bool, repairs: &mut Vec<Repair>) -> OrphanHealth {
    let looking = daemon.containers.tidy_up(repair);
    let unowned = timeout(ENGINES_WITHIN, looking).await.unwrap_or_default();
    if !unowned.removed.is_empty() {
        let (containers, reason) = (unowned.removed, "no server owned them".to_owned());
        repairs.push(Repair::ContainersRemoved { containers, reason });
    }
    let containers = unowned.left;
    let status = if containers.is_empty() { Verdict::Ok } else { Verdict::Error };
    let Some(reaped) = daemon.processes.reap(|| leaders(daemon), repair).await else {
        let note = "servers come and go, so it is not known who owns what: try again";
        return OrphanHealth { status, pids: Vec::new(), containers, note: Some(note.to_owned()) };
    };
    let ended: Vec<u32> =
        reaped.found.iter().copied().filter(|pid| !reaped.left.contains(pid)).collect();
    if !ended.is_empty() {
        let reason = "no server owned them".to_owned();
        repairs.push(Repair::ProcessesReaped { pids: ended, reason });
    }
    let status = if reaped.left.is_empty() { status } else { Verdict::Error };
    OrphanHealth { status, pids: reaped.left, containers, note: None }
}

/// The leaders of all servers that run.
fn leaders(daemon: &Daemon) -> HashSet<u32> {
    let roster = daemon.fleet.roster();
    let instances = roster.values().flat_map(|member| member.instances.values());
    instances.filter_map(|instance| instance.now().pid).collect()
}
