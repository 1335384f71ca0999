//! `call`: one call of a tool, through the gateway as any client's.

use std::time::Duration;

use serde_json::value::RawValue;
use xy_protocol::control::Call;
use xy_protocol::error::CallError;

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, ask: Call) -> Result<Box<RawValue>, CallError> {
    let arguments = ask.arguments.map_or_else(|| "{}".to_owned(), |it| it.get().to_owned());
    let within = ask.timeout_ms.map(Duration::from_millis);
    daemon.admin()?.call(ask.name, arguments, within).await
}
