//! `xy stop`: stop servers that are up.

use xy_protocol::control::{Request, Stopped};

use super::{select, show, shown, told};
use crate::cli::{Json, Which};
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome;

/// Stop a server, or all of them
///
/// Waits until all of its processes are gone. A stopped server stays down until it is
/// started again, even if the daemon is restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy stop github\n  xy stop --all")]
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
    let request = Request::Stop(select(&args.which, args.no_wait));
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("stopping {}", shown(&args.which)));
    let result = link.ask(&request)?;
    drop(spinner);
    let done: Stopped = read(&result)?;
    let outcome = outcome::stopped(&done, !args.no_wait);
    if args.json.json {
        output.json(&result)?;
        return told(&outcome);
    }
    show(&outcome, output)
}
