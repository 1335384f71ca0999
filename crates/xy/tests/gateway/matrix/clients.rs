//! Clients of either era behind one interface, so that feature tests do not depend on the era.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use super::legacy::Legacy;
use super::modern::Modern;
use super::{Era, Peer};

/// The endpoint of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// The shared fixture at its single-server endpoint.
    Alone,
    /// The client's own instance at its single-server endpoint.
    Own,
    /// All servers, with prefixed names.
    All,
}

impl Endpoint {
    /// Returns the arguments of `xy connect`.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Alone | Self::Own => &["--server", "fixture"],
            Self::All => &[],
        }
    }

    /// Returns the path of the HTTP endpoint.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Alone | Self::Own => "/mcp/s/fixture",
            Self::All => "/mcp",
        }
    }

    /// Returns the public name of the fixture's item `name`.
    pub(super) fn name(self, name: &str) -> String {
        if self == Self::All { format!("fixture__{name}") } else { name.to_owned() }
    }
}

/// Opens clients of one era and transport.
pub(super) struct ClientFactory<'h> {
    pub(super) shared: &'h Home,
    pub(super) own: &'h Home,
    pub(super) peer: Peer,
}

impl<'h> ClientFactory<'h> {
    /// Opens a client at this endpoint.
    #[track_caller]
    pub(super) fn at(&self, endpoint: Endpoint) -> Box<dyn Client + 'h> {
        let (era, transport) = self.peer;
        let home = if endpoint == Endpoint::Own { self.own } else { self.shared };
        match era {
            Era::Legacy => Box::new(Legacy::begin(home, transport, endpoint)),
            Era::Modern => Box::new(Modern::begin(home, transport, endpoint)),
        }
    }
}

/// Returns the capabilities that servers may use.
pub(super) fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": {}, "roots": {} })
}

/// A response, and the messages before it.
#[derive(Debug)]
pub(super) struct Response {
    /// The notifications before the response, in order.
    pub(super) meanwhile: Vec<Value>,
    /// The whole response.
    pub(super) answer: Value,
}

impl Response {
    /// Waits for the response to request `id` on a stdio or socket connection. List changes and
    /// resource updates belong to no request, and stay for subscriptions.
    #[track_caller]
    pub(super) fn from_connection(client: &McpClient, id: u64) -> Self {
        let answer = client.wait_answer(id);
        let is_news = |it: &Value| {
            let method = it["method"].as_str().unwrap_or_default();
            method.ends_with("/list_changed") || method == "notifications/resources/updated"
        };
        let count = client.notifications().iter().filter(|it| !is_news(it)).count();
        let take = |_| client.wait_notification_that("that is there", |it| !is_news(it));
        Self { meanwhile: (0..count).map(take).collect(), answer }
    }

    /// Returns the params of all notifications of one method before the response.
    pub(super) fn of(&self, method: &str) -> Vec<&Value> {
        let all = self.meanwhile.iter().filter(|it| it["method"] == method);
        all.map(|it| &it["params"]).collect()
    }

    /// Returns the only text of a successful tool result.
    #[track_caller]
    pub(super) fn text(&self) -> &str {
        let result = &self.answer["result"];
        let text = result["content"][0]["text"].as_str().filter(|_| result["isError"] != true);
        text.unwrap_or_else(|| panic!("no text: {}", self.answer))
    }
}

/// A client of either era.
pub(super) trait Client {
    fn home(&self) -> &Home;
    fn era(&self) -> Era;
    fn endpoint(&self) -> Endpoint;

    /// Sends a request, and waits for the response.
    fn ask(&self, method: &str, params: Value) -> Response;

    /// Sends a request in which the server requests one input, and answers it with `reply`. Returns
    /// this input request as `method` and `params`, and the response.
    fn ask_and_reply(&self, method: &str, params: Value, reply: &Value) -> (Value, Response);

    /// Calls a tool, with log messages from this level on, or without any.
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Response;

    /// Calls a tool, and cancels the call once the server has announced its start.
    fn cancel_once_started(&self, tool: &str, begun: &str);

    /// Subscribes to changes of the tool list, and of this resource if there is one.
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Subscription + 'c>;
}

/// A subscription, until it is ended.
pub(super) trait Subscription {
    /// Waits for a notification, and returns its params.
    fn wait_notification(&mut self, method: &str) -> Value;

    /// Ends the subscription.
    fn end(self: Box<Self>);
}

impl dyn Client + '_ {
    /// Calls a tool by the fixture's own name.
    #[track_caller]
    pub(super) fn call(&self, tool: &str, arguments: Value) -> Response {
        self.ask("tools/call", self.named(tool, arguments))
    }

    /// Returns the params of such a call.
    pub(super) fn named(&self, name: &str, arguments: Value) -> Value {
        let mut params = json!({ "name": self.endpoint().name(name) });
        params["arguments"] = arguments;
        params
    }
}
