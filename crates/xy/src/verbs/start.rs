//! `xy start`: starts servers.

use xy_protocol::control::Request;

use super::{ServerArgs, run_on_servers};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::outcome;

/// Start a server, or all servers
///
/// Waits until the server is ready or has failed. A running server is not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy start github\n  xy start --all")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    run_on_servers(&args.servers, "starting", Request::Start, outcome::started, output)
}
