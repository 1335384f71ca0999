//! `xy list`: all servers and what they are doing.

use xy_config::Paths;
use xy_protocol::control::{Listed, Request};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show all servers and what they are doing
///
/// One line per configured server: its state, its process, its port, how long it
/// has been up, how often it was restarted, and why it is not running.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy list\n  xy list --json | jq -r '.[] | select(.state == \"failed\").name'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?;
    let result = Link::open_at(&paths)?.ask_promptly(&Request::List)?;
    if args.json.json {
        return output.json(&result);
    }
    let servers: Listed = read(&result)?;
    if servers.is_empty() {
        let folder = paths.servers_dir.display();
        output.tell(&format!("no servers: put one in {folder}/<name>.kdl\n"));
        return Ok(());
    }
    let width = output.width();
    output.print(&render::list::render(&servers, width))
}
