//! `xy tools`: what servers can be asked to do.

use xy_protocol::control::{Request, ToolList, Tools};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show the tools of all servers, or of one
///
/// One line per tool: the name by which `xy call` and every MCP client call it, and the first
/// line of what its server says of it. With --json all of that, the schemas of its arguments
/// too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy tools\n  xy tools github --json | jq '.tools[].tool'")]
pub(crate) struct Args {
    /// Only this server's
    server: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let result = link.ask_promptly(&Request::Tools(Tools { server: args.server.clone() }))?;
    if args.json.json {
        return output.json(&result);
    }
    let ToolList { tools } = read(&result)?;
    if tools.is_empty() {
        output.tell("no tools: `xy list` shows which servers run\n");
        return Ok(());
    }
    let width = output.width();
    output.print(&render::tools::render(&tools, width))
}
