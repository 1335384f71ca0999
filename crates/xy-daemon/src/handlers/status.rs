//! Handler of `status`: reports one server in full.

use tokio::task::spawn_blocking;
use xy_protocol::control::ByName;
use xy_protocol::error::CallError;
use xy_protocol::server::{Containment, ReasonKind, ServerStatus};
use xy_shim::{cpu, memory};
use xy_supervisor::instance::Holder;

use crate::daemon::Daemon;
use crate::server_status;

/// Returns the status of a server, with what the gateway and the kernel know of it.
pub(super) async fn handle(daemon: &Daemon, params: &ByName) -> Result<ServerStatus, CallError> {
    let mut status = server_status::of_named(daemon, &params.name)?;
    if status.entry.reason_kind == Some(ReasonKind::BadFile) {
        return Ok(status);
    }
    let name = status.entry.shares.clone().unwrap_or_else(|| status.entry.name.clone());
    daemon.transition_history.prepend_to(&daemon.journal, &name, &mut status.transitions).await;
    if let Ok(admin) = daemon.admin()
        && let Ok(users) = admin.users(params.name.clone()).await
    {
        for instance in &mut status.instances {
            let shared = instance.era.map_or(Holder::Shared, Holder::Era);
            let holder = instance.holder.map_or(shared, Holder::Client);
            instance.clients = users.get(&holder).cloned().unwrap_or_default();
        }
    }
    let has_group = status.containment == Some(Containment::Cgroup);
    let instances = daemon.find(&params.name)?.instances;
    // Containers of a remote engine have no process on this machine.
    let local: Vec<u32> = instances.values().filter_map(|it| it.now().process()).collect();
    let is_local = |pid: &u32| local.contains(pid);
    let pids: Vec<Option<u32>> =
        status.instances.iter().map(|it| it.pid.filter(is_local)).collect();
    let measuring = spawn_blocking(move || {
        let measure = |pid| (memory::used(pid, has_group), cpu::used(pid, has_group));
        pids.into_iter().map(|pid| pid.map(measure).unwrap_or_default()).collect::<Vec<_>>()
    });
    for (instance, (memory, cpu)) in
        status.instances.iter_mut().zip(measuring.await.unwrap_or_default())
    {
        instance.memory_bytes = memory;
        instance.cpu_ms = cpu.map(|cpu| u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX));
    }
    Ok(status)
}
