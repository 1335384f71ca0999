//! `xy restart`: stops servers and starts them again.

use xy_protocol::control::Request;

use super::{ServerArgs, run_on_servers};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::outcome;

/// Restart a server, or all servers
///
/// Stops the server, starts it again immediately, and waits until it is ready. Its restart count
/// is reset, so this also recovers a failed server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy restart github\n  xy restart --all")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    run_on_servers(&args.servers, "restarting", Request::Restart, outcome::restarted, output)
}
