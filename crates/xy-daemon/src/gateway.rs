//! The daemon, as its gateway sees it.

use std::sync::Arc;

use serde_json::Value;
use xy_gateway::control::{Control, Later};
use xy_ipc::server::{Answer, Service};
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use crate::daemon::Daemon;
use crate::handlers::Handlers;

/// What the gateway can ask of the daemon.
pub(crate) struct Plane(pub(crate) Arc<Daemon>);

impl Control for Plane {
    fn call(&self, request: Request) -> Later<Result<Value, CallError>> {
        let handlers = Handlers(self.0.clone());
        Box::pin(async move {
            let unreadable = |cause: &dyn std::fmt::Display| {
                CallError::new(ErrorKind::Internal, "the answer could not be read").cause(cause)
            };
            match handlers.call(request).await? {
                Answer::Result(result) => {
                    serde_json::from_str(result.get()).map_err(|cause| unreadable(&cause))
                }
                Answer::Stream(_) => Err(unreadable(&"it is a stream")),
            }
        })
    }

    fn hold(&self, _server: &ServerName, _client: u64) -> Later<Result<(), CallError>> {
        Box::pin(async { Ok(()) })
    }

    fn release(&self, _server: &ServerName, _client: u64) -> Later<()> {
        Box::pin(async {})
    }
}
