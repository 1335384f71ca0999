//! `xy reload`: read the files again.

use xy_protocol::control::{Reload, Reloaded, Request};

use crate::cli::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::{error, outcome};

/// Read the server files again and apply what has changed
///
/// New servers are started, removed ones stopped, and changed ones restarted if their
/// process is a different one now. If a file is invalid, nothing is changed. Waits until they
/// are ready, or have failed.
///
/// With a name, only the file of that server is read, and it is restarted in any case.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy reload --dry-run\n  xy reload\n  xy reload github")]
pub(crate) struct Args {
    /// Only this server
    #[arg(conflicts_with = "dry_run")]
    name: Option<String>,
    /// Only print what would happen
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let spinner = output.spinner("reloading");
    let result =
        link.ask(&Request::Reload(Reload { name: args.name.clone(), dry_run: args.dry_run }))?;
    drop(spinner);
    let done: Reloaded = read(&result)?;
    if args.json.json {
        output.json(&result)?;
    } else {
        let warnings: String = done.problems.iter().map(error::problem).collect();
        output.tell(&warnings);
        output.print(&match args.name {
            Some(_) => outcome::reloaded_one(&done),
            None => outcome::reloaded(&done),
        })?;
        let failures: String = done.failed.iter().map(|it| error::render(&it.error)).collect();
        output.tell(&failures);
    }
    if done.failed.is_empty() { Ok(()) } else { Err(Failure::Told(Exit::Failed)) }
}
