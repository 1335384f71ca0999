//! `handover`: leave all servers to another daemon, and end.

use xy_gateway::http::ListeningSocket;
use xy_ipc::server::Answer;
use xy_protocol::control::{HandedOver, Handover};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::wire::PROTOCOL;

use crate::daemon::{Daemon, Ending};

pub(super) async fn handle(daemon: &Daemon, ask: Handover) -> Result<Answer, CallError> {
    if ask.shim_protocol != PROTOCOL {
        let message = "the running daemon cannot be replaced by this one";
        return Err(CallError::new(ErrorKind::NotAllowed, message)
            .cause(format!(
                "its servers are kept by processes that speak version {PROTOCOL}, and this xy \
                 speaks version {}",
                ask.shim_protocol
            ))
            .hint("end it with `xy shutdown`, then start this one: the servers start anew"));
    }
    let pid = std::process::id();
    if !ask.go {
        daemon.check_not_handed_over()?;
        let listener = daemon.listening_socket().is_some_and(ListeningSocket::is_there);
        return Answer::of(&HandedOver { pid, gone: false, listener });
    }
    tracing::info!("another daemon takes over");
    daemon.end(Ending::Handover);
    let mut ending = daemon.ending.subscribe();
    let last = ending.wait_for(|it| matches!(it, Ending::HandedOver | Ending::Shutdown)).await;
    match last.map(|last| *last) {
        Ok(Ending::HandedOver) => {
            let socket = daemon.listening_socket().filter(|_| ask.listener);
            let socket = socket.and_then(ListeningSocket::hand_over);
            let answer = Answer::of(&HandedOver { pid, gone: true, listener: socket.is_some() })?;
            Ok(match (answer, socket) {
                (Answer::Result(result), Some(socket)) => Answer::WithDescriptor(result, socket),
                (answer, _) => answer,
            })
        }
        _ => Err(CallError::new(ErrorKind::NotAllowed, "the daemon is shutting down")),
    }
}
