//! What `start`, `stop` and `restart` have in common: ask, wait, sort the outcome.

use std::collections::BTreeSet;

use xy_protocol::control::{Failure, Select};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState, Wanted};
use xy_supervisor::fleet::{Ask, Asked, Unheld};
use xy_supervisor::instance::{InstanceHandle, Snapshot, with_last_lines};
use xy_supervisor::lifecycle::Reason;

use crate::daemon::{Daemon, closed};

/// A server that was asked something, and what became of it.
pub(super) struct Settled {
    pub(super) name: ServerName,
    pub(super) before: ServerState,
    pub(super) wanted_before: Wanted,
    pub(super) after: Snapshot,
    /// The last lines of its stderr, if it did not come up.
    pub(super) last_stderr: Vec<String>,
}

impl Settled {
    /// What has become of an instance that is changing.
    pub(super) async fn of(instance: &InstanceHandle) -> Self {
        let before = instance.now().state();
        let after = instance.settled().await;
        let name = instance.key().server.clone();
        let last_stderr = last_stderr(instance, &after);
        Self { name, before, wanted_before: Wanted::Up, after, last_stderr }
    }
}

/// Returns the last lines of stderr of an instance that has not come up. Those of others would
/// not be shown.
fn last_stderr(instance: &InstanceHandle, after: &Snapshot) -> Vec<String> {
    match after.state() {
        ServerState::Failed | ServerState::Restarting | ServerState::Stopped => {
            instance.last_stderr()
        }
        _ => Vec::new(),
    }
}

/// Everything that was asked.
pub(super) struct Outcome {
    pub(super) settled: Vec<Settled>,
    pub(super) unheld: Vec<Unheld>,
    pub(super) warnings: Vec<String>,
}

/// Asks servers for something; waits until they have settled unless told not to.
pub(super) async fn ask(daemon: &Daemon, ask: Ask, select: &Select) -> Result<Outcome, CallError> {
    let names = select.name.clone().map(|name| vec![name]);
    let outcome = daemon.fleet.ask(ask, names).await.map_err(closed)?;
    if let Some(name) = outcome.unknown.first() {
        return Err(daemon.not_found(name));
    }
    let mut settled = Vec::with_capacity(outcome.asked.len());
    // They change at the same time, so waiting for one after the other takes no longer.
    for asked in outcome.asked {
        let instance: &InstanceHandle = &asked.instance;
        let after = if select.wait { instance.settled().await } else { instance.now() };
        let Asked { name, before, wanted_before, .. } = asked;
        let last_stderr = last_stderr(instance, &after);
        settled.push(Settled { name, before, wanted_before, after, last_stderr });
    }
    if !settled.iter().all(|it| it.after.state().is_settled()) && select.wait {
        daemon.check_not_handed_over()?;
    }
    Ok(Outcome { settled, unheld: outcome.unheld, warnings: outcome.warnings })
}

/// The servers that cannot come up because of their files, if all were asked for.
pub(super) fn bad_files(daemon: &Daemon, select: &Select) -> Vec<Failure> {
    let all = if select.all { daemon.bad_files() } else { Vec::new() };
    all.into_iter().map(|(name, bad)| Failure { error: bad.refusal(&name), name }).collect()
}

/// Names each server once: in the first list that has it. It may have several instances, of
/// which the first lists tell what matters.
pub(super) fn once<const N: usize>(failed: &[Failure], lists: [&mut Vec<ServerName>; N]) {
    let mut named: BTreeSet<ServerName> = failed.iter().map(|it| it.name.clone()).collect();
    for list in lists {
        list.retain(|name| named.insert(name.clone()));
        list.sort();
    }
}

/// One server that failed is an error; one of several is a part of the answer.
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

/// Whether it came up; with `wait: false` it may still be on its way.
pub(super) fn came_up(select: &Select, settled: &Settled) -> Result<(), CallError> {
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

pub(super) fn did_not_start(settled: &Settled) -> CallError {
    let reason = &settled.after.life.reason;
    let kind = match reason {
        Reason::NeverReady { .. } => ErrorKind::TimedOut,
        _ => ErrorKind::SpawnFailed,
    };
    let name = &settled.name;
    if let Reason::Unreachable(_) = reason {
        return CallError::new(kind, format!("server `{name}` could not be reached"))
            .cause(reason)
            .hint(format!("it is tried again by itself: `xy status {name}` shows when"));
    }
    let hint = reason
        .hint()
        .map_or_else(|| format!("`xy logs {name}` shows what it said"), ToOwned::to_owned);
    // What the server wrote tells more than how it ended.
    let cause = with_last_lines(&reason.to_string(), &settled.last_stderr);
    CallError::new(kind, format!("server `{name}` did not start")).cause(cause).hint(hint)
}

/// Whether it went down; with `wait: false` it may still be on its way.
pub(super) fn went_down(select: &Select, settled: &Settled) -> Result<(), CallError> {
    match settled.after.state() {
        ServerState::Stopped if !settled.after.survivors.is_empty() => Err(CallError::new(
            ErrorKind::TimedOut,
            format!("server `{}` was not stopped as a whole", settled.name),
        )
        .cause(format!("processes {:?} do not even die of SIGKILL", settled.after.survivors))
        .hint("they hang in the kernel, most likely on a disk or a network mount")),
        ServerState::Stopped => Ok(()),
        ServerState::Stopping if !select.wait => Ok(()),
        state => Err(CallError::new(
            ErrorKind::Internal,
            format!("server `{}` was not stopped", settled.name),
        )
        .cause(format!("it is {state}: {}", settled.after.life.reason))
        .hint("somebody else may have started it meanwhile; try again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_several_instances_is_named_once_by_what_matters_most() {
        let names = |names: &[&str]| -> Vec<ServerName> {
            names.iter().map(|name| ServerName::new(name).unwrap()).collect()
        };
        let error = CallError::new(ErrorKind::SpawnFailed, "x");
        let failed = names(&["c"]).into_iter().map(|name| Failure { name, error: error.clone() });
        let failed: Vec<Failure> = failed.collect();
        let (mut started, mut running) = (names(&["b", "b", "a", "c"]), names(&["a", "c", "d"]));
        once(&failed, [&mut started, &mut running]);
        assert_eq!((started, running), (names(&["a", "b"]), names(&["d"])));
    }
}
