//! One file per verb: what can be typed, what is asked, how the answer is shown.

pub(crate) mod add;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod connect;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod diagnostics;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod logs;
mod progress;
pub(crate) mod reload;
pub(crate) mod remove;
pub(crate) mod request;
pub(crate) mod restart;
pub(crate) mod sample_server;
pub(crate) mod search;
pub(crate) mod self_test;
pub(crate) mod shutdown;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod version;

use std::time::Duration;

use serde::de::DeserializeOwned;
use xy_protocol::control::{Request, Select};

use crate::cli::{Json, Which};
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome::Outcome;
use crate::render::safe_text;
use crate::verbs::progress::Following;

/// What `start`, `stop` and `restart` have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    which: Which,
    /// Return at once, without waiting until the servers have settled
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// Asks, waits, and shows what became of the servers.
fn carry_out<T: DeserializeOwned>(
    ask: &Ask,
    gerund: &str,
    request: fn(Select) -> Request,
    judge: fn(&T, bool) -> Outcome,
    output: &mut Output,
) -> Result<(), Failure> {
    let Which { name, all } = ask.which.clone();
    let shown = name.as_deref().map_or("all servers".into(), safe_text).into_owned();
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("{gerund} {shown}"));
    let following = name.clone().zip(spinner.teller()).filter(|_| !ask.no_wait);
    let following = following.map(|(name, teller)| Following::begin(name, teller));
    let result = link.ask(&request(Select { name, all, wait: !ask.no_wait }))?;
    drop(following);
    drop(spinner);
    let outcome = judge(&read(&result)?, !ask.no_wait);
    if ask.json.json {
        output.json(&result)?;
    } else {
        show(&outcome, output)?;
    }
    if outcome.has_failed { Err(Failure::Told(Exit::Failed)) } else { Ok(()) }
}

fn show(outcome: &Outcome, output: &mut Output) -> Result<(), Failure> {
    if outcome.is_empty() {
        output.tell("no servers are configured\n");
    }
    output.print(&outcome.lines)?;
    output.tell(&outcome.troubles);
    Ok(())
}

/// A time as the wire has it; what is too long for it is for ever.
fn in_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
