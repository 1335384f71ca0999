//! `stop`: take servers down, answer once they have settled.

use xy_protocol::control::{Failure, Select, Stopped};
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Ask;

use super::asks::{ask, failures, once, went_down};
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
    for unheld in outcome.unheld {
        match unheld.wanted_before {
            Wanted::Up => answer.stopped.push(unheld.name),
            Wanted::Down => answer.not_running.push(unheld.name),
        }
    }
    once(&answer.failed, [&mut answer.stopped, &mut answer.not_running]);
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
