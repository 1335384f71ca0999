//! `xy search`: searches tools by their descriptions.

use xy_protocol::control::{Request, Search, SearchResult};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Find tools by what they do
///
/// Prints the best matches first: the name that `xy call` and MCP clients use, and the start of
/// the description. With --profile, searches only tools of that profile.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy search create an issue\n  xy search --profile work read a file"
)]
pub(crate) struct Args {
    /// A few words that describe the task
    #[arg(required = true)]
    query: Vec<String>,
    /// Maximum number of results
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Only tools of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only tools of this profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let Args { limit, server, profile, .. } = args;
    let (server, profile) = (server.clone(), profile.clone());
    let params = Search { query: args.query.join(" "), limit: *limit, server, profile };
    let result = Link::open()?.query(&Request::Search(params))?;
    if args.json.json {
        return output.json(&result);
    }
    let SearchResult { tools } = read(&result)?;
    if tools.is_empty() {
        output.print_stderr("no tools match: try other words, or list all with `xy tools`\n");
        return Ok(());
    }
    let width = output.width();
    output.print(&render::tools::found(&tools, width))
}
