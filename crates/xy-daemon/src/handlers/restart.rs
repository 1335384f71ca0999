//! `restart`: stop servers, start them again, answer once they have settled.

use xy_protocol::control::{Failure, Restarted, Select};
use xy_protocol::error::CallError;
use xy_supervisor::fleet::Ask;

use super::asks::{ask, bad_files, came_up, failures, once};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<Restarted, CallError> {
    let outcome = ask(daemon, Ask::Restart, &select).await?;
    let mut answer = Restarted { warnings: outcome.warnings, ..Restarted::default() };
    for settled in outcome.settled {
        match came_up(&select, &settled) {
            Err(error) => answer.failed.push(Failure { name: settled.name, error }),
            Ok(()) => answer.restarted.push(settled.name),
        }
    }
    answer.restarted.extend(outcome.unheld.into_iter().map(|unheld| unheld.name));
    answer.failed.extend(bad_files(daemon, &select));
    once(&answer.failed, [&mut answer.restarted]);
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
