//! `shutdown`: end all servers, then the daemon.

use xy_protocol::control::ShuttingDown;
use xy_protocol::error::CallError;

use crate::daemon::{Daemon, Ending};

pub(super) fn handle(daemon: &Daemon) -> Result<ShuttingDown, CallError> {
    daemon.check_not_handed_over()?;
    tracing::info!("asked to shut down");
    daemon.end(Ending::Shutdown);
    Ok(ShuttingDown { pid: std::process::id() })
}
