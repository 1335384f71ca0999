//! Handler of `call`: calls one tool through the gateway, as any client does.

use std::time::Duration;

use serde_json::value::RawValue;
use xy_protocol::control::Call;
use xy_protocol::error::CallError;

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, params: Call) -> Result<Box<RawValue>, CallError> {
    let arguments = params.arguments.map_or_else(|| "{}".to_owned(), |it| it.get().to_owned());
    let within = params.timeout_ms.map(Duration::from_millis);
    daemon.admin()?.call(params.name, arguments, within).await
}
