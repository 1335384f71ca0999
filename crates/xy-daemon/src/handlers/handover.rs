//! Handler of `handover`: leaves all servers to another daemon, and ends this one.

use xy_http::ListeningSocket;
use xy_ipc::server::Answer;
use xy_protocol::control::{Handover, HandoverResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::wire::PROTOCOL;

use crate::daemon::{Daemon, Phase};

pub(super) async fn handle(daemon: &Daemon, params: Handover) -> Result<Answer, CallError> {
    if params.shim_protocol != PROTOCOL {
        let message = "the running daemon cannot be replaced by this one";
        return Err(CallError::new(ErrorKind::NotAllowed, message)
            .cause(format!(
                "the shims of its servers speak protocol version {PROTOCOL}, and this xy speaks \
                 version {}",
                params.shim_protocol
            ))
            .hint("stop it with `xy shutdown`, then start this one: all servers are restarted"));
    }
    let pid = std::process::id();
    if !params.go {
        daemon.check_not_handed_over()?;
        let listener = daemon.listening_socket().is_some_and(ListeningSocket::is_there);
        return Answer::of(&HandoverResult { pid, gone: false, listener });
    }
    tracing::info!("another daemon takes over");
    daemon.end(Phase::HandingOver);
    let mut phase = daemon.phase.subscribe();
    let last = phase.wait_for(|it| matches!(it, Phase::HandedOver | Phase::ShuttingDown)).await;
    match last.map(|last| *last) {
        Ok(Phase::HandedOver) => {
            let socket = daemon.listening_socket().filter(|_| params.listener);
            let socket = socket.and_then(ListeningSocket::hand_over);
            let answer =
                Answer::of(&HandoverResult { pid, gone: true, listener: socket.is_some() })?;
            Ok(match (answer, socket) {
                (Answer::Result(result), Some(socket)) => Answer::WithDescriptor(result, socket),
                (answer, _) => answer,
            })
        }
        _ => Err(CallError::new(ErrorKind::NotAllowed, "the daemon is shutting down")),
    }
}
