//! `xy info`: shows the daemon's process, sockets, addresses and folders.

use std::io;
use std::path::Path;

use xy_config::Paths;
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show the daemon's process, sockets and folders
///
/// Shows its version, process id, sockets, addresses, folders, and number of servers.
///
/// With --token, prints only the token that MCP clients need to connect over HTTP. The token is
/// read from its file; the daemon never sends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy info\n  xy info --json | jq -r .control_socket\n  \
    curl -H \"Authorization: Bearer $(xy info --token)\" …")]
pub(crate) struct Args {
    /// Print only the token of the gateway
    #[arg(long, conflicts_with = "json")]
    token: bool,
    /// Print only the token that also permits adding and removing servers
    #[arg(long, conflicts_with = "json")]
    manage: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    if args.token || args.manage {
        let paths = Paths::from_env()?;
        let file = if args.manage { &paths.manage_token_file } else { &paths.token_file };
        return output.print(&(read_token(file)? + "\n"));
    }
    let result = Link::open()?.query(&Request::Info)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&render::info::info(&read(&result)?))
}

fn read_token(file: &Path) -> Result<String, CallError> {
    let not_shown = |cause: String| {
        CallError::new(ErrorKind::Internal, "the token cannot be shown").cause(cause)
    };
    let shown = file.display();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            Err(not_shown(format!("there is no file `{shown}`"))
                .hint("start the daemon, which creates it unless its gateway needs no token"))
        }
        Err(cause) => Err(not_shown(format!("`{shown}`: {cause}"))),
    }
}
