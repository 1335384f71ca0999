//! Handler of `status`: reports one server in full.

use tokio::task::spawn_blocking;
use xy_config::settings::Isolation;
use xy_protocol::control::ByName;
use xy_protocol::error::CallError;
use xy_protocol::server::{Containment, ReasonKind, ServerStatus};
use xy_shim::{cpu, memory};
use xy_supervisor::instance::Holder;
use xy_supervisor::logs::{instance_log, log_file};

use crate::daemon::Daemon;
use crate::server_status;

/// Returns the status of a server, with what the gateway and the kernel know of it.
pub(super) async fn handle_full(
    daemon: &Daemon,
    params: &ByName,
) -> Result<ServerStatus, CallError> {
    let mut status = handle(daemon, params)?;
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

/// Returns the status of a server, without what only the kernel knows.
pub(crate) fn handle(daemon: &Daemon, params: &ByName) -> Result<ServerStatus, CallError> {
    if let Some((name, bad)) = daemon.bad_file(&params.name) {
        return Ok(server_status::status_of_bad(&name, &bad));
    }
    let member = daemon.find(&params.name)?;
    // The output of a remote server is kept in memory only.
    let has_file = member.settings.remote().is_none();
    let logs_dir = &daemon.paths.logs_dir;
    let writer = member.owner.as_ref().unwrap_or(&member.settings.name);
    // With an instance per client, each instance has a file of its own.
    let has_shared_log = has_file && member.settings.isolation == Isolation::Shared;
    let log_file = has_shared_log.then(|| log_file(logs_dir, writer).display().to_string());
    let mut status = server_status::status(&member, log_file);
    for (entry, instance) in status.instances.iter_mut().zip(server_status::instances(&member)) {
        let file = instance_log(logs_dir, instance.key());
        entry.log_file = has_file.then(|| file.display().to_string());
    }
    if let (Some(entry), Some(failed)) = (&mut status.last_failed, &member.last_failed) {
        let file = instance_log(logs_dir, failed.instance.key());
        entry.log_file = has_file.then(|| file.display().to_string());
    }
    daemon.add_advice(&mut status.entry);
    if daemon.faults().has_old_settings {
        let warning = "`xy.kdl` cannot be used, so its last good version is in use: see `xy check`";
        status.entry.warnings.push(warning.to_owned());
    }
    if let Ok(admin) = daemon.admin() {
        status.protocol = admin.protocol(&status.entry.name);
        for second in status.instances.iter_mut().filter(|it| it.era.is_some()) {
            second.protocol = admin.protocol_of_second(&status.entry.name);
        }
        status.parked = admin.waiting_calls(&status.entry.name) as u64;
    }
    Ok(status)
}
