//! `start`: bring servers up, answer once they have settled.

use xy_protocol::control::{Failure, Select, Started};
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Ask;

use super::asks::{ask, bad_files, came_up, failures, once};
use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, select: Select) -> Result<Started, CallError> {
    let outcome = ask(daemon, Ask::Start, &select).await?;
    let mut answer = Started { warnings: outcome.warnings, ..Started::default() };
    for settled in outcome.settled {
        match (came_up(&select, &settled), settled.before, settled.wanted_before) {
            (Err(error), ..) => answer.failed.push(Failure { name: settled.name, error }),
            (Ok(()), ServerState::Running, Wanted::Up) => {
                answer.already_running.push(settled.name);
            }
            (Ok(()), ..) => answer.started.push(settled.name),
        }
    }
    for unheld in outcome.unheld {
        match unheld.wanted_before {
            _ if unheld.is_nowhere => answer.when_needed.push(unheld.name),
            Wanted::Down => answer.started.push(unheld.name),
            Wanted::Up => answer.already_running.push(unheld.name),
        }
    }
    answer.failed.extend(bad_files(daemon, &select));
    once(
        &answer.failed,
        [&mut answer.started, &mut answer.already_running, &mut answer.when_needed],
    );
    answer.failed = failures(&select, answer.failed)?;
    Ok(answer)
}
