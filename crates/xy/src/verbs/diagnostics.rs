//! `xy diagnostics`: everything that helps to find out what is wrong, as one JSON.

use std::time::Duration;

use serde_json::value::RawValue;
use xy_config::Paths;
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::Link;
use crate::output::Output;

/// The daemon reads all files for it.
const WITHIN: Duration = Duration::from_secs(20);

/// Print everything that helps to find out what is wrong
///
/// One JSON to attach to a report of trouble: versions, paths, the settings and the state of
/// each server, its last exit and its last lines of stderr, restarts and numbers. Values of
/// environments and headers are masked, and so is everything that looks like a secret; look
/// over it all the same before you show it to others.
///
/// Works without a daemon too, and says then why there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy diagnostics > report.json")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?;
    let asked = Link::open_at(&paths)
        .and_then(|mut link| link.ask_within(&Request::Diagnostics, Some(WITHIN)));
    let report = match asked {
        Err(Failure::Unreachable(why)) => {
            xy_daemon::diagnostics::without_daemon(&paths, &told(&why))?
        }
        asked => asked?,
    };
    if args.json.json { output.json(&report) } else { output.print(&readable(&report)) }
}

/// Why no daemon was asked.
fn told(why: &CallError) -> String {
    let hint = why.hint.as_ref().map(|hint| format!("; {hint}"));
    format!("{why}{}", hint.unwrap_or_default())
}

/// On lines of its own; as it came, if it is no JSON.
fn readable(report: &RawValue) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(report.get()).ok();
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.unwrap_or_else(|| report.get().to_owned()) + "\n"
}
