//! A client of the revisions with `initialize`.

use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpStdio};

use super::clients::{Client, Listening, Place, Said, capabilities};
use super::{Era, Way};

pub(super) struct Legacy<'h> {
    home: &'h Home,
    place: Place,
    way: Carrier,
}

enum Carrier {
    Lines(McpStdio),
    /// With its stream for what belongs to no request.
    Web(McpHttp),
}

impl Deref for Legacy<'_> {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        match &self.way {
            Carrier::Lines(client) => client,
            Carrier::Web(client) => client,
        }
    }
}

impl<'h> Legacy<'h> {
    #[track_caller]
    pub(super) fn begin(home: &'h Home, way: Way, place: Place) -> Self {
        let way = match way {
            Way::Stdio => Carrier::Lines(home.mcp_connect(place.arguments())),
            Way::Http => Carrier::Web(home.mcp_http(place.path())),
        };
        let legacy = Self { home, place, way };
        let hello = legacy.initialize_with(&capabilities());
        assert_eq!(hello["protocolVersion"], "2025-11-25", "{hello}");
        if let Carrier::Web(client) = &legacy.way {
            assert_eq!(client.open_stream(), 200);
        }
        legacy
    }
}

impl Client for Legacy<'_> {
    fn home(&self) -> &Home {
        self.home
    }

    fn era(&self) -> Era {
        Era::Legacy
    }

    fn place(&self) -> Place {
        self.place
    }

    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> Said {
        Said::on_a_wire(self, self.start_request(method, params))
    }

    #[track_caller]
    fn ask_and_reply(&self, method: &str, params: Value, reply: &Value) -> (Value, Said) {
        let id = self.start_request(method, params);
        let question = self.wait_question();
        self.answer(&question, Ok(reply.clone()));
        let said = Said::on_a_wire(self, id);
        let asked = json!({ "method": question["method"], "params": question["params"] });
        (asked, said)
    }

    #[track_caller]
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Said {
        if let Some(level) = level {
            let set = self.request("logging/setLevel", json!({ "level": level }));
            assert_eq!(set["result"], json!({}), "{set}");
        }
        self.ask("tools/call", json!({ "name": self.place.name(tool) }))
    }

    #[track_caller]
    fn give_up(&self, tool: &str, begun: &str) {
        let id = self.start_call(&self.place.name(tool), json!({}));
        self.wait_notification(begun);
        self.notify("notifications/cancelled", json!({ "requestId": id, "reason": "enough" }));
        let last = self.call(&self.place.name("last_cancelled"), json!({}));
        assert!(last["result"]["isError"] != true, "it has not heard of it: {last}");
        let answer = self.answer_within(id, Duration::ZERO);
        assert_eq!(answer, None, "what is cancelled is not answered");
    }

    #[track_caller]
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Listening + 'c> {
        if let Some(uri) = uri {
            let answer = self.request("resources/subscribe", json!({ "uri": uri }));
            assert_eq!(answer["result"], json!({}), "{answer}");
        }
        Box::new(Ear { client: self, uri: uri.map(str::to_owned) })
    }
}

/// Every client with a session is told, on the way that belongs to no request.
struct Ear<'c> {
    client: &'c McpClient,
    uri: Option<String>,
}

impl Listening for Ear<'_> {
    #[track_caller]
    fn hears(&mut self, method: &str) -> Value {
        let told = self.client.wait_notification(method);
        let key = "io.modelcontextprotocol/subscriptionId";
        assert_eq!(told["params"]["_meta"].get(key), None, "that is of the other era: {told}");
        told["params"].clone()
    }

    #[track_caller]
    fn end(self: Box<Self>) {
        if let Some(uri) = &self.uri {
            let answer = self.client.request("resources/unsubscribe", json!({ "uri": uri }));
            assert_eq!(answer["result"], json!({}), "{answer}");
        }
    }
}
