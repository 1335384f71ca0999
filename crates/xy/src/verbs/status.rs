//! `xy status`: one server in full.

use xy_protocol::control::{ByName, Request};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::{clock, render};

/// Show everything about one server
///
/// Its state and the reason for it, its latest changes, its files, and what it
/// last wrote to stderr if it has failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy status github")]
pub(crate) struct Args {
    /// The server's name
    name: String,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = Request::Status(ByName { name: args.name.clone() });
    let result = Link::open()?.ask_promptly(&request)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&render::status::render(&read(&result)?, clock::now()))
}
