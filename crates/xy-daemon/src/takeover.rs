//! `xy daemon --replace`: have the daemon that runs hand over its servers.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use xy_config::{Earlier, Paths};
use xy_ipc::{CallFailure, Client};
use xy_protocol::control::{HandedOver, Handover, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_shim::wire::PROTOCOL;
use xy_supervisor::launch::process::ShimProgram;

use crate::bad_files::{Strictness, may_start};
use crate::run::not_started;
use crate::{check, files, last_good, limits};

/// How long the other daemon may take to say goodbye to all its servers.
const HANDS_OVER_WITHIN: Duration = Duration::from_secs(10);

/// How long it may take to be gone after that.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(20);

/// How long the other may take to have our lock once we are gone.
const COMES_WITHIN: Duration = Duration::from_secs(5);

/// How long between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Asks the daemon that runs, if there is one, to hand over and go. Returns the socket that
/// listened for HTTP there, if it could be handed over.
pub(crate) async fn ask(
    paths: &Paths,
    strictness: Strictness,
) -> Result<Option<TcpListener>, CallError> {
    let last_good = last_good::read(&paths.last_good_file);
    let earlier = Earlier { last_good, ..Earlier::default() };
    let loaded = xy_config::load_after(paths, &limits::kept(), &earlier);
    if !may_start(strictness, &loaded, false) {
        let loaded = xy_config::load(paths, &limits::kept()); // Without what would be used instead.
        let refused = check::refusal(&loaded, "the running daemon was not replaced");
        return Err(CallError { kind: ErrorKind::ConfigInvalid, ..refused });
    }
    let places = paths.control_places();
    let asked = spawn_blocking(move || ask_to_go(&places));
    let from = asked.await.map_err(|cause| not_started().cause(cause))??;
    let (pid, listener) = from.unzip();
    tracing::info!(pid, "taking over");
    Ok(listener.flatten())
}

/// Asks whether it could go, then to go; answers who it was, if there was somebody, and the
/// socket that it handed over.
fn ask_to_go(places: &[PathBuf]) -> Result<Option<(u32, Option<TcpListener>)>, CallError> {
    let mut client = match Client::find(places) {
        Ok(client) => client,
        Err(error) if error.is_not_listening() => return Ok(None),
        Err(error) => return Err(not_replaced().cause(error)),
    };
    let within = Some(HANDS_OVER_WITHIN);
    client.answer_within(within).map_err(|error| not_replaced().cause(error))?;
    let ask = |go, listener| Request::Handover(Handover { shim_protocol: PROTOCOL, go, listener });
    // One that does not know of the socket does not know the question for it either.
    let HandedOver { pid, listener, .. } = client.call_as(&ask(false, false)).map_err(refusal)?;
    match client.call_as::<HandedOver>(&ask(true, listener)) {
        // It has been told, and cannot be told otherwise: it is waited for.
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
            .cause("it is of a version that cannot hand over")
            .hint("end it with `xy shutdown`, then start this one"),
        other => not_replaced().cause(other),
    }
}

/// Whether another daemon has taken over, once we are out of its way.
pub(crate) async fn somebody_came(lock_file: &Path) -> bool {
    let give_up_at = Instant::now() + COMES_WITHIN;
    while Instant::now() < give_up_at {
        if files::is_locked(lock_file) {
            return true;
        }
        sleep(LOOK_AGAIN).await;
    }
    false
}

/// Begins anew as this same process: whoever wanted to take over is gone. Only returns if
/// that cannot be done.
pub(crate) fn go_on() -> CallError {
    tracing::warn!("nobody took over; going on");
    let failed = CallError::new(ErrorKind::Internal, "nobody took over, and going on failed");
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--replace");
    let error = match ShimProgram::this_binary() {
        Ok(ours) => Command::new(ours.path).arg0("xy").args(args).exec(),
        Err(error) => error,
    };
    failed.cause(error).hint("start it again with `xy daemon`: the servers wait for it")
}

fn not_replaced() -> CallError {
    CallError::new(ErrorKind::Internal, "the running daemon was not replaced")
}
