//! `xy self-test`: checks all parts, repairs broken ones, and reports the result.

use std::time::Duration;

use xy_protocol::control::{Request, SelfTest, SelfTestResult};

use crate::args::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render;

/// Time limit of the request; well above the daemon's own limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Check all parts of xy and repair broken ones
///
/// Checks the daemon, each server (its process and its response to a request), the HTTP gateway,
/// folders, sockets, and orphaned processes. Restarts servers that have died or hang, and creates
/// missing files again; each repair is verified by a second check. A server that responds is
/// never restarted, and a server that was stopped on request stays stopped.
///
/// Exits with 1 if a part is still broken at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy self-test\n  xy self-test --no-repair --json | jq .success")]
pub(crate) struct Args {
    /// Only check, without repairing anything
    #[arg(long)]
    no_repair: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let mut link = Link::open()?;
    let spinner = output.spinner("testing everything");
    let params = SelfTest { repair: !args.no_repair };
    let result = link.call_with_timeout(&Request::SelfTest(params), Some(REQUEST_TIMEOUT))?;
    drop(spinner);
    let tested: SelfTestResult = read(&result)?;
    if args.json.json {
        output.json(&result)?;
    } else {
        output.print(&render::self_test::render(&tested))?;
    }
    if tested.success { Ok(()) } else { Err(Failure::Reported(Exit::Failed)) }
}
