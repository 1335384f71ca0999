//! Handler of `stop`: stops servers, and answers once they have settled.

use xy_protocol::control::{Failure, Select, StopResult};
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Operation;

use super::settle::{check_stopped, deduplicate, failures, request_and_wait};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<StopResult, CallError> {
    let outcome = request_and_wait(daemon, Operation::Stop, &select).await?;
    let mut answer = StopResult { warnings: outcome.warnings, ..StopResult::default() };
    for settled in outcome.settled {
        match (check_stopped(&select, &settled), settled.before) {
            (Err(error), _) => answer.failed.push(Failure { name: settled.name, error }),
            (Ok(()), ServerState::Stopped | ServerState::Failed) => {
                answer.not_running.push(settled.name);
            }
            (Ok(()), _) => answer.stopped.push(settled.name),
        }
    }
    for server in outcome.without_instance {
        match server.wanted_before {
            Wanted::Up => answer.stopped.push(server.name),
            Wanted::Down => answer.not_running.push(server.name),
        }
    }
    deduplicate(&answer.failed, [&mut answer.stopped, &mut answer.not_running]);
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
