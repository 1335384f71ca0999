//! `xy stop`: stops servers.

use xy_protocol::control::Request;

use super::{ServerArgs, run_on_servers};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::outcome;

/// Stop a server, or all servers
///
/// Waits until all processes of the server have exited. A stopped server stays stopped until it
/// is started again, even if the daemon is restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy stop github\n  xy stop --all")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    run_on_servers(&args.servers, "stopping", Request::Stop, outcome::stopped, output)
}
