//! `xy list`: shows all servers and their states.

use xy_config::Paths;
use xy_protocol::control::{Info, ListResult, Request};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show all servers and their states
///
/// Prints one line per configured server: its state, process id, port, uptime, number of
/// restarts, and the reason if it is not running.
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
    let result = link.query(&Request::List)?;
    if args.json.json {
        return output.json(&result);
    }
    warn_of_gateway(&mut link, output);
    let servers: ListResult = read(&result)?;
    if servers.is_empty() {
        let folder = paths.servers_dir.display();
        output.print_stderr(&format!("no servers: put one in {folder}/<name>.kdl\n"));
        return Ok(());
    }
    let width = output.width();
    output.print(&render::list::render(&servers, width))
}

/// Prints warnings about the HTTP gateway, profiles and exceeded limits. If they cannot be
/// queried, the list is still shown.
fn warn_of_gateway(link: &mut Link, output: &mut Output) {
    let info = link.query(&Request::Info).and_then(|result| read::<Info>(&result));
    let Ok(info) = info else { return };
    let limits = info.limit_hits.iter().map(render::info::limit_hit);
    for problem in info.gateway_problem.into_iter().chain(info.warnings).chain(limits) {
        output.print_stderr(&render::error::warning(&problem));
    }
}
