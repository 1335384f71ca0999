//! `check`: look for problems in the files.

use xy_protocol::control::CheckReport;
use xy_protocol::error::{CallError, ErrorKind};

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon) -> Result<CheckReport, CallError> {
    let paths = daemon.paths.clone();
    tokio::task::spawn_blocking(move || crate::check::report(&paths))
        .await
        .map_err(|cause| CallError::new(ErrorKind::Internal, "could not check").cause(cause))
}
