//! `status`: one server in full.

use xy_protocol::control::ByName;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerStatus;
use xy_supervisor::launch::process::ProcessLauncher;

use crate::daemon::Daemon;
use crate::view;

pub(super) fn handle(daemon: &Daemon, ask: &ByName) -> Result<ServerStatus, CallError> {
    let member = daemon.find(&ask.name)?;
    let log_file = ProcessLauncher::log_file(&daemon.paths.logs_dir, &ask.name);
    Ok(view::status(&member, log_file.display().to_string()))
}
