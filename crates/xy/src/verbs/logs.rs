//! `xy logs`: shows the output of a server.

use serde_json::value::RawValue;
use xy_config::Paths;
use xy_daemon::on_disk::{self, Notification};
use xy_protocol::control::{Logs, Request, SkipNotice};
use xy_protocol::error::CallError;

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::changes::skipped;
use crate::render::log_line::{LineStyle, Record};

/// Show the output of a server
///
/// Prints the last lines of its stdout and stderr; with --follow also new ones. Control
/// characters are escaped, such as \x1b, so a line cannot control the terminal. With --json, each
/// line is an object; a reader that is too slow gets an object with a `count` of skipped lines.
/// Without a daemon, the lines are read from the log file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy logs github --tail 100\n  xy logs github -f")]
pub(crate) struct Args {
    /// The server's name
    name: String,
    /// Number of past lines to show
    #[arg(long, value_name = "N", default_value_t = xy_protocol::control::DEFAULT_TAIL)]
    tail: u32,
    /// Show new lines until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Print lines unchanged, without prefix or escaping
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print the time (UTC) before each line
    #[arg(long, short, conflicts_with = "json")]
    timestamps: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let params = Logs { name: args.name.clone(), tail: Some(args.tail), follow: args.follow };
    let style =
        LineStyle { raw: args.raw, timestamps: args.timestamps, colour: output.has_colour() };
    let mut text = String::new();
    let paths = Paths::from_env()?;
    let mut link = match Link::open_at(&paths) {
        Err(Failure::Unreachable(why)) => {
            let lines = on_disk::read_logs(&paths, &params);
            return show_files(&lines, "lines", why, args.follow, output, |line, output| {
                if args.json.json {
                    return output.json(&line.params);
                }
                show(line.method, &line.params, style, &mut text, output)
            });
        }
        link => link?,
    };
    link.call(&Request::Logs(params))?;
    loop {
        if !link.client.has_more() {
            output.flush()?; // Nothing more is buffered, so a viewer must see it now.
        }
        let notification = link.next()?;
        if notification.method == "log_end" {
            return Ok(());
        }
        if args.json.json {
            output.json(notification.params)?;
        } else {
            show(&notification.method, notification.params, style, &mut text, output)?;
        }
    }
}

/// Shows records from files if the daemon cannot be reached. Fails if there are none, or if the
/// user wants to follow new ones.
pub(super) fn show_files(
    notices: &[Notification],
    what: &str,
    why: CallError,
    follow: bool,
    output: &mut Output,
    mut show: impl FnMut(&Notification, &mut Output) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if !notices.is_empty() && !follow {
        output.print_stderr(&format!("note: {}: these {what} are from the files\n", why.message));
    }
    for notice in notices {
        show(notice, output)?;
    }
    if notices.is_empty() || follow { Err(Failure::Unreachable(why)) } else { Ok(()) }
}

fn show(
    method: &str,
    params: &RawValue,
    style: LineStyle,
    text: &mut String,
    output: &mut Output,
) -> Result<(), Failure> {
    match method {
        "log" => {
            let record: Record<'_> = serde_json::from_str(params.get())
                .map_err(|cause| Failure::internal("a log line could not be read", cause))?;
            text.clear();
            style.push(&record, text);
            if style.raw { output.write_unescaped(text) } else { output.write(text) }
        }
        "log_skipped" => {
            let SkipNotice { count, .. } = read(params)?;
            if style.raw {
                output.print_stderr(&skipped(count, "line")); // stdout carries only the server's lines.
                return Ok(());
            }
            output.print(&skipped(count, "line"))
        }
        _ => Ok(()), // An unknown notification of a newer daemon.
    }
}
