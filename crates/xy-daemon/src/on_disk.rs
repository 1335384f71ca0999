//! The answers to `logs` and `events` from files, when no daemon is running.
//!
//! They are notifications as a daemon sends them, so that clients show both alike.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use xy_config::Paths;
use xy_protocol::control::{DEFAULT_TAIL, Events, Logs, SkipNotice};
use xy_protocol::server::ServerName;
use xy_supervisor::journal::{self, EntryKind};
use xy_supervisor::logs::history::History;
use xy_supervisor::logs::log_file;

use crate::handlers::{events, logs};

/// The default number of state changes that are shown.
const DEFAULT_HISTORY: u32 = 20;

/// The subscription id of notifications that no daemon sent.
const NO_SUBSCRIPTION: u64 = 0;

/// A notification of a log or event stream.
#[derive(Debug)]
pub struct Notification {
    /// The method: `log` or `event`, for example.
    pub method: &'static str,
    /// The parameters of the notification.
    pub params: Box<RawValue>,
}

/// Returns the last lines in the log of a server; none if it has no log.
pub fn read_logs(paths: &Paths, params: &Logs) -> Vec<Notification> {
    let Ok(name) = ServerName::new(&params.name) else { return Vec::new() };
    let count = usize::try_from(params.tail.unwrap_or(DEFAULT_TAIL)).unwrap_or(usize::MAX);
    let history = History::note(&log_file(&paths.logs_dir, &name));
    let lines = history.map(|history| history.last_lines(count)).unwrap_or_default();
    let notifications =
        lines.iter().map(|line| notification("log", &logs::log_line(NO_SUBSCRIPTION, &name, line)));
    notifications.flatten().collect()
}

/// Returns the latest state changes in the journal, of one server or of all. Also returns the
/// problem that kept some from being read.
pub fn read_events(paths: &Paths, params: &Events) -> (Vec<Notification>, Option<String>) {
    let (entries, problem) = journal::read_disk(&paths.events_file);
    let name = params.name.as_deref();
    let mut chosen: Vec<_> =
        entries.iter().filter(|entry| name.is_none_or(|name| entry.is_about(name))).collect();
    if chosen.iter().all(|entry| entry.change().is_none()) {
        return (Vec::new(), problem); // The server is unknown.
    }
    let count = usize::try_from(params.history.unwrap_or(DEFAULT_HISTORY)).unwrap_or(usize::MAX);
    let chosen = chosen.split_off(chosen.len().saturating_sub(count));
    let notifications = chosen.into_iter().filter_map(|entry| match entry.kind {
        EntryKind::Skipped { count } => {
            notification("event_skipped", &SkipNotice { subscription_id: NO_SUBSCRIPTION, count })
        }
        _ => notification("event", &events::event(NO_SUBSCRIPTION, entry)?),
    });
    (notifications.collect(), problem)
}

fn notification(method: &'static str, params: &impl Serialize) -> Option<Notification> {
    Some(Notification { method, params: to_raw_value(params).ok()? })
}
