//! `request`: any request to one server, and its whole response.

use std::time::Duration;

use serde_json::value::RawValue;
use xy_protocol::control::{REQUEST_WITHIN, RawRequest};
use xy_protocol::error::CallError;

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, ask: RawRequest) -> Result<Box<RawValue>, CallError> {
    daemon.find(&ask.server)?; // It knows the nearest name.
    let ask = xy_gateway::RawRequest {
        server: ask.server,
        method: ask.method,
        params: ask.params.map(|it| it.get().to_owned()),
        id: ask.id.map_or_else(|| "1".to_owned(), |it| it.get().to_owned()),
        within: ask.timeout_ms.map_or(REQUEST_WITHIN, Duration::from_millis),
    };
    daemon.desk()?.request(ask).await
}
