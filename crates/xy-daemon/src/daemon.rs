//! What every handler can reach.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;
use xy_config::Paths;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::fleet::{Closed, Fleet, Member};

/// A name this unlike every known one gets no suggestion.
const LIKENESS: f64 = 0.7;

/// The daemon, as its handlers see it.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) fleet: Fleet,
    pub(crate) paths: Paths,
    pub(crate) started_at: Instant,
    /// Turns true when the daemon shall end.
    pub(crate) ending: watch::Sender<bool>,
    next_subscription: AtomicU64,
}

impl Daemon {
    pub(crate) fn new(fleet: Fleet, paths: Paths) -> Self {
        Self {
            fleet,
            paths,
            started_at: Instant::now(),
            ending: watch::Sender::new(false),
            next_subscription: AtomicU64::new(1),
        }
    }

    /// A number for a new stream, never given twice.
    pub(crate) fn new_subscription(&self) -> u64 {
        self.next_subscription.fetch_add(1, Ordering::Relaxed)
    }

    /// The server of this name, or an error that names the nearest.
    pub(crate) fn find(&self, name: &str) -> Result<Member, CallError> {
        let roster = self.fleet.roster();
        roster.get(name).cloned().ok_or_else(|| self.not_found(name))
    }

    pub(crate) fn not_found(&self, name: &str) -> CallError {
        let roster = self.fleet.roster();
        let nearest = roster
            .keys()
            .map(|known| (strsim::jaro_winkler(name, known.as_str()), known))
            .filter(|(likeness, _)| *likeness >= LIKENESS)
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        let hint = match nearest {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None => "`xy list` shows all servers".to_owned(),
        };
        let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        CallError::new(ErrorKind::ServerNotFound, format!("no server named `{shown}`")).hint(hint)
    }
}

/// The daemon is going while somebody still asks.
pub(crate) fn closed(Closed: Closed) -> CallError {
    CallError::new(ErrorKind::NotAllowed, "the daemon is shutting down")
        .hint("start it again with `xy daemon`")
}
