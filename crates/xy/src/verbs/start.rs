//! `xy start`: start servers that are down.

use xy_protocol::control::Request;

use super::{Ask, carry_out};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::outcome;

/// Start a server, or all of them
///
/// Waits until it is ready, or has failed. A server that runs already is left alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy start github\n  xy start --all")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) ask: Ask,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    carry_out(&args.ask, "starting", Request::Start, outcome::started, output)
}
