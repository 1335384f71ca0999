//! `xy restart`: stop servers, start them again.

use xy_protocol::control::Request;

use super::{Ask, carry_out};
use crate::failure::Failure;
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
    pub(crate) ask: Ask,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    carry_out(&args.ask, "restarting", Request::Restart, outcome::restarted, output)
}
