//! Handler of `restart`: stops servers, starts them again, and answers once they have settled.

use xy_protocol::control::{Failure, RestartResult, Select};
use xy_protocol::error::CallError;
use xy_supervisor::fleet::Operation;

use super::settle::{bad_files, check_started, deduplicate, failures, request_and_wait};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<RestartResult, CallError> {
    let outcome = request_and_wait(daemon, Operation::Restart, &select).await?;
    let mut answer = RestartResult { warnings: outcome.warnings, ..RestartResult::default() };
    for settled in outcome.settled {
        match check_started(&select, &settled) {
            Err(error) => answer.failed.push(Failure { name: settled.name, error }),
            Ok(()) => answer.restarted.push(settled.name),
        }
    }
    answer.restarted.extend(outcome.without_instance.into_iter().map(|it| it.name));
    answer.failed.extend(bad_files(daemon, &select));
    deduplicate(&answer.failed, [&mut answer.restarted]);
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
