//! A `subscriptions/listen` of the client's: open for as long as it wants, whichever daemon
//! it is that tells it something.
//!
//! ```text
//!  asked ── acknowledged: the client hears it ──► promised ◄─────────────┐
//!                                                    │ connection lost    │ acknowledged: the
//!                                                    ▼                    │ client hears what it
//!                                                 renewed ────────────────┘ may have missed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::value::RawValue;
use xy_mcp::members::Members;

/// The key of `_meta` by which the client tells its listens apart.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The lists, by what says that their changes are told.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", "tools"),
    ("promptsListChanged", "prompts"),
    ("resourcesListChanged", "resources"),
];

/// How far a listen has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Listening {
    /// Nobody has said yet what will be told.
    #[default]
    Asked,
    /// The client knows what it will be told.
    Promised(Promise),
    /// Whoever promised this has gone, and the next daemon has not said what it promises.
    Renewed(Promise),
}

/// What a daemon will tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Promise {
    /// The lists whose changes are told.
    lists: Vec<&'static str>,
    /// Differs if anything else is promised.
    print: u64,
}

/// What the client has to hear when a daemon has made its promise.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// It does not know the promise itself yet.
    pub(super) promise: bool,
    /// Changes of these lists it may have missed.
    pub(super) missed: Vec<&'static str>,
}

impl Listening {
    /// Whoever tells it things has gone.
    pub(super) fn lost(&mut self) {
        *self = match std::mem::take(self) {
            Self::Asked => Self::Asked,
            Self::Promised(promise) | Self::Renewed(promise) => Self::Renewed(promise),
        };
    }

    /// A daemon says what it will tell.
    pub(super) fn acknowledged(&mut self, promise: Promise) -> Told {
        let told = match std::mem::take(self) {
            Self::Asked | Self::Promised(_) => Told { promise: true, missed: Vec::new() },
            Self::Renewed(before) => {
                Told { promise: before.print != promise.print, missed: before.lists }
            }
        };
        *self = Self::Promised(promise);
        told
    }
}

impl Promise {
    fn read(accepted: &Members<'_>) -> Self {
        let is_promised = |key: &str| accepted.get(key) == Some("true");
        let promised = LISTS.into_iter().filter(|(key, _)| is_promised(key));
        Self { lists: promised.map(|(_, list)| list).collect(), print: print_of(accepted) }
    }
}

/// The same for whatever means the same: an order means nothing, nor does what is not accepted.
fn print_of(accepted: &Members<'_>) -> u64 {
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

/// Which listen a `notifications/subscriptions/acknowledged` is about, as it is written, and
/// what it promises.
pub(super) fn promise_in(params: Option<&str>) -> Option<(&str, Promise)> {
    let params = Members::read(params?)?;
    let meta = Members::read(params.get("_meta")?)?;
    let accepted = params.get("notifications").and_then(Members::read).unwrap_or_default();
    Some((meta.get(SUBSCRIPTION)?, Promise::read(&accepted)))
}

/// Appends that a list may have changed, for whoever listens under this id.
pub(super) fn changed(list: &str, id: &str, out: &mut Vec<u8>) {
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}}}"#
    );
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
}

/// Whether the params of a request repeat it with what the server wanted to know, and so go on
/// with something that has begun.
pub(super) fn is_another_round(params: Option<&str>) -> bool {
    let members = params.and_then(Members::read).unwrap_or_default();
    let has = |key| members.get(key).is_some_and(|value| value != "null");
    has("requestState") || has("inputResponses")
}
