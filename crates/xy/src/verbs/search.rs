//! `xy search`: tools by what they do.

use xy_protocol::control::{FoundTools, Request, Search};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Find tools by what they do
///
/// Best first: the name by which `xy call` and MCP clients call a tool, and the first words of
/// what is said of it. With --profile only what that profile shows.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy search create an issue\n  xy search --profile work read a file"
)]
pub(crate) struct Args {
    /// What is to be done, in a few words
    #[arg(required = true)]
    query: Vec<String>,
    /// The most that are shown
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Only tools of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only what this profile shows
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let Args { limit, server, profile, .. } = args;
    let (server, profile) = (server.clone(), profile.clone());
    let ask = Search { query: args.query.join(" "), limit: *limit, server, profile };
    let result = Link::open()?.ask_promptly(&Request::Search(ask))?;
    if args.json.json {
        return output.json(&result);
    }
    let FoundTools { tools } = read(&result)?;
    if tools.is_empty() {
        output.tell("nothing fits: try other words, or `xy tools` for all\n");
        return Ok(());
    }
    let width = output.width();
    output.print(&render::tools::found(&tools, width))
}
