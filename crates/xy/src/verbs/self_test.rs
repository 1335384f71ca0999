//! `xy self-test`: look at everything, repair what is broken, and say how it is.

use std::time::Duration;

use xy_protocol::control::{Request, SelfTest, SelfTested};

use crate::cli::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// The daemon itself takes no longer, but for a little.
const WITHIN: Duration = Duration::from_secs(60);

/// Test everything, and repair what is broken
///
/// Looks at the daemon, each server (its process, and a real question to it), the HTTP gateway,
/// folders, sockets, and processes that nobody owns. A server that is dead or hangs is started
/// again, and what has vanished is made again; each repair is proved by a second look. A server
/// that answers is never restarted, and one that was stopped on purpose stays so.
///
/// Exits with 1 if anything is broken at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy self-test\n  xy self-test --no-repair --json | jq .success")]
pub(crate) struct Args {
    /// Only look, and change nothing
    #[arg(long)]
    no_repair: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let spinner = output.spinner("testing everything");
    let ask = SelfTest { repair: !args.no_repair };
    let result = link.ask_within(&Request::SelfTest(ask), Some(WITHIN))?;
    drop(spinner);
    let tested: SelfTested = read(&result)?;
    if args.json.json {
        output.json(&result)?;
    } else {
        output.print(&render::self_test::render(&tested))?;
    }
    if tested.success { Ok(()) } else { Err(Failure::Told(Exit::Failed)) }
}
