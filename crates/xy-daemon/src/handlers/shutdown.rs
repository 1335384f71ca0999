//! `shutdown`: end all servers, then the daemon.

use xy_protocol::control::ShuttingDown;

use crate::daemon::{Daemon, Ending};

pub(super) fn handle(daemon: &Daemon) -> ShuttingDown {
    tracing::info!("asked to shut down");
    daemon.ending.send_replace(Ending::Shutdown);
    ShuttingDown { pid: std::process::id() }
}
