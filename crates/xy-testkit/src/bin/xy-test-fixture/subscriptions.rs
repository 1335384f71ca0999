//! Change notifications and their subscribers.
//!
//! In the modern era, a subscriber receives them on the stream of its `subscriptions/listen`
//! request. In the legacy era, they are sent on the stream of unrelated messages.

use std::collections::BTreeSet;

use crate::modern_fields;
use crate::request::{BAD_PARAMS, Request, notification};
use crate::stream::MessageSink;
use xy_testkit::json::{Members, quoted};

/// Maximum number of open subscriptions.
const MAX_LISTENERS: usize = 1000;

/// Maximum number of resources that a client may subscribe to.
pub(crate) const MAX_WATCHED: usize = 1000;

/// The key of the subscription id in the `_meta` of each message on its stream.
const ID_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// A change to report.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Tools,
    Prompts,
    Resource(&'a str),
}

/// The open subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Listener>);

#[derive(Debug)]
struct Listener {
    /// The key of the request in its session.
    key: String,
    id: String,
    out: MessageSink,
    wants_tools: bool,
    wants_prompts: bool,
    watched: BTreeSet<String>,
}

/// Opens a subscription. The request gets its response when the subscription ends.
pub(crate) fn listen(request: &Request) {
    let Some(filter) = request.params.raw("notifications").and_then(Members::of) else {
        return request.refuse(BAD_PARAMS, "which notifications?");
    };
    let watched: Option<BTreeSet<String>> =
        serde_json::from_str(filter.raw("resourceSubscriptions").unwrap_or("[]")).ok();
    let Some(watched) = watched.filter(|it| it.len() <= MAX_WATCHED) else {
        return request.refuse(BAD_PARAMS, "`resourceSubscriptions` is a list of URIs");
    };
    let wants = |name: &str| filter.raw(name) == Some("true");
    let accepted = accepted(&filter);
    let params = with_subscription_id(
        &format!(r#"{{"x-first":1.0,"notifications":{accepted}}}"#),
        &request.id,
    );
    let listener = Listener {
        key: request.key.clone(),
        id: request.id.clone(),
        out: request.out.clone(),
        wants_tools: wants("toolsListChanged"),
        wants_prompts: wants("promptsListChanged"),
        watched,
    };
    let mut state = request.session.state();
    if state.listeners.0.len() >= MAX_LISTENERS {
        drop(state);
        return request.refuse(-32603, "too many subscriptions");
    }
    // Under one lock: a client that has the acknowledgement relies on later notifications.
    let acknowledged = notification("notifications/subscriptions/acknowledged", &params);
    request.out.send(&acknowledged);
    state.listeners.0.push(listener);
}

/// Returns the supported part of a filter, unchanged. The list of resources never changes, so
/// its notification is not supported.
fn accepted(filter: &Members) -> String {
    let supported = ["resourceSubscriptions", "promptsListChanged", "toolsListChanged"];
    let supported = supported.iter().filter_map(|name| {
        let value = filter.raw(name).filter(|value| *value != "false")?;
        Some(format!(r#""{name}":{value}"#))
    });
    format!("{{{}}}", supported.collect::<Vec<_>>().join(","))
}

/// Sends a change to its subscribers. Returns false if there are none.
///
/// A legacy client always receives changes of lists, without a subscription.
pub(crate) fn notify_subscribers(request: &Request, change: Change<'_>) -> bool {
    let (method, params) = (change.method(), change.params());
    let state = request.session.state();
    if request.is_modern() {
        let subscribers = || state.listeners.0.iter().filter(|it| it.wants(change));
        for listener in subscribers() {
            listener.out.send(&notification(method, &with_subscription_id(&params, &listener.id)));
        }
        return subscribers().next().is_some();
    }
    if matches!(change, Change::Resource(uri) if !state.watched.contains(uri)) {
        return false;
    }
    drop(state);
    request.session.general.send(&notification(method, &params));
    true
}

/// Ends all subscriptions with a response, and returns their number.
pub(crate) fn end_all(request: &Request) -> usize {
    let listeners = std::mem::take(&mut request.session.state().listeners.0);
    for Listener { id, out, .. } in &listeners {
        let result = with_subscription_id(r#"{"resultType":"complete"}"#, id);
        out.send(&format!(r#"{{"result":{result},"id":{id},"jsonrpc":"2.0"}}"#));
        out.finish();
    }
    listeners.len()
}

/// Adds the subscription id to the params of a notification or to a result.
fn with_subscription_id(params: &str, id: &str) -> String {
    modern_fields::with_meta(params, ID_KEY, id)
}

impl Change<'_> {
    fn method(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resource(_) => "notifications/resources/updated",
        }
    }

    fn params(self) -> String {
        match self {
            Self::Tools | Self::Prompts => r#"{"_meta":{"x":1.0}}"#.to_owned(),
            Self::Resource(uri) => {
                let uri = quoted(uri);
                format!(r#"{{"x-first":1.0,"uri":{uri},"_meta":{{"example.com/v":2.00}}}}"#)
            }
        }
    }
}

impl Listeners {
    /// Removes the subscription of a request, if it has one.
    pub(crate) fn remove(&mut self, key: &str) {
        self.0.retain(|listener| listener.key != key);
    }
}

impl Listener {
    fn wants(&self, change: Change<'_>) -> bool {
        match change {
            Change::Tools => self.wants_tools,
            Change::Prompts => self.wants_prompts,
            Change::Resource(uri) => self.watched.contains(uri),
        }
    }
}
