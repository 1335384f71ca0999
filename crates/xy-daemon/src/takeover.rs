//! `xy daemon --replace`: have the daemon that runs hand over its servers.

use std::time::Duration;

use tokio::task::spawn_blocking;
use xy_config::Paths;
use xy_ipc::{CallFailure, Client, ConnectError};
use xy_protocol::control::{HandedOver, Handover, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::wire::PROTOCOL;

use crate::run::not_started;
use crate::{check, limits};

/// How long the other daemon may take to say goodbye to all its servers.
const HANDS_OVER_WITHIN: Duration = Duration::from_secs(10);

/// How long it may take to be gone after that.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(20);

/// Asks the daemon that runs, if there is one, to hand over and go.
pub(crate) async fn ask(paths: &Paths) -> Result<(), CallError> {
    let loaded = xy_config::load(paths, &limits::kept());
    if !loaded.is_valid() {
        let refused = check::refusal(&loaded, "the running daemon was not replaced");
        return Err(CallError { kind: ErrorKind::ConfigInvalid, ..refused });
    }
    let socket = paths.control_socket.clone();
    let asked = spawn_blocking(move || {
        let mut client = match Client::connect(&socket) {
            Ok(client) => client,
            Err(ConnectError::NoSocket { .. } | ConnectError::Refused { .. }) => return Ok(None),
            Err(error) => return Err(not_replaced().cause(error)),
        };
        let handover = Request::Handover(Handover { shim_protocol: PROTOCOL });
        let within = Some(HANDS_OVER_WITHIN);
        client.answer_within(within).map_err(|error| not_replaced().cause(error))?;
        match client.call_as::<HandedOver>(&handover) {
            Ok(handed_over) => Ok(Some(handed_over)),
            Err(CallFailure::Refused(refused)) if refused.kind != ErrorKind::MethodNotFound => {
                Err(refused)
            }
            Err(CallFailure::Refused(_)) => Err(not_replaced()
                .cause("it is of a version that cannot hand over")
                .hint("end it with `xy shutdown`, then start this one")),
            // It has been told, and cannot be told otherwise: it is waited for.
            Err(CallFailure::TimedOut { .. } | CallFailure::HungUp) => Ok(None),
            Err(error) => Err(not_replaced().cause(error)),
        }
    });
    let from = asked.await.map_err(|cause| not_started().cause(cause))??;
    tracing::info!(pid = from.map(|from| from.pid), "taking over");
    Ok(())
}

fn not_replaced() -> CallError {
    CallError::new(ErrorKind::Internal, "the running daemon was not replaced")
}
