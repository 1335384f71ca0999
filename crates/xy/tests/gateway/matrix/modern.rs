//! A client of the revision without sessions: each request says everything by itself.

use std::cell::Cell;

use serde_json::{Value, json};
use xy_testkit::{Exchange, Home, McpClient, McpModern, McpStdio};

use super::clients::{Client, Listening, Place, Said, capabilities};
use super::{Era, Way};

const PREFIX: &str = "io.modelcontextprotocol/";

pub(super) struct Modern<'h> {
    home: &'h Home,
    place: Place,
    way: Carrier,
    /// How many requests it has sent: the id of the last one.
    sent: Cell<u64>,
}

enum Carrier {
    Lines(McpStdio),
    Web(McpModern),
}

impl<'h> Modern<'h> {
    #[track_caller]
    pub(super) fn begin(home: &'h Home, way: Way, place: Place) -> Self {
        let way = match way {
            Way::Stdio => Carrier::Lines(home.mcp_connect(place.arguments())),
            Way::Http => Carrier::Web(home.mcp_modern(place.path())),
        };
        Self { home, place, way, sent: Cell::new(0) }
    }

    /// Asks, and waits for nothing.
    #[track_caller]
    fn start(&self, method: &str, params: Value) -> Talk<'_> {
        let params = with_meta(params);
        let id = self.sent.get() + 1;
        self.sent.set(id);
        let way = match &self.way {
            Carrier::Lines(client) => {
                assert_eq!(client.start_request(method, params), id);
                Talking::Lines(client)
            }
            Carrier::Web(client) => Talking::Web(client.start(method, params, &[])),
        };
        Talk { id, way }
    }

    fn call(&self, tool: &str) -> Value {
        json!({ "name": self.place.name(tool), "arguments": {} })
    }
}

/// Params with what each request has to say of its client.
fn with_meta(mut params: Value) -> Value {
    if params.is_null() {
        params = json!({});
    }
    let meta = &mut params["_meta"];
    meta[format!("{PREFIX}protocolVersion")] = json!("2026-07-28");
    meta[format!("{PREFIX}clientCapabilities")] = capabilities();
    meta[format!("{PREFIX}clientInfo")] = json!({ "name": "xy-testkit", "version": "1" });
    params
}

/// One request, and what is said of it.
struct Talk<'c> {
    id: u64,
    way: Talking<'c>,
}

enum Talking<'c> {
    Lines(&'c McpClient),
    Web(Exchange),
}

impl Talk<'_> {
    /// The answer, and what came before it.
    #[track_caller]
    fn said(self) -> Said {
        match self.way {
            Talking::Lines(client) => Said::on_a_wire(client, self.id),
            Talking::Web(mut exchange) => {
                let mut meanwhile = Vec::new();
                loop {
                    match exchange.next_message() {
                        Some(it) if it.get("method").is_some() => meanwhile.push(it),
                        Some(answer) => return Said { meanwhile, answer },
                        None => panic!("it ended without an answer; before: {meanwhile:?}"),
                    }
                }
            }
        }
    }

    /// Waits for a notification.
    #[track_caller]
    fn hears(&mut self, method: &str) -> Value {
        match &mut self.way {
            Talking::Lines(client) => client.wait_notification(method),
            Talking::Web(exchange) => loop {
                match exchange.next_message() {
                    Some(it) if it["method"] == method => return it,
                    Some(it) if it.get("method").is_some() => {}
                    other => panic!("no `{method}`, but {other:?}"),
                }
            },
        }
    }

    /// Nobody wants to hear more of it: whoever is on a wire says so, who has a stream of its
    /// own closes that.
    #[track_caller]
    fn cancel(self) {
        if let Talking::Lines(client) = self.way {
            let params = with_meta(json!({ "requestId": self.id, "reason": "enough" }));
            client.notify("notifications/cancelled", params);
        }
    }
}

impl Client for Modern<'_> {
    fn home(&self) -> &Home {
        self.home
    }

    fn era(&self) -> Era {
        Era::Modern
    }

    fn place(&self) -> Place {
        self.place
    }

    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> Said {
        let said = self.start(method, params).said();
        if let Some(result) = said.answer.get("result") {
            assert_eq!(result["resultType"], "complete", "{}", said.answer);
        }
        said
    }

    #[track_caller]
    fn ask_and_reply(&self, method: &str, mut params: Value, reply: &Value) -> (Value, Said) {
        let asking = self.start(method, params.clone()).said().answer;
        let result = &asking["result"];
        assert_eq!(result["resultType"], "input_required", "{asking}");
        let wanted = result["inputRequests"].as_object().unwrap_or_else(|| panic!("{asking}"));
        assert_eq!(wanted.len(), 1, "{asking}");
        let (key, question) = wanted.iter().next().unwrap();
        params["inputResponses"] = json!({ key: reply });
        if let Some(state) = result.get("requestState") {
            params["requestState"] = state.clone();
        }
        (question.clone(), self.ask(method, params))
    }

    #[track_caller]
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Said {
        let mut params = self.call(tool);
        if let Some(level) = level {
            params["_meta"] = json!({ format!("{PREFIX}logLevel"): level });
        }
        self.ask("tools/call", params)
    }

    #[track_caller]
    fn give_up(&self, tool: &str, begun: &str) {
        let mut talk = self.start("tools/call", self.call(tool));
        talk.hears(begun);
        let id = talk.id;
        talk.cancel();
        let last = self.ask("tools/call", self.call("last_cancelled")).answer;
        assert!(last["result"]["isError"] != true, "it has not heard of it: {last}");
        if let Carrier::Lines(client) = &self.way {
            let answer = client.answer_within(id, std::time::Duration::ZERO);
            assert_eq!(answer, None, "what is cancelled is not answered");
        }
    }

    #[track_caller]
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Listening + 'c> {
        let mut wanted = json!({ "toolsListChanged": true });
        if let Some(uri) = uri {
            wanted["resourceSubscriptions"] = json!([uri]);
        }
        let talk = self.start("subscriptions/listen", json!({ "notifications": wanted }));
        let mut ear = Ear(talk);
        let accepted = ear.hears("notifications/subscriptions/acknowledged");
        assert_eq!(accepted["notifications"], wanted, "{accepted}");
        Box::new(ear)
    }
}

/// A request that is open for as long as somebody listens.
struct Ear<'c>(Talk<'c>);

impl Listening for Ear<'_> {
    #[track_caller]
    fn hears(&mut self, method: &str) -> Value {
        let told = self.0.hears(method);
        let id = &told["params"]["_meta"][format!("{PREFIX}subscriptionId")];
        assert_eq!(*id, self.0.id, "whose is it? {told}");
        told["params"].clone()
    }

    fn end(self: Box<Self>) {
        self.0.cancel();
    }
}
