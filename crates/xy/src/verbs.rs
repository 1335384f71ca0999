//! One module per verb: its arguments, its request, and the display of the result.

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

use crate::args::{Json, Which};
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome::RenderedOutcome;
use crate::render::safe_text;
use crate::verbs::progress::ProgressMonitor;

/// The arguments of `start`, `stop` and `restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    which: Which,
    /// Return immediately instead of waiting for the servers
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// Sends a request for servers, waits for the result, and prints it.
fn run_on_servers<T: DeserializeOwned>(
    args: &ServerArgs,
    gerund: &str,
    request: fn(Select) -> Request,
    judge: fn(&T, bool) -> RenderedOutcome,
    output: &mut Output,
) -> Result<(), Failure> {
    let Which { name, all } = args.which.clone();
    let shown = name.as_deref().map_or("all servers".into(), safe_text).into_owned();
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("{gerund} {shown}"));
    let following = name.clone().zip(spinner.handle()).filter(|_| !args.no_wait);
    let following = following.map(|(name, handle)| ProgressMonitor::begin(name, handle));
    let result = link.call(&request(Select { name, all, wait: !args.no_wait }))?;
    drop(following);
    drop(spinner);
    let outcome = judge(&read(&result)?, !args.no_wait);
    if args.json.json {
        output.json(&result)?;
    } else {
        show(&outcome, output)?;
    }
    if outcome.has_failed { Err(Failure::Reported(Exit::Failed)) } else { Ok(()) }
}

fn show(outcome: &RenderedOutcome, output: &mut Output) -> Result<(), Failure> {
    if outcome.is_empty() {
        output.print_stderr("no servers are configured\n");
    }
    output.print(&outcome.lines)?;
    output.print_stderr(&outcome.messages);
    Ok(())
}

/// Converts a duration to milliseconds, saturating at the maximum.
fn in_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
