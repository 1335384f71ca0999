//! `xy diagnostics`: prints a report for troubleshooting, as one JSON document.

use std::time::Duration;

use serde_json::value::RawValue;
use xy_config::Paths;
use xy_protocol::control::Request;
use xy_protocol::error::CallError;

use crate::args::Json;
use crate::failure::Failure;
use crate::link::Link;
use crate::output::Output;

/// Time limit of the request; the daemon reads all its files for the report.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Print a report for troubleshooting
///
/// Prints one JSON document to attach to a bug report: versions, paths, the settings and state of
/// each server, its last exit, its last lines of stderr, restarts and metrics. Values of
/// environment variables and headers are masked, and so is everything that looks like a secret.
/// Review the report before you share it.
///
/// Also works without a daemon; the report then says why none could be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy diagnostics > report.json")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let paths = Paths::from_env()?;
    let asked = Link::open_at(&paths)
        .and_then(|mut link| link.call_with_timeout(&Request::Diagnostics, Some(REQUEST_TIMEOUT)));
    let report = match asked {
        Err(Failure::Unreachable(why)) => {
            xy_daemon::diagnostics::without_daemon(&paths, &format_error(&why))?
        }
        asked => asked?,
    };
    if args.json.json { output.json(&report) } else { output.print(&pretty_print(&report)) }
}

/// Formats the reason why no daemon could be reached, with its hint.
fn format_error(why: &CallError) -> String {
    let hint = why.hint.as_ref().map(|hint| format!("; {hint}"));
    format!("{why}{}", hint.unwrap_or_default())
}

/// Formats the report over several lines; returns it unchanged if it is not JSON.
fn pretty_print(report: &RawValue) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(report.get()).ok();
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.unwrap_or_else(|| report.get().to_owned()) + "\n"
}
