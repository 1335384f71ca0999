//! `xy version`: shows the versions of this program and of the daemon.

use xy_protocol::control::{Request, Version};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show the version of this program and of the daemon
///
/// Also works without a daemon, except with --json, which prints the daemon's response.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy version")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let asked = Link::open().and_then(|mut link| link.query(&Request::Version));
    if args.json.json {
        return output.json(&asked?);
    }
    let daemon: Option<Version> = asked.ok().and_then(|result| read(&result).ok());
    output.print(&render::info::version(env!("CARGO_PKG_VERSION"), daemon.as_ref()))
}
