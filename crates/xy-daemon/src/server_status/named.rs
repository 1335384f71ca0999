//! The status of a server by its name, with its log files and what the gateway knows of it.

use xy_config::settings::Isolation;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerStatus;
use xy_supervisor::logs::{instance_log, log_file};

use super::{instances, status, status_of_bad};
use crate::daemon::Daemon;

/// Returns the status of a server, without what only the kernel knows.
pub(crate) fn of_named(daemon: &Daemon, name: &str) -> Result<ServerStatus, CallError> {
    if let Some((name, bad)) = daemon.bad_file(name) {
        return Ok(status_of_bad(&name, &bad));
    }
    let member = daemon.find(name)?;
    // The output of a remote server is kept in memory only.
    let has_file = member.settings.remote().is_none();
    let logs_dir = &daemon.paths.logs_dir;
    let writer = member.owner.as_ref().unwrap_or(&member.settings.name);
    // With an instance per client, each instance has a file of its own.
    let has_shared_log = has_file && member.settings.isolation == Isolation::Shared;
    let log_file = has_shared_log.then(|| log_file(logs_dir, writer).display().to_string());
    let mut status = status(&member, log_file);
    for (entry, instance) in status.instances.iter_mut().zip(instances(&member)) {
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
