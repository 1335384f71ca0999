//! One file per verb: what can be typed, what is asked, how the answer is shown.

pub(crate) mod check;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod sample_server;
pub(crate) mod shutdown;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod version;

use xy_protocol::control::Select;

use crate::cli::Which;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render::outcome::Outcome;
use crate::render::safe_text;

/// What `start`, `stop` and `restart` ask for.
fn select(which: &Which, no_wait: bool) -> Select {
    Select { name: which.name.clone(), all: which.all, wait: !no_wait }
}

/// `github`, or `all servers`.
fn shown(which: &Which) -> String {
    which.name.as_deref().map_or("all servers".into(), safe_text).into_owned()
}

/// Shows what became of the servers.
fn show(outcome: &Outcome, output: &mut Output) -> Result<(), Failure> {
    if outcome.is_empty() {
        output.tell("no servers are configured\n");
    }
    output.print(&outcome.lines)?;
    output.tell(&outcome.troubles);
    told(outcome)
}

/// The exit code, once everything has been said.
fn told(outcome: &Outcome) -> Result<(), Failure> {
    if outcome.has_failed { Err(Failure::Told(Exit::Failed)) } else { Ok(()) }
}
