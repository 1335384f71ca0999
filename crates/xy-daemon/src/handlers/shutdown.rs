//! Handler of `shutdown`: stops all servers, then the daemon.

use xy_protocol::control::ShutdownResult;
use xy_protocol::error::CallError;

use crate::daemon::{Daemon, Phase};

pub(super) fn handle(daemon: &Daemon) -> Result<ShutdownResult, CallError> {
    daemon.check_not_handed_over()?;
    tracing::info!("received a shutdown request");
    daemon.end(Phase::ShuttingDown);
    Ok(ShutdownResult { pid: std::process::id() })
}
