//! The client's `subscriptions/listen` requests, which stay open across daemons.
//!
//! ```text
//!  pending ── acknowledged (forwarded) ──► active ◄────────────────────────────────────┐
//!                                            │ connection lost                         │
//!                                            ▼                                         │
//!                                         resuming ── acknowledged (missed changes) ───┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::value::RawValue;
use xy_mcp::members::Members;

/// The key in `_meta` that holds the id of a listen.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The fields of a filter, and the lists whose changes they select.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", "tools"),
    ("promptsListChanged", "prompts"),
    ("resourcesListChanged", "resources"),
];

/// The state of a listen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ListenState {
    /// No daemon has acknowledged it yet.
    #[default]
    Pending,
    /// The daemon has acknowledged it, and the client knows the filter.
    Active(AcceptedFilter),
    /// The connection was lost, and the next daemon has not acknowledged it yet.
    Resuming(AcceptedFilter),
}

/// The notifications that a daemon has agreed to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcceptedFilter {
    /// The lists whose changes are sent.
    lists: Vec<&'static str>,
    /// A hash of the whole filter, to detect changes.
    fingerprint: u64,
}

/// The update for the client after an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListenUpdate {
    /// True if the client does not know this filter yet.
    pub(super) is_changed: bool,
    /// The lists whose changes it may have missed.
    pub(super) missed: Vec<&'static str>,
}

impl ListenState {
    /// Handles the loss of the connection.
    pub(super) fn lost(&mut self) {
        *self = match std::mem::take(self) {
            Self::Pending => Self::Pending,
            Self::Active(filter) | Self::Resuming(filter) => Self::Resuming(filter),
        };
    }

    /// Handles an acknowledgement by a daemon.
    pub(super) fn acknowledged(&mut self, filter: AcceptedFilter) -> ListenUpdate {
        let update = match std::mem::take(self) {
            Self::Pending | Self::Active(_) => {
                ListenUpdate { is_changed: true, missed: Vec::new() }
            }
            Self::Resuming(before) => ListenUpdate {
                is_changed: before.fingerprint != filter.fingerprint,
                missed: before.lists,
            },
        };
        *self = Self::Active(filter);
        update
    }
}

impl AcceptedFilter {
    fn read(accepted: &Members<'_>) -> Self {
        let is_promised = |key: &str| accepted.get(key) == Some("true");
        let promised = LISTS.into_iter().filter(|(key, _)| is_promised(key));
        let lists = promised.map(|(_, list)| list).collect();
        Self { lists, fingerprint: fingerprint_of(accepted) }
    }
}

/// Returns a hash that is equal for equivalent filters. Order and rejected entries do not count.
fn fingerprint_of(accepted: &Members<'_>) -> u64 {
    let mut meant: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in accepted.iter() {
        let items: Vec<&str> = match serde_json::from_str::<Vec<&RawValue>>(value) {
            Ok(items) => items.into_iter().map(RawValue::get).collect(),
            Err(_) if matches!(value, "false" | "null") => Vec::new(),
            Err(_) => vec![value],
        };
        if !items.is_empty() {
            meant.entry(key).or_default().extend(items);
        }
    }
    let mut hasher = DefaultHasher::new();
    meant.hash(&mut hasher);
    hasher.finish()
}

/// Parses the params of `notifications/subscriptions/acknowledged`: the id of the listen, as raw
/// JSON, and the accepted filter.
pub(super) fn parse_acknowledged(params: Option<&str>) -> Option<(&str, AcceptedFilter)> {
    let params = Members::read(params?)?;
    let meta = Members::read(params.get("_meta")?)?;
    let accepted = params.get("notifications").and_then(Members::read).unwrap_or_default();
    Some((meta.get(SUBSCRIPTION)?, AcceptedFilter::read(&accepted)))
}

/// Appends a notification that a list may have changed, for the listen with this id.
pub(super) fn push_list_changed(list: &str, id: &str, out: &mut Vec<u8>) {
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}}}"#
    );
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
}

/// Returns true if the params continue an earlier request with input for the server.
pub(super) fn continues_request(params: Option<&str>) -> bool {
    let members = params.and_then(Members::read).unwrap_or_default();
    let has = |key| members.get(key).is_some_and(|value| value != "null");
    has("requestState") || has("inputResponses")
}
