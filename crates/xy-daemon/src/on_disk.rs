//! The answers of `logs` and `events` that the files hold when no daemon can be asked.
//!
//! They are notifications as a daemon sends them, so that front ends show both alike.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use xy_config::Paths;
use xy_protocol::control::{DEFAULT_TAIL, Events, Logs, Skipped};
use xy_protocol::server::ServerName;
use xy_supervisor::journal::{self, What};
use xy_supervisor::logs::history::History;
use xy_supervisor::logs::log_file;

use crate::handlers::{events, logs};

/// Changes that are shown if nobody says how many.
const DEFAULT_HISTORY: u32 = 20;

/// No daemon has given a stream a number.
const NO_SUBSCRIPTION: u64 = 0;

/// A notification of a stream.
#[derive(Debug)]
pub struct Notice {
    /// The method: `log` or `event`, for example.
    pub method: &'static str,
    /// The params.
    pub params: Box<RawValue>,
}

/// Returns the last lines in the log of a server; none if there is no such log.
pub fn read_logs(paths: &Paths, ask: &Logs) -> Vec<Notice> {
    let Ok(name) = ServerName::new(&ask.name) else { return Vec::new() };
    let count = usize::try_from(ask.tail.unwrap_or(DEFAULT_TAIL)).unwrap_or(usize::MAX);
    let history = History::note(&log_file(&paths.logs_dir, &name));
    let lines = history.map(|history| history.last_lines(count)).unwrap_or_default();
    let notices =
        lines.iter().map(|line| notice("log", &logs::log_line(NO_SUBSCRIPTION, &name, line)));
    notices.flatten().collect()
}

/// Returns the latest changes in the journal, of one server or of all, and what kept some from
/// being read.
pub fn read_events(paths: &Paths, ask: &Events) -> (Vec<Notice>, Option<String>) {
    let (entries, problem) = journal::read_disk(&paths.events_file);
    let name = ask.name.as_deref();
    let mut chosen: Vec<_> =
        entries.iter().filter(|entry| name.is_none_or(|name| entry.is_about(name))).collect();
    if chosen.iter().all(|entry| entry.change().is_none()) {
        return (Vec::new(), problem); // Nothing is known of it.
    }
    let count = usize::try_from(ask.history.unwrap_or(DEFAULT_HISTORY)).unwrap_or(usize::MAX);
    let chosen = chosen.split_off(chosen.len().saturating_sub(count));
    let notices = chosen.into_iter().filter_map(|entry| match entry.what {
        What::Skipped { count } => {
            notice("event_skipped", &Skipped { subscription_id: NO_SUBSCRIPTION, count })
        }
        _ => notice("event", &events::event(NO_SUBSCRIPTION, entry)?),
    });
    (notices.collect(), problem)
}

fn notice(method: &'static str, params: &impl Serialize) -> Option<Notice> {
    Some(Notice { method, params: to_raw_value(params).ok()? })
}
