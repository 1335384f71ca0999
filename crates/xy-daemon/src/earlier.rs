//! What happened to servers under earlier daemons, for those that were taken over.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::OnceCell;
use xy_protocol::server::{ServerName, Transition};
use xy_supervisor::instance::TRANSITIONS_KEPT;
use xy_supervisor::journal::{Entry, Journal, What};
use xy_supervisor::lifecycle::Reason;

/// The latest changes of each server under earlier daemons, read when first asked for.
#[derive(Debug, Default)]
pub(crate) struct EarlierTransitions {
    changes: OnceCell<BTreeMap<ServerName, Vec<Transition>>>,
}

impl EarlierTransitions {
    /// Puts the changes of before a takeover in front of those after it, up to the number that is
    /// kept of an instance.
    pub(crate) async fn complete(
        &self,
        journal: &Journal,
        server: &ServerName,
        transitions: &mut Vec<Transition>,
    ) {
        let taken_over = Reason::Adopted.to_string();
        if transitions.first().is_none_or(|first| first.reason != taken_over) {
            return; // This daemon has seen all of it.
        }
        let read = || async {
            let journal = journal.clone();
            let reading = tokio::task::spawn_blocking(move || by_server(&journal.earlier()));
            reading.await.unwrap_or_default()
        };
        let changes = self.changes.get_or_init(read).await;
        let before = changes.get(server).map(Vec::as_slice).unwrap_or_default();
        let room = TRANSITIONS_KEPT.saturating_sub(transitions.len());
        let first = before.len().saturating_sub(room);
        transitions.splice(0..0, before[first..].iter().cloned());
    }
}

/// Sorts changes by server. Instances of single clients do not outlive a daemon.
fn by_server(entries: &[Arc<Entry>]) -> BTreeMap<ServerName, Vec<Transition>> {
    let mut all: BTreeMap<ServerName, Vec<Transition>> = BTreeMap::new();
    for entry in entries {
        let change = match &entry.what {
            What::Changed(change) if change.holder.is_none() && change.era.is_none() => change,
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
        if transitions.len() == TRANSITIONS_KEPT {
            transitions.remove(0);
        }
        transitions.push(transition);
    }
    all
}
