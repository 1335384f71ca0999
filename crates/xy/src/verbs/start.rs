//! `xy start`: start servers that are down.

use xy_protocol::control::{Request, Started};

use super::{select, show, shown, told};
use crate::cli::{Json, Which};
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome;

/// Start a server, or all of them
///
/// Waits until it is ready, or has failed. A server that runs already is left alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy start github\n  xy start --all")]
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
    let request = Request::Start(select(&args.which, args.no_wait));
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("starting {}", shown(&args.which)));
    let result = link.ask(&request)?;
    drop(spinner);
    let done: Started = read(&result)?;
    let outcome = outcome::started(&done, !args.no_wait);
    if args.json.json {
        output.json(&result)?;
        return told(&outcome);
    }
    show(&outcome, output)
}
