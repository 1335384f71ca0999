//! `xy stop`: stop servers that are up.

use xy_protocol::control::Request;

use super::{Ask, carry_out};
use crate::failure::Failure;
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
    pub(crate) ask: Ask,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    carry_out(&args.ask, "stopping", Request::Stop, outcome::stopped, output)
}
