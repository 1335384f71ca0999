//! Handler of `check`: reports the problems of the configuration files.

use xy_protocol::control::CheckReport;
use xy_protocol::error::CallError;

use crate::check;
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon) -> Result<CheckReport, CallError> {
    daemon.load().await.map(|(loaded, _)| check::report_of(&loaded))
}
