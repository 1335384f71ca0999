//! `xy remove`: end a server and forget it.

use xy_protocol::control::{Remove, Removed, Request};

use super::show;
use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome;

/// Remove a server that was added while the daemon ran
///
/// It is gone from all lists at once, and ends within its grace. A server with a file is
/// removed only with --persist, which deletes the file. Its logs stay unless --purge is given.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy remove everything\n  xy remove everything --persist --purge"
)]
pub(crate) struct Args {
    /// The server's name
    name: String,
    /// Delete its file too
    #[arg(long)]
    persist: bool,
    /// Delete its logs too, once it has ended
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let Args { persist, purge, .. } = *args;
    let request = Request::Remove(Remove { name: args.name.clone(), persist, purge });
    let result = Link::open()?.ask(&request)?;
    if args.json.json {
        return output.json(&result);
    }
    let done: Removed = read(&result)?;
    show(&outcome::removed(&done), output)
}
