//! Takeover for `xy daemon --replace`: makes the running daemon hand over its servers.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use xy_config::{Paths, PriorState};
use xy_ipc::{CallFailure, Client};
use xy_protocol::control::{Handover, HandoverResult, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::wire::PROTOCOL;
use xy_supervisor::launch::process::ShimProgram;

use crate::bad_files::{Strictness, may_start};
use crate::start_error::not_started;
use crate::{check, files, last_good, limits};

/// Maximum time for the running daemon to detach from all its servers.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the running daemon to exit after that.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time for the new daemon to take the lock after this one released it.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between two checks of the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Makes the running daemon, if any, hand over its servers and exit. Returns its HTTP listener, if
/// it could be handed over.
pub(crate) async fn request_handover(
    paths: &Paths,
    strictness: Strictness,
) -> Result<Option<TcpListener>, CallError> {
    let last_good = last_good::read(&paths.last_good_file);
    let earlier = PriorState { last_good, ..PriorState::default() };
    let loaded = xy_config::load_with(paths, &limits::supported(), &earlier);
    if !may_start(strictness, &loaded, false) {
        // The report is about the files, without the last good texts.
        let loaded = xy_config::load(paths, &limits::supported());
        let refused = check::refusal(&loaded, "the running daemon was not replaced");
        return Err(CallError { kind: ErrorKind::ConfigInvalid, ..refused });
    }
    let places = paths.control_socket_candidates();
    let handover = spawn_blocking(move || hand_over(&places));
    let from = handover.await.map_err(|cause| not_started().cause(cause))??;
    let (pid, listener) = from.unzip();
    tracing::info!(pid, "taking over");
    Ok(listener.flatten())
}

/// Asks the running daemon whether it can hand over, then tells it to. Returns its pid and its HTTP
/// listener, or `None` if no daemon is running.
fn hand_over(places: &[PathBuf]) -> Result<Option<(u32, Option<TcpListener>)>, CallError> {
    let mut client = match Client::find(places) {
        Ok(client) => client,
        Err(error) if error.is_not_listening() => return Ok(None),
        Err(error) => return Err(not_replaced().cause(error)),
    };
    let within = Some(HANDOVER_TIMEOUT);
    client.set_timeout(within).map_err(|error| not_replaced().cause(error))?;
    let request =
        |go, listener| Request::Handover(Handover { shim_protocol: PROTOCOL, go, listener });
    // A daemon that does not know the `listener` field would refuse it, so it is only sent if its
    // answer has it.
    let HandoverResult { pid, listener, .. } =
        client.call_as(&request(false, false)).map_err(refusal)?;
    match client.call_as::<HandoverResult>(&request(true, listener)) {
        // The request was sent and cannot be withdrawn, so this daemon waits for the other to exit.
        Ok(_) | Err(CallFailure::TimedOut { .. } | CallFailure::HungUp) => {
            Ok(Some((pid, client.take_descriptor().map(TcpListener::from))))
        }
        Err(error) => Err(refusal(error)),
    }
}

fn refusal(failure: CallFailure) -> CallError {
    match failure {
        CallFailure::Refused(refused) if refused.kind != ErrorKind::MethodNotFound => refused,
        CallFailure::Refused(_) => not_replaced()
            .cause("its version does not support handover")
            .hint("stop it with `xy shutdown`, then start this one"),
        other => not_replaced().cause(other),
    }
}

/// Waits until another daemon has taken the lock. Returns false if none does in time.
pub(crate) async fn wait_for_successor(lock_file: &Path) -> bool {
    let give_up_at = Instant::now() + SUCCESSOR_TIMEOUT;
    while Instant::now() < give_up_at {
        if files::is_locked(lock_file) {
            return true;
        }
        sleep(POLL_INTERVAL).await;
    }
    false
}

/// Restarts the daemon in this process, since the new daemon did not take over. Returns only on
/// failure.
pub(crate) fn restart_in_place() -> CallError {
    tracing::warn!("no daemon took over; the current daemon continues");
    let failed = CallError::new(
        ErrorKind::Internal,
        "no daemon took over, and the current daemon could not continue",
    );
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--replace");
    let error = match ShimProgram::this_binary() {
        Ok(program) => Command::new(program.path).arg0("xy").args(args).exec(),
        Err(error) => error,
    };
    failed.cause(error).hint("start it again with `xy daemon`: its servers are still running")
}

fn not_replaced() -> CallError {
    CallError::new(ErrorKind::Internal, "the running daemon was not replaced")
}
