//! `xy remove`: stops a server and removes it.

use xy_protocol::control::{Remove, RemoveResult, Request};

use super::show;
use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::outcome;

/// Remove a server that was added with `xy add`
///
/// The server disappears from all lists immediately and is stopped within its grace period. A
/// server with a file is removed only with --persist, which deletes the file. Its logs are kept
/// unless --purge is given.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy remove everything\n  xy remove everything --persist --purge"
)]
pub(crate) struct Args {
    /// The server's name
    name: String,
    /// Also delete its file
    #[arg(long)]
    persist: bool,
    /// Also delete its logs after it has stopped
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let Args { persist, purge, .. } = *args;
    let request = Request::Remove(Remove { name: args.name.clone(), persist, purge });
    let result = Link::open()?.call(&request)?;
    if args.json.json {
        return output.json(&result);
    }
    let done: RemoveResult = read(&result)?;
    show(&outcome::removed(&done), output)
}
