//! The entries of the journal, and the merge of entries on disk and in memory. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xy_protocol::server::{Era, ServerName, ServerState};
use xy_protocol::time::Timestamp;

use crate::instance::{ChangeKind, StateChange};

/// Maximum bytes of a reason; a longer one is truncated.
const MAX_REASON_BYTES: usize = 2000;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The time of the event.
    pub time: Timestamp,
    /// The identity of the daemon run. Numbers of different runs do not compare.
    pub boot: String,
    /// The number of the entry. Numbers grow, and a missing number was skipped.
    pub seq: u64,
    /// The event.
    #[serde(flatten)]
    pub kind: EntryKind,
}

/// The event of a journal entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryKind {
    /// A server changed its state.
    Changed(Change),
    /// A server starts a life that is the last attempt. If it fails, the server is given up.
    LastAttempt(Change),
    /// A user requested a change of a server, as the reason says. Its state has not changed.
    #[serde(rename = "asked")]
    Requested(Change),
    /// Entries are missing here.
    Skipped {
        /// The number of missing entries.
        count: u64,
    },
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The server.
    pub server: ServerName,
    /// The client that the instance serves, unless it is shared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holder: Option<u64>,
    /// The era of the instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub to: ServerState,
    /// The reason of the change.
    pub reason: String,
    /// The leader of its processes, while there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
}

impl EntryKind {
    /// Creates the event of a broadcast change.
    pub(super) fn of(state_change: &StateChange) -> Self {
        let transition = &state_change.transition;
        let change = |reason: String| Change {
            server: state_change.key.server.clone(),
            holder: state_change.key.holder.client(),
            era: state_change.key.holder.era(),
            from: transition.from,
            to: transition.to,
            reason: truncated(reason),
            pid: state_change.pid,
            restart_count: state_change.restart_count,
        };
        match &state_change.kind {
            ChangeKind::State => Self::Changed(change(transition.reason.to_string())),
            ChangeKind::LastAttempt(why) => Self::LastAttempt(change(why.to_string())),
        }
    }
}

impl Entry {
    /// Returns the change of the entry, unless entries are missing here.
    pub fn change(&self) -> Option<&Change> {
        match &self.kind {
            EntryKind::Changed(change)
            | EntryKind::LastAttempt(change)
            | EntryKind::Requested(change) => Some(change),
            EntryKind::Skipped { .. } => None,
        }
    }

    /// Returns true if the entry concerns this server, or may, as skipped entries are unknown.
    pub fn is_about(&self, server: &str) -> bool {
        self.change().is_none_or(|change| change.server.as_str() == server)
    }
}

impl Change {
    /// Creates the record of a user's request to change a server in this state.
    pub fn requested(server: ServerName, state: ServerState, reason: String) -> Self {
        let reason = truncated(reason);
        Self {
            server,
            holder: None,
            era: None,
            from: state,
            to: state,
            reason,
            pid: None,
            restart_count: 0,
        }
    }
}

fn truncated(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push('…');
    }
    reason
}

/// Merges the entries on disk with the recent ones in memory, each once. A line that was written
/// again after an error counts once. Entries in neither become a count of skipped entries.
pub(super) fn merge(kept: Vec<Entry>, recent: &[Arc<Entry>]) -> Vec<Arc<Entry>> {
    let first = recent.first();
    let is_recent = |entry: &Entry| {
        first.is_some_and(|first| entry.boot == first.boot && entry.seq >= first.seq)
    };
    let mut last_of: HashMap<String, u64> = HashMap::new();
    let mut all: Vec<Arc<Entry>> = Vec::with_capacity(kept.len() + recent.len());
    for entry in kept.into_iter().filter(|entry| !is_recent(entry)) {
        let last = last_of.entry(entry.boot.clone()).or_insert(0);
        if entry.seq > *last {
            *last = entry.seq;
            all.push(Arc::new(entry));
        }
    }
    if let Some(first) = first
        && let Some(count) = missing_before(first, last_of.get(&first.boot).copied())
    {
        let kind = EntryKind::Skipped { count };
        let Entry { time, boot, seq, .. } = Entry::clone(first);
        all.push(Arc::new(Entry { time, boot, seq: seq - 1, kind }));
    }
    all.extend(recent.iter().cloned());
    all
}

