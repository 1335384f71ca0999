//! `xy info`: where the daemon is and what it listens on.

use std::io;
use std::path::Path;

use xy_config::Paths;
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Show where the daemon is and what it listens on
///
/// Its version and process, its sockets and addresses, its folders, and how many
/// servers it has.
///
/// With --token, only what an MCP client has to show that comes in over HTTP. It is read from
/// its file: the daemon itself tells nobody.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy info\n  xy info --json | jq -r .control_socket\n  \
    curl -H \"Authorization: Bearer $(xy info --token)\" …")]
pub(crate) struct Args {
    /// Print the token of the gateway, and nothing else
    #[arg(long, conflicts_with = "json")]
    token: bool,
    /// Print the token whose bearer may also add and remove servers
    #[arg(long, conflicts_with = "json")]
    manage: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    if args.token || args.manage {
        let paths = Paths::from_env()?;
        let file = if args.manage { &paths.manage_token_file } else { &paths.token_file };
        return output.print(&(token_in(file)? + "\n"));
    }
    let result = Link::open()?.ask_promptly(&Request::Info)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&render::info::info(&read(&result)?))
}

fn token_in(file: &Path) -> Result<String, CallError> {
    let not_shown = |cause: String| {
        CallError::new(ErrorKind::Internal, "the token cannot be shown").cause(cause)
    };
    let shown = file.display();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            Err(not_shown(format!("there is no file `{shown}`"))
                .hint("the daemon makes it when it starts, unless its gateway needs none"))
        }
        Err(cause) => Err(not_shown(format!("`{shown}`: {cause}"))),
    }
}
