//! `xy check`: reports problems in the configuration, without a daemon.

use serde_json::value::to_raw_value;
use xy_config::Paths;

use crate::args::{Json, McpJson};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render::{error, info};

/// Look for problems in the configuration
///
/// Reads all files as the daemon does, and prints every problem with its file and line. Needs no
/// daemon and changes nothing. Exits with 3 if a daemon would reject the files.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy check && xy reload\n  xy check --mcp-json ~/.cursor/mcp.json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    mcp_json: McpJson,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?.with_mcp_json(args.mcp_json.files());
    let report = xy_daemon::check::report(&paths);
    if args.json.json {
        let json = to_raw_value(&report)
            .map_err(|cause| Failure::internal("the report could not be written", cause))?;
        output.json(&json)?;
    } else {
        let problems: String = report.problems.iter().map(error::problem).collect();
        output.print(&problems)?;
        output.print(&info::summary(&report))?;
    }
    if report.valid { Ok(()) } else { Err(Failure::Reported(Exit::BadConfig)) }
}
