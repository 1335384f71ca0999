//! What a client of either era can do, so that a feature need not know which one it is.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use super::legacy::Legacy;
use super::modern::Modern;
use super::{Era, Peer};

/// Where a client comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The shared fixture, as if there were nothing between.
    Alone,
    /// One that is the client's own, in the same way.
    Own,
    /// All servers, each name with its server's before it.
    All,
}

impl Place {
    /// The arguments of `xy connect`.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Alone | Self::Own => &["--server", "fixture"],
            Self::All => &[],
        }
    }

    /// The path at the HTTP door.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Alone | Self::Own => "/mcp/s/fixture",
            Self::All => "/mcp",
        }
    }

    /// What is called there what the fixture calls `name`.
    pub(super) fn name(self, name: &str) -> String {
        if self == Self::All { format!("fixture__{name}") } else { name.to_owned() }
    }
}

/// Somebody who comes to a home: to that of a shared server, or to that of its own.
pub(super) struct Guest<'h> {
    pub(super) shared: &'h Home,
    pub(super) own: &'h Home,
    pub(super) peer: Peer,
}

impl<'h> Guest<'h> {
    /// A client that has just come in.
    #[track_caller]
    pub(super) fn at(&self, place: Place) -> Box<dyn Client + 'h> {
        let (era, way) = self.peer;
        let home = if place == Place::Own { self.own } else { self.shared };
        match era {
            Era::Legacy => Box::new(Legacy::begin(home, way, place)),
            Era::Modern => Box::new(Modern::begin(home, way, place)),
        }
    }
}

/// What a client can be asked by servers.
pub(super) fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": {}, "roots": {} })
}

/// What came of a request.
#[derive(Debug)]
pub(super) struct Said {
    /// The notifications that came before the answer, in order.
    pub(super) meanwhile: Vec<Value>,
    /// The whole answer.
    pub(super) answer: Value,
}

impl Said {
    /// What has come to a client on a wire, whose request `id` this is. What is told to those
    /// who listen belongs to no request, and stays for them.
    #[track_caller]
    pub(super) fn on_a_wire(client: &McpClient, id: u64) -> Self {
        let answer = client.wait_answer(id);
        let is_news = |it: &Value| {
            let method = it["method"].as_str().unwrap_or_default();
            method.ends_with("/list_changed") || method == "notifications/resources/updated"
        };
        let count = client.notifications().iter().filter(|it| !is_news(it)).count();
        let take = |_| client.wait_notification_that("that is there", |it| !is_news(it));
        Self { meanwhile: (0..count).map(take).collect(), answer }
    }

    /// The params of what came of one method before the answer.
    pub(super) fn of(&self, method: &str) -> Vec<&Value> {
        let all = self.meanwhile.iter().filter(|it| it["method"] == method);
        all.map(|it| &it["params"]).collect()
    }

    /// The only text that a tool has answered, well.
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
    fn place(&self) -> Place;

    /// Asks, and waits for the answer.
    fn ask(&self, method: &str, params: Value) -> Said;

    /// The same; what the server wants to know meanwhile, which has to be one thing, is
    /// answered with `reply`: what that was, as `method` and `params`, and what came of it.
    fn ask_and_reply(&self, method: &str, params: Value, reply: &Value) -> (Value, Said);

    /// Calls a tool, hearing what it logs from this level on; nothing without.
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Said;

    /// Calls a tool, and gives up on it once it says that it has begun.
    fn give_up(&self, tool: &str, begun: &str);

    /// Has itself told when the list of tools is another, and of this resource if there is one.
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Listening + 'c>;
}

/// A client that is told of changes until this is dropped or ended.
pub(super) trait Listening {
    /// Waits for a notification: its params.
    fn hears(&mut self, method: &str) -> Value;

    /// It has heard enough.
    fn end(self: Box<Self>);
}

impl dyn Client + '_ {
    /// Calls a tool by the fixture's own name.
    #[track_caller]
    pub(super) fn call(&self, tool: &str, arguments: Value) -> Said {
        self.ask("tools/call", self.named(tool, arguments))
    }

    /// The params of such a call.
    pub(super) fn named(&self, name: &str, arguments: Value) -> Value {
        let mut params = json!({ "name": self.place().name(name) });
        params["arguments"] = arguments;
        params
    }
}