/// Returns how many entries of the same daemon run are missing between the last one on disk and
/// `first`.
fn missing_before(first: &Entry, last_kept: Option<u64>) -> Option<u64> {
    let count = (first.seq - 1).checked_sub(last_kept?)?;
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(boot: &str, seq: u64) -> Entry {
        let change = Change {
            server: ServerName::new("a").unwrap(),
            holder: None,
            era: None,
            from: ServerState::Starting,
            to: ServerState::Running,
            reason: "ready".into(),
            pid: Some(7),
            restart_count: 0,
        };
        let time = Timestamp::from_unix_millis(1_700_000_000_000);
        Entry { time, boot: boot.into(), seq, kind: EntryKind::Changed(change) }
    }

    fn shown(all: &[Arc<Entry>]) -> Vec<String> {
        let shown = |entry: &Arc<Entry>| match &entry.kind {
            EntryKind::Skipped { count } => format!("skipped {count}"),
            _ => format!("{}{}", entry.boot, entry.seq),
        };
        all.iter().map(shown).collect()
    }

    fn recent(seqs: std::ops::RangeInclusive<u64>) -> Vec<Arc<Entry>> {
        seqs.map(|seq| Arc::new(entry("b", seq))).collect()
    }

    #[test]
    fn entry_is_one_flat_object() {
        let line = serde_json::to_string(&entry("b", 3)).unwrap();
        insta::assert_snapshot!(line, @r#"{"time":"2023-11-14T22:13:20.000Z","boot":"b","seq":3,"kind":"changed","server":"a","from":"starting","to":"running","reason":"ready","pid":7,"restart_count":0}"#);
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry("b", 3));
        let skipped =
            r#"{"time":"2023-11-14T22:13:20.000Z","boot":"b","seq":9,"kind":"skipped","count":4}"#;
        let read: Entry = serde_json::from_str(skipped).unwrap();
        assert_eq!(read.kind, EntryKind::Skipped { count: 4 });
        assert_eq!(serde_json::to_string(&read).unwrap(), skipped);
    }

    #[test]
    fn entry_on_disk_and_in_memory_is_returned_once() {
        let kept = vec![entry("a", 8), entry("a", 9), entry("b", 1), entry("b", 2), entry("b", 3)];
        let all = merge(kept, &recent(2..=4));
        assert_eq!(shown(&all), ["a8", "a9", "b1", "b2", "b3", "b4"]);
    }

    #[test]
    fn entry_written_twice_is_returned_once() {
        let kept = vec![entry("a", 1), entry("a", 2), entry("a", 1), entry("a", 2), entry("a", 3)];
        assert_eq!(shown(&merge(kept, &[])), ["a1", "a2", "a3"]);
    }

    #[test]
    fn missing_entries_are_counted_as_skipped() {
        let kept = vec![entry("b", 1)];
        assert_eq!(shown(&merge(kept, &recent(5..=6))), ["b1", "skipped 3", "b5", "b6"]);
        // No entry of this daemon run is on disk any more: the files may have been deleted.
        assert_eq!(shown(&merge(vec![entry("a", 9)], &recent(5..=5))), ["a9", "b5"]);
        assert_eq!(shown(&merge(Vec::new(), &recent(1..=1))), ["b1"]);
    }

    #[test]
    fn reason_is_truncated_between_characters() {
        let long = truncated("é".repeat(MAX_REASON_BYTES));
        assert!(long.len() <= MAX_REASON_BYTES + 3 && long.ends_with('…'));
        assert_eq!(truncated("short".into()), "short");
    }
}
