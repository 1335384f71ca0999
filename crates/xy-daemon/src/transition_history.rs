//! State changes of servers under earlier daemons, for servers that were taken over.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::OnceCell;
use xy_protocol::server::{ServerName, Transition};
use xy_supervisor::instance::MAX_TRANSITIONS;
use xy_supervisor::journal::{Entry, EntryKind, Journal};
use xy_supervisor::lifecycle::Reason;

/// The latest state changes of each server under earlier daemons, read from the journal when first
/// needed.
#[derive(Debug, Default)]
pub(crate) struct TransitionHistory {
    changes: OnceCell<BTreeMap<ServerName, Vec<Transition>>>,
}

impl TransitionHistory {
    /// Inserts the changes from before a takeover in front of those after it, up to the number that
    /// is kept per instance.
    pub(crate) async fn prepend_to(
        &self,
        journal: &Journal,
        server: &ServerName,
        transitions: &mut Vec<Transition>,
    ) {
        let taken_over = Reason::Adopted.to_string();
        if transitions.first().is_none_or(|first| first.reason != taken_over) {
            return; // This daemon has recorded all changes.
        }
        let read = || async {
            let journal = journal.clone();
            let reading = tokio::task::spawn_blocking(move || by_server(&journal.earlier()));
            reading.await.unwrap_or_default()
        };
        let changes = self.changes.get_or_init(read).await;
        let before = changes.get(server).map(Vec::as_slice).unwrap_or_default();
        let room = MAX_TRANSITIONS.saturating_sub(transitions.len());
        let first = before.len().saturating_sub(room);
        transitions.splice(0..0, before[first..].iter().cloned());
    }
}

/// Groups changes by server. Instances of single clients do not outlive a daemon.
fn by_server(entries: &[Arc<Entry>]) -> BTreeMap<ServerName, Vec<Transition>> {
    let mut all: BTreeMap<ServerName, Vec<Transition>> = BTreeMap::new();
    for entry in entries {
        let change = match &entry.kind {
            EntryKind::Changed(change) if change.holder.is_none() && change.era.is_none() => change,
            _ => continue,
        };
        let transition = Transition {
            from: change.from,
            to: change.to,
            reason: change.reason.clone(),
            at: entry.time,
            last_attempt: None,
        };
        let transitions = all.entry(change.server.clone()).or_default();
        if transitions.len() == MAX_TRANSITIONS {
            transitions.remove(0);
        }
        transitions.push(transition);
    }
    all
}
