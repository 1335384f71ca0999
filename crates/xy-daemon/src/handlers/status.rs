//! `status`: one server in full.

use xy_protocol::control::ByName;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerStatus;
use xy_supervisor::logs::log_file;

use crate::daemon::Daemon;
use crate::view;

pub(crate) fn handle(daemon: &Daemon, ask: &ByName) -> Result<ServerStatus, CallError> {
    let member = daemon.find(&ask.name)?;
    // What one says that lives somewhere else is kept in memory only.
    let has_file = member.settings.remote().is_none();
    let log_file = log_file(&daemon.paths.logs_dir, &member.settings.name);
    let log_file = has_file.then(|| log_file.display().to_string());
    let mut status = view::status(&member, log_file);
    daemon.advise(&mut status.entry);
    if let Ok(desk) = daemon.desk() {
        status.protocol = desk.protocol(&status.entry.name);
        status.parked = desk.parked(&status.entry.name) as u64;
    }
    Ok(status)
}
