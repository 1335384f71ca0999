//! Handler of `start`: starts servers, and answers once they have settled.

use xy_protocol::control::{Failure, Select, StartResult};
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Operation;

use super::settle::{bad_files, check_started, deduplicate, failures, request_and_wait};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<StartResult, CallError> {
    let outcome = request_and_wait(daemon, Operation::Start, &select).await?;
    let mut answer = StartResult { warnings: outcome.warnings, ..StartResult::default() };
    for settled in outcome.settled {
        match (check_started(&select, &settled), settled.before, settled.wanted_before) {
            (Err(error), ..) => answer.failed.push(Failure { name: settled.name, error }),
            (Ok(()), ServerState::Running, Wanted::Up) => {
                answer.already_running.push(settled.name);
            }
            (Ok(()), ..) => answer.started.push(settled.name),
        }
    }
    for server in outcome.without_instance {
        match server.wanted_before {
            _ if server.is_nowhere => answer.when_needed.push(server.name),
            Wanted::Down => answer.started.push(server.name),
            Wanted::Up => answer.already_running.push(server.name),
        }
    }
    answer.failed.extend(bad_files(daemon, &select));
    deduplicate(
        &answer.failed,
        [&mut answer.started, &mut answer.already_running, &mut answer.when_needed],
    );
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
