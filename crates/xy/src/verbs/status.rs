//! `xy status`: shows one server in detail.

use xy_protocol::control::{ByName, Request};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::{clock, render};

/// Show details of a server
///
/// Shows its state and the reason, its recent state changes, its files, and its last lines of
/// stderr if it has failed.
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
    let result = Link::open()?.query(&request)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&render::status::render(&read(&result)?, clock::now()))
}
