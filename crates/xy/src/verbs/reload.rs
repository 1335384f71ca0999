//! `xy reload`: reads the configuration again.

use xy_protocol::control::{Reload, ReloadResult, Request};

use crate::args::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::{error, outcome};

/// Reload the configuration and apply the changes
///
/// Starts new servers, stops removed ones, and restarts a changed server if the change affects
/// its process. If a file is invalid, nothing is changed. Waits until the servers are ready or
/// have failed.
///
/// With a name, reads only the file of that server, and always restarts it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy reload --dry-run\n  xy reload\n  xy reload github")]
pub(crate) struct Args {
    /// Reload only this server
    #[arg(conflicts_with = "dry_run")]
    name: Option<String>,
    /// Print the changes without applying them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let spinner = output.spinner("reloading");
    let result =
        link.call(&Request::Reload(Reload { name: args.name.clone(), dry_run: args.dry_run }))?;
    drop(spinner);
    let done: ReloadResult = read(&result)?;
    if args.json.json {
        output.json(&result)?;
    } else {
        let warnings: String = done.problems.iter().map(error::problem).collect();
        output.print_stderr(&warnings);
        output.print(&match args.name {
            Some(_) => outcome::reloaded_one(&done),
            None => outcome::reloaded(&done),
        })?;
        let failures: String = done.failed.iter().map(|it| error::render(&it.error)).collect();
        output.print_stderr(&failures);
    }
    if done.failed.is_empty() { Ok(()) } else { Err(Failure::Reported(Exit::Failed)) }
}
