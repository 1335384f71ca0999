//! `status`: one server in full.

use xy_protocol::control::ByName;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerStatus;
use xy_supervisor::logs::log_file;

use crate::daemon::Daemon;
use crate::view;

pub(super) fn handle(daemon: &Daemon, ask: &ByName) -> Result<ServerStatus, CallError> {
    let member = daemon.find(&ask.name)?;
    let log_file = log_file(&daemon.paths.logs_dir, &member.settings.name);
    let mut status = view::status(&member, log_file.display().to_string());
    daemon.advise(&mut status.entry);
    Ok(status)
}
