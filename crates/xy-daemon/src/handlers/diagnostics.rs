//! Handler of `diagnostics`: reports everything that helps to find a fault, without secrets.

use serde_json::value::RawValue;
use xy_protocol::error::CallError;

use crate::daemon::Daemon;
use crate::diagnostics;

pub(super) async fn handle(daemon: &Daemon) -> Result<Box<RawValue>, CallError> {
    diagnostics::of_daemon(daemon).await
}
