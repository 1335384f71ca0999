//! Who wants to hear of changes, and how they are told: in the modern era each on the stream
//! of its own `subscriptions/listen`, in the legacy one on that for what belongs to no request.

use std::collections::BTreeSet;

use crate::dress;
use crate::request::{BAD_PARAMS, Request, notification};
use crate::stream::Out;
use xy_testkit::json::{Members, quoted};

/// More than any test opens.
const MOST_LISTENERS: usize = 1000;

/// More resources than any test watches.
pub(crate) const MOST_WATCHED: usize = 1000;

/// Every notification on a stream says whose it is.
const ID_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// Something that is another now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Tools,
    Prompts,
    Resource(&'a str),
}

/// The open streams.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Listener>);

#[derive(Debug)]
struct Listener {
    /// What its request is remembered by.
    key: String,
    id: String,
    out: Out,
    wants_tools: bool,
    wants_prompts: bool,
    watched: BTreeSet<String>,
}

/// Opens a stream: the request is not answered before it ends.
pub(crate) fn listen(request: &Request) {
    let Some(filter) = request.params.raw("notifications").and_then(Members::of) else {
        return request.refuse(BAD_PARAMS, "which notifications?");
    };
    let watched: Option<BTreeSet<String>> =
        serde_json::from_str(filter.raw("resourceSubscriptions").unwrap_or("[]")).ok();
    let Some(watched) = watched.filter(|it| it.len() <= MOST_WATCHED) else {
        return request.refuse(BAD_PARAMS, "`resourceSubscriptions` is a list of URIs");
    };
    let wants = |name: &str| filter.raw(name) == Some("true");
    let accepted = accepted(&filter);
    let params = tagged(&format!(r#"{{"x-first":1.0,"notifications":{accepted}}}"#), &request.id);
    let listener = Listener {
        key: request.key.clone(),
        id: request.id.clone(),
        out: request.out.clone(),
        wants_tools: wants("toolsListChanged"),
        wants_prompts: wants("promptsListChanged"),
        watched,
    };
    let mut state = request.session.state();
    if state.listeners.0.len() >= MOST_LISTENERS {
        drop(state);
        return request.refuse(-32603, "too many subscriptions");
    }
    // Both at once: whoever has heard the one counts on the other.
    let acknowledged = notification("notifications/subscriptions/acknowledged", &params);
    request.out.say(&acknowledged);
    state.listeners.0.push(listener);
}

/// The part of a filter that is heeded, as it came: lists of resources never change here.
fn accepted(filter: &Members) -> String {
    let heeded = ["resourceSubscriptions", "promptsListChanged", "toolsListChanged"];
    let heeded = heeded.iter().filter_map(|name| {
        let value = filter.raw(name).filter(|value| *value != "false")?;
        Some(format!(r#""{name}":{value}"#))
    });
    format!("{{{}}}", heeded.collect::<Vec<_>>().join(","))
}

/// Tells whoever wants to know: whether anybody does.
pub(crate) fn tell(request: &Request, change: Change<'_>) -> bool {
    let (method, params) = (change.method(), change.params());
    let state = request.session.state();
    if request.is_modern() {
        let wanting = || state.listeners.0.iter().filter(|it| it.wants(change));
        for listener in wanting() {
            listener.out.say(&notification(method, &tagged(&params, &listener.id)));
        }
        return wanting().next().is_some();
    }
    if matches!(change, Change::Resource(uri) if !state.watched.contains(uri)) {
        return false;
    }
    drop(state);
    request.session.general.say(&notification(method, &params));
    true
}

/// Ends every stream, in good order.
pub(crate) fn end_all(request: &Request) -> usize {
    let listeners = std::mem::take(&mut request.session.state().listeners.0);
    for Listener { id, out, .. } in &listeners {
        let result = tagged(r#"{"resultType":"complete"}"#, id);
        out.say(&format!(r#"{{"result":{result},"id":{id},"jsonrpc":"2.0"}}"#));
        out.finish();
    }
    listeners.len()
}

/// Params, or a result, with the id of the stream.
fn tagged(params: &str, id: &str) -> String {
    dress::with_meta(params, ID_KEY, id)
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
    /// Forgets the stream of a request, if it is one.
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
