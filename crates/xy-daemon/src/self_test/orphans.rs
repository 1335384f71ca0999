//! Processes of earlier lives that no server owns.

use std::collections::HashSet;

use xy_protocol::control::{OrphanHealth, Repair, Verdict};

use crate::daemon::Daemon;

/// Looks for them, and ends them.
pub(super) async fn test(daemon: &Daemon, repair: bool, repairs: &mut Vec<Repair>) -> OrphanHealth {
    let Some(reaped) = daemon.processes.reap(|| leaders(daemon), repair).await else {
        let note = "servers come and go, so it is not known who owns what: try again";
        return OrphanHealth { status: Verdict::Ok, pids: Vec::new(), note: Some(note.to_owned()) };
    };
    let ended: Vec<u32> =
        reaped.found.iter().copied().filter(|pid| !reaped.left.contains(pid)).collect();
    if !ended.is_empty() {
        let reason = "no server owned them".to_owned();
        repairs.push(Repair::ProcessesReaped { pids: ended, reason });
    }
    let status = if reaped.left.is_empty() { Verdict::Ok } else { Verdict::Error };
    OrphanHealth { status, pids: reaped.left, note: None }
}

/// The leaders of all servers that run.
fn leaders(daemon: &Daemon) -> HashSet<u32> {
    let roster = daemon.fleet.roster();
    let instances = roster.values().flat_map(|member| member.instances.values());
    instances.filter_map(|instance| instance.now().pid).collect()
}
