//! One line of the journal, and how lines of several daemons are put together. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xy_protocol::server::{Era, ServerName, ServerState};
use xy_protocol::time::Timestamp;

use crate::instance::{ChangeKind, StateChange};

/// Of a longer reason only so many bytes are kept.
const MAX_REASON: usize = 2000;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When it happened.
    pub time: Timestamp,
    /// Which daemon saw it: numbers of different ones do not compare.
    pub boot: String,
    /// Its number; they grow, and one that is missing was skipped.
    pub seq: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A server changed its state.
    Changed(Change),
    /// A server begins a life after which it is given up, should that fail too.
    LastAttempt(Change),
    /// Somebody asked to change a server, as the reason says. Its state is what it was.
    Asked(Change),
    /// Some entries are missing here.
    Skipped {
        /// So many.
        count: u64,
    },
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Of which server.
    pub server: ServerName,
    /// The client that this instance of it is for, unless all share it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holder: Option<u64>,
    /// The era of this instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The state before.
    pub from: ServerState,
    /// The state after.
    pub to: ServerState,
    /// Why.
    pub reason: String,
    /// The leader of its processes, while there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
}

impl What {
    /// What an instance has told.
    pub(super) fn of(told: &StateChange) -> Self {
        let transition = &told.transition;
        let change = |reason: String| Change {
            server: told.key.server.clone(),
            holder: told.key.holder.client(),
            era: told.key.holder.era(),
            from: transition.from,
            to: transition.to,
            reason: shortened(reason),
            pid: told.pid,
            restart_count: told.restart_count,
        };
        match &told.kind {
            ChangeKind::State => Self::Changed(change(transition.reason.to_string())),
            ChangeKind::LastAttempt(why) => Self::LastAttempt(change(why.to_string())),
        }
    }
}

impl Entry {
    /// The change that it tells of, if it is one.
    pub fn change(&self) -> Option<&Change> {
        match &self.what {
            What::Changed(change) | What::LastAttempt(change) | What::Asked(change) => Some(change),
            What::Skipped { .. } => None,
        }
    }

    /// Whether it tells of this server, or may: nobody knows what was skipped.
    pub fn is_about(&self, server: &str) -> bool {
        self.change().is_none_or(|change| change.server.as_str() == server)
    }
}

impl Change {
    /// Somebody asked to change a server that is in this state.
    pub fn asked(server: ServerName, state: ServerState, reason: String) -> Self {
        let reason = shortened(reason);
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

fn shortened(mut reason: String) -> String {
    if reason.len() > MAX_REASON {
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        reason.push('…');
    }
    reason
}

/// What was `kept` on disk and what is in memory, each once. A line that stands there twice
/// (it was written again after an error) counts once; what is in neither is told as skipped.
pub(super) fn joined(kept: Vec<Entry>, recent: &[Arc<Entry>]) -> Vec<Arc<Entry>> {
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
        let what = What::Skipped { count };
        let Entry { time, boot, seq, .. } = Entry::clone(first);
        all.push(Arc::new(Entry { time, boot, seq: seq - 1, what }));
    }
    all.extend(recent.iter().cloned());
    all
}

/// How many of its daemon's entries are missing between the last one on disk and `first`.
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
        Entry { time, boot: boot.into(), seq, what: What::Changed(change) }
    }

    fn told(all: &[Arc<Entry>]) -> Vec<String> {
        let told = |entry: &Arc<Entry>| match &entry.what {
            What::Skipped { count } => format!("skipped {count}"),
            _ => format!("{}{}", entry.boot, entry.seq),
        };
        all.iter().map(told).collect()
    }

    fn recent(seqs: std::ops::RangeInclusive<u64>) -> Vec<Arc<Entry>> {
        seqs.map(|seq| Arc::new(entry("b", seq))).collect()
    }

    #[test]
    fn a_line_is_flat_and_has_the_words_of_the_guide() {
        let line = serde_json::to_string(&entry("b", 3)).unwrap();
        insta::assert_snapshot!(line, @r#"{"time":"2023-11-14T22:13:20.000Z","boot":"b","seq":3,"kind":"changed","server":"a","from":"starting","to":"running","reason":"ready","pid":7,"restart_count":0}"#);
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry("b", 3));
        let skipped =
            r#"{"time":"2023-11-14T22:13:20.000Z","boot":"b","seq":9,"kind":"skipped","count":4}"#;
        let read: Entry = serde_json::from_str(skipped).unwrap();
        assert_eq!(read.what, What::Skipped { count: 4 });
        assert_eq!(serde_json::to_string(&read).unwrap(), skipped);
    }

    #[test]
    fn what_is_on_disk_and_in_memory_is_told_once() {
        let kept = vec![entry("a", 8), entry("a", 9), entry("b", 1), entry("b", 2), entry("b", 3)];
        let all = joined(kept, &recent(2..=4));
        assert_eq!(told(&all), ["a8", "a9", "b1", "b2", "b3", "b4"]);
    }

    #[test]
    fn what_was_written_twice_is_told_once() {
        let kept = vec![entry("a", 1), entry("a", 2), entry("a", 1), entry("a", 2), entry("a", 3)];
        assert_eq!(told(&joined(kept, &[])), ["a1", "a2", "a3"]);
    }

    #[test]
    fn what_is_in_neither_is_told_as_skipped() {
        let kept = vec![entry("b", 1)];
        assert_eq!(told(&joined(kept, &recent(5..=6))), ["b1", "skipped 3", "b5", "b6"]);
        // Nothing of this daemon is on disk any more: it may have been taken away.
        assert_eq!(told(&joined(vec![entry("a", 9)], &recent(5..=5))), ["a9", "b5"]);
        assert_eq!(told(&joined(Vec::new(), &recent(1..=1))), ["b1"]);
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let long = shortened("é".repeat(MAX_REASON));
        assert!(long.len() <= MAX_REASON + 3 && long.ends_with('…'));
        assert_eq!(shortened("short".into()), "short");
    }
}
