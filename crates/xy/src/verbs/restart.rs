//! `xy restart`: stop servers, start them again.

use xy_protocol::control::{Request, Restarted};

use super::{select, show, shown, told};
use crate::cli::{Json, Which};
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome;

/// Restart a server, or all of them
///
/// Stops it, starts it again with nothing in between, and waits until it is ready. Its
/// count of restarts begins anew, so it also brings back one that has failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy restart github\n  xy restart --all")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Return at once, without waiting until the servers have settled
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = Request::Restart(select(&args.which, args.no_wait));
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("restarting {}", shown(&args.which)));
    let result = link.ask(&request)?;
    drop(spinner);
    let done: Restarted = read(&result)?;
    let outcome = outcome::restarted(&done, !args.no_wait);
    if args.json.json {
        output.json(&result)?;
        return told(&outcome);
    }
    show(&outcome, output)
}
