//! `xy tools`: lists the tools of servers.

use xy_protocol::control::{Request, ToolList, Tools};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// List the tools of all servers, or of one
///
/// Prints one line per tool: the name that `xy call` and MCP clients use, and the first line of
/// its description. With --json, prints the complete tool definitions with their schemas.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy tools\n  xy tools github --json | jq '.tools[].tool'")]
pub(crate) struct Args {
    /// List only tools of this server
    server: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let result = link.query(&Request::Tools(Tools { server: args.server.clone() }))?;
    if args.json.json {
        return output.json(&result);
    }
    let ToolList { tools } = read(&result)?;
    if tools.is_empty() {
        output.print_stderr("no tools: `xy list` shows which servers run\n");
        return Ok(());
    }
    let width = output.width();
    output.print(&render::tools::render(&tools, width))
}
