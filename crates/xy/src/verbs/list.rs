//! `xy list`: all servers and what they are doing.

use xy_config::Paths;
use xy_protocol::control::{Info, Listed, Request};

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
    let mut link = Link::open_at(&paths)?;
    let result = link.ask_promptly(&Request::List)?;
    if args.json.json {
        return output.json(&result);
    }
    warn_of_gateway(&mut link, output);
    let servers: Listed = read(&result)?;
    if servers.is_empty() {
        let folder = paths.servers_dir.display();
        output.tell(&format!("no servers: put one in {folder}/<name>.kdl\n"));
        return Ok(());
    }
    let width = output.width();
    output.print(&render::list::render(&servers, width))
}

/// Says why nobody can come in over HTTP, if so, what is odd about profiles, and which limits are
/// being hit. Whatever else may be wrong, the list is what was asked for.
fn warn_of_gateway(link: &mut Link, output: &mut Output) {
    let info = link.ask_promptly(&Request::Info).and_then(|result| read::<Info>(&result));
    let Ok(info) = info else { return };
    let limits = info.limit_hits.iter().map(render::info::limit_hit);
    for problem in info.gateway_problem.into_iter().chain(info.warnings).chain(limits) {
        output.tell(&render::error::warning(&problem));
    }
}
