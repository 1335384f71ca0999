//! `xy events`: shows changes of state, past ones and new ones.

use serde_json::value::RawValue;
use xy_config::Paths;
use xy_daemon::on_disk;
use xy_protocol::control::{Event, Events, Request, SkipNotice};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::changes;
use crate::verbs::logs::show_files;

/// Initial width of the name column; it grows with longer names.
const NAME_WIDTH: usize = 12;

/// Show state changes of servers as they happen
///
/// Prints one line per change: the time (UTC), the server, the old and the new state, and the
/// reason. Runs until Ctrl-C or until the daemon exits. With --history, past changes are printed
/// first, including those of earlier daemons. Without a daemon, past changes are read from the
/// journal.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy events\n  xy events github --history 20 --no-follow\n  \
    xy events --json | jq -c '[.name, .state]'")]
pub(crate) struct Args {
    /// Show only changes of this server
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Start with the last N changes
    #[arg(long, value_name = "N")]
    history: Option<u32>,
    /// Exit after the past changes
    #[arg(long, requires = "history")]
    no_follow: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let params = Events { name: args.name.clone(), history: args.history, follow: !args.no_follow };
    let mut printer = Printer::new(args.json.json);
    printer.dates = args.history.is_some();
    let paths = Paths::from_env()?;
    let mut link = match Link::open_at(&paths) {
        Err(Failure::Unreachable(why)) => {
            let (events, problem) = on_disk::read_events(&paths, &params);
            if let Some(problem) = problem {
                output.print_stderr(&format!("note: {problem}\n"));
            }
            printer.dates = true;
            return show_files(&events, "changes", why, params.follow, output, |event, output| {
                printer.print(event.method, &event.params, output).map(drop)
            });
        }
        link => link?,
    };
    link.call(&Request::Events(params))?;
    while printer.print_next(&mut link, output)? {
        if !link.client.has_more() {
            output.flush()?;
        }
    }
    Ok(())
}

/// Prints events with aligned names.
pub(super) struct Printer {
    json: bool,
    name_width: usize,
    /// True if events may be from another day or another daemon.
    dates: bool,
    before: Option<Event>,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json, name_width: NAME_WIDTH, dates: false, before: None }
    }

    /// Waits for an event and prints it. Returns false at the end of the stream.
    pub(super) fn print_next(
        &mut self,
        link: &mut Link,
        output: &mut Output,
    ) -> Result<bool, Failure> {
        let notification = link.next()?;
        self.print(&notification.method, notification.params, output)
    }

    /// Prints a notification of the stream. Returns false at its end.
    fn print(
        &mut self,
        method: &str,
        params: &RawValue,
        output: &mut Output,
    ) -> Result<bool, Failure> {
        match method {
            "event_end" => return Ok(false),
            _ if self.json => output.json(params)?,
            "event" => {
                let event: Event = read(params)?;
                self.name_width = self.name_width.max(event.name.as_str().len());
                if self.dates {
                    output.print(&changes::between(self.before.as_ref(), &event))?;
                }
                output.print(&changes::render(&event, self.name_width))?;
                self.before = Some(event);
            }
            "event_skipped" => {
                let SkipNotice { count, .. } = read(params)?;
                output.print(&changes::skipped(count, "event"))?;
            }
            _ => {} // An unknown event of a newer daemon.
        }
        Ok(true)
    }
}
