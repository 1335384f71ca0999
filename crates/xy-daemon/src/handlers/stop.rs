//! `stop`: take servers down, answer once they have settled.

use xy_protocol::control::{Failure, Select, Stopped};
use xy_protocol::error::CallError;
use xy_protocol::server::ServerState;
use xy_supervisor::fleet::Ask;

use super::asks::{ask, failures, went_down};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<Stopped, CallError> {
    let outcome = ask(daemon, Ask::Stop, &select).await?;
    let mut answer = Stopped { warnings: outcome.warnings, ..Stopped::default() };
    for settled in outcome.settled {
        match (went_down(&select, &settled), settled.before) {
            (Err(error), _) => answer.failed.push(Failure { name: settled.name, error }),
            (Ok(()), ServerState::Stopped | ServerState::Failed) => {
                answer.not_running.push(settled.name);
            }
            (Ok(()), _) => answer.stopped.push(settled.name),
        }
    }
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
