//! A client of the revisions with `initialize`.

use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpStdio};

use super::clients::{Client, Endpoint, Response, Subscription, capabilities};
use super::{Era, Transport};

pub(super) struct Legacy<'h> {
    home: &'h Home,
    endpoint: Endpoint,
    transport: Connection,
}

enum Connection {
    Stdio(McpStdio),
    /// With a stream for unrelated messages.
    Http(McpHttp),
}

impl Deref for Legacy<'_> {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        match &self.transport {
            Connection::Stdio(client) => client,
            Connection::Http(client) => client,
        }
    }
}

impl<'h> Legacy<'h> {
    #[track_caller]
    pub(super) fn begin(home: &'h Home, transport: Transport, endpoint: Endpoint) -> Self {
        let transport = match transport {
            Transport::Stdio => Connection::Stdio(home.mcp_connect(endpoint.arguments())),
            Transport::Http => Connection::Http(home.mcp_http(endpoint.path())),
        };
        let legacy = Self { home, endpoint, transport };
        let hello = legacy.initialize_with(&capabilities());
        assert_eq!(hello["protocolVersion"], "2025-11-25", "{hello}");
        if let Connection::Http(client) = &legacy.transport {
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

    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> Response {
        Response::from_connection(self, self.start_request(method, params))
    }

    #[track_caller]
    fn ask_and_reply(&self, method: &str, params: Value, reply: &Value) -> (Value, Response) {
        let id = self.start_request(method, params);
        let question = self.wait_question();
        self.answer(&question, Ok(reply.clone()));
        let response = Response::from_connection(self, id);
        let request = json!({ "method": question["method"], "params": question["params"] });
        (request, response)
    }

    #[track_caller]
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Response {
        if let Some(level) = level {
            let set = self.request("logging/setLevel", json!({ "level": level }));
            assert_eq!(set["result"], json!({}), "{set}");
        }
        self.ask("tools/call", json!({ "name": self.endpoint.name(tool) }))
    }

    #[track_caller]
    fn cancel_once_started(&self, tool: &str, begun: &str) {
        let id = self.start_call(&self.endpoint.name(tool), json!({}));
        self.wait_notification(begun);
        self.notify("notifications/cancelled", json!({ "requestId": id, "reason": "enough" }));
        let last = self.call(&self.endpoint.name("last_cancelled"), json!({}));
        assert!(
            last["result"]["isError"] != true,
            "the server has not received the cancellation: {last}"
        );
        let answer = self.answer_within(id, Duration::ZERO);
        assert_eq!(answer, None, "a cancelled call is not answered");
    }

    #[track_caller]
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Subscription + 'c> {
        if let Some(uri) = uri {
            let answer = self.request("resources/subscribe", json!({ "uri": uri }));
            assert_eq!(answer["result"], json!({}), "{answer}");
        }
        Box::new(ListChanges { client: self, uri: uri.map(str::to_owned) })
    }
}

/// A subscription of a client with a session, which receives changes as unrelated messages.
struct ListChanges<'c> {
    client: &'c McpClient,
    uri: Option<String>,
}

impl Subscription for ListChanges<'_> {
    #[track_caller]
    fn wait_notification(&mut self, method: &str) -> Value {
        let notification = self.client.wait_notification(method);
        let key = "io.modelcontextprotocol/subscriptionId";
        assert_eq!(
            notification["params"]["_meta"].get(key),
            None,
            "that is of the other era: {notification}"
        );
        notification["params"].clone()
    }

    #[track_caller]
    fn end(self: Box<Self>) {
        if let Some(uri) = &self.uri {
            let answer = self.client.request("resources/unsubscribe", json!({ "uri": uri }));
            assert_eq!(answer["result"], json!({}), "{answer}");
        }
    }
}
