//! The common part of `start`, `stop` and `restart`: sends the request, waits until the servers
//! have settled, and classifies the outcome.

use std::collections::BTreeSet;

use xy_protocol::control::{Failure, Select};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::{AppliedOperation, Operation, ServerWithoutInstance};
use xy_supervisor::instance::{InstanceHandle, Snapshot, with_last_lines};
use xy_supervisor::lifecycle::Reason;

use crate::daemon::{Daemon, shutting_down_error};

/// A server after a request, with its state before.
pub(super) struct SettledServer {
    pub(super) name: ServerName,
    pub(super) before: ServerState,
    pub(super) wanted_before: Wanted,
    pub(super) after: Snapshot,
    /// The last lines of its stderr, if it did not start.
    pub(super) last_stderr: Vec<String>,
}

impl SettledServer {
    /// Waits until an instance has settled, and returns its state.
    pub(super) async fn of(instance: &InstanceHandle) -> Self {
        let before = instance.now().state();
        let after = instance.settled().await;
        let name = instance.key().server.clone();
        let last_stderr = last_stderr(instance, &after);
        Self { name, before, wanted_before: Wanted::Up, after, last_stderr }
    }
}

/// Returns the last lines of stderr of an instance that did not start, as only those are shown. An
/// instance that could not be launched wrote none: lines in memory are from its predecessor.
fn last_stderr(instance: &InstanceHandle, after: &Snapshot) -> Vec<String> {
    match after.state() {
        _ if matches!(
            after.life.reason,
            Reason::LaunchFailed(_) | Reason::EngineUnavailable(_)
        ) =>
        {
            Vec::new()
        }
        ServerState::Failed | ServerState::Restarting | ServerState::Stopped => {
            instance.last_stderr()
        }
        _ => Vec::new(),
    }
}

/// The outcome of a request to one or all servers.
pub(super) struct SettleOutcome {
    pub(super) settled: Vec<SettledServer>,
    pub(super) without_instance: Vec<ServerWithoutInstance>,
    pub(super) warnings: Vec<String>,
}

/// Sends the operation to the selected servers. Waits until they have settled, unless `wait` is
/// false.
pub(super) async fn request_and_wait(
    daemon: &Daemon,
    operation: Operation,
    select: &Select,
) -> Result<SettleOutcome, CallError> {
    let names = select.name.clone().map(|name| vec![name]);
    let outcome = daemon.fleet.operate(operation, names).await.map_err(shutting_down_error)?;
    if let Some(name) = outcome.unknown.first() {
        return Err(daemon.not_found(name));
    }
    let mut settled = Vec::with_capacity(outcome.applied.len());
    // The servers change concurrently, so waiting for one after the other takes no longer.
    for applied in outcome.applied {
        let instance: &InstanceHandle = &applied.instance;
        let after = if select.wait { instance.settled().await } else { instance.now() };
        let AppliedOperation { name, before, wanted_before, .. } = applied;
        let last_stderr = last_stderr(instance, &after);
        settled.push(SettledServer { name, before, wanted_before, after, last_stderr });
    }
    if !settled.iter().all(|it| it.after.state().is_settled()) && select.wait {
        daemon.check_not_handed_over()?;
    }
    Ok(SettleOutcome {
        settled,
        without_instance: outcome.without_instance,
        warnings: outcome.warnings,
    })
}

/// Returns the servers that cannot start because of their files, if all were selected.
pub(super) fn bad_files(daemon: &Daemon, select: &Select) -> Vec<Failure> {
    let all = if select.all { daemon.bad_files() } else { Vec::new() };
    all.into_iter().map(|(name, bad)| Failure { error: bad.refusal(&name), name }).collect()
}

/// Keeps each server only in the first list that has it. A server may have several instances, and
/// the first lists matter most.
pub(super) fn deduplicate<const N: usize>(failed: &[Failure], lists: [&mut Vec<ServerName>; N]) {
    let mut named: BTreeSet<ServerName> = failed.iter().map(|it| it.name.clone()).collect();
    for list in lists {
        list.retain(|name| named.insert(name.clone()));
        list.sort();
    }
}

/// Returns the failure as an error if one server was selected. With several, failures are a part of
/// the answer.
pub(super) fn failures(
    select: &Select,
    mut failed: Vec<Failure>,
) -> Result<Vec<Failure>, CallError> {
    match (select.all, failed.pop()) {
        (false, Some(failure)) => Err(failure.error),
        (true, Some(failure)) => {
            failed.push(failure);
            Ok(failed)
        }
        (_, None) => Ok(failed),
    }
}

/// Returns an error if a server did not start. With `wait: false` it may still be starting.
pub(super) fn check_started(select: &Select, settled: &SettledServer) -> Result<(), CallError> {
    let is_up = match settled.after.state() {
        ServerState::Running => true,
        ServerState::Starting | ServerState::Stopping => !select.wait,
        ServerState::Stopped
        | ServerState::Restarting
        | ServerState::Asleep
        | ServerState::Failed => false,
    };
    if is_up { Ok(()) } else { Err(did_not_start(settled)) }
}

pub(super) fn did_not_start(settled: &SettledServer) -> CallError {
    let reason = &settled.after.life.reason;
    let kind = match reason {
        Reason::NeverReady { .. } => ErrorKind::TimedOut,
        _ => ErrorKind::SpawnFailed,
    };
    let name = &settled.name;
    if let Reason::Unreachable(_) = reason {
        return CallError::new(kind, format!("server `{name}` could not be reached"))
            .cause(reason)
            .hint(format!("xy retries automatically: `xy status {name}` shows when"));
    }
    let hint = reason
        .hint()
        .map_or_else(|| format!("`xy logs {name}` shows its output"), ToOwned::to_owned);
    // The server's own output explains more than its exit code.
    let cause = with_last_lines(&reason.to_string(), &settled.last_stderr);
    CallError::new(kind, format!("server `{name}` did not start")).cause(cause).hint(hint)
}

/// Returns an error if a server was not stopped. With `wait: false` it may still be stopping.
pub(super) fn check_stopped(select: &Select, settled: &SettledServer) -> Result<(), CallError> {
    match settled.after.state() {
        ServerState::Stopped if !settled.after.survivors.is_empty() => Err(CallError::new(
            ErrorKind::TimedOut,
            format!("server `{}` was not stopped completely", settled.name),
        )
        .cause(format!("processes {:?} survive SIGKILL", settled.after.survivors))
        .hint("they hang in the kernel, probably on a disk or a network mount")),
        ServerState::Stopped => Ok(()),
        ServerState::Stopping if !select.wait => Ok(()),
        state => Err(CallError::new(
            ErrorKind::Internal,
            format!("server `{}` was not stopped", settled.name),
        )
        .cause(format!("it is {state}: {}", settled.after.life.reason))
        .hint("another client may have started it meanwhile; try again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_with_several_instances_is_listed_once() {
        let names = |names: &[&str]| -> Vec<ServerName> {
            names.iter().map(|name| ServerName::new(name).unwrap()).collect()
        };
        let error = CallError::new(ErrorKind::SpawnFailed, "x");
        let failed = names(&["c"]).into_iter().map(|name| Failure { name, error: error.clone() });
        let failed: Vec<Failure> = failed.collect();
        let (mut started, mut running) = (names(&["b", "b", "a", "c"]), names(&["a", "c", "d"]));
        deduplicate(&failed, [&mut started, &mut running]);
        assert_eq!((started, running), (names(&["a", "b"]), names(&["d"])));
    }
}
