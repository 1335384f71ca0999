//! `xy info`: where the daemon is and what it listens on.

use xy_protocol::control::Request;

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show where the daemon is and what it listens on
///
/// Its version and process, its sockets and addresses, its folders, and how many
/// servers it has.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy info\n  xy info --json | jq -r .control_socket")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let result = Link::open()?.ask_promptly(&Request::Info)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&render::info::info(&read(&result)?))
}
