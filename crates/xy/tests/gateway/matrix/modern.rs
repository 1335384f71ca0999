//! A client of the modern revision, whose requests carry all metadata.

use std::cell::Cell;

use serde_json::{Value, json};
use xy_testkit::{Exchange, Home, McpClient, McpModern, McpStdio};

use super::clients::{Client, Endpoint, Response, Subscription, capabilities};
use super::{Era, Transport};

const PREFIX: &str = "io.modelcontextprotocol/";

pub(super) struct Modern<'h> {
    home: &'h Home,
    endpoint: Endpoint,
    transport: Connection,
    /// The number of sent requests, which is the id of the last one.
    sent: Cell<u64>,
}

enum Connection {
    Stdio(McpStdio),
    Http(McpModern),
}

impl<'h> Modern<'h> {
    #[track_caller]
    pub(super) fn begin(home: &'h Home, transport: Transport, endpoint: Endpoint) -> Self {
        let transport = match transport {
            Transport::Stdio => Connection::Stdio(home.mcp_connect(endpoint.arguments())),
            Transport::Http => Connection::Http(home.mcp_modern(endpoint.path())),
        };
        Self { home, endpoint, transport, sent: Cell::new(0) }
    }

    /// Sends a request without waiting.
    #[track_caller]
    fn start(&self, method: &str, params: Value) -> OpenRequest<'_> {
        let params = with_meta(params);
        let id = self.sent.get() + 1;
        self.sent.set(id);
        let transport = match &self.transport {
            Connection::Stdio(client) => {
                assert_eq!(client.start_request(method, params), id);
                RequestConnection::Stdio(client)
            }
            Connection::Http(client) => RequestConnection::Http(client.start(method, params, &[])),
        };
        OpenRequest { id, transport }
    }

    fn call(&self, tool: &str) -> Value {
        json!({ "name": self.endpoint.name(tool), "arguments": {} })
    }
}

/// Adds the `_meta` that each request needs.
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

/// An open request.
struct OpenRequest<'c> {
    id: u64,
    transport: RequestConnection<'c>,
}

enum RequestConnection<'c> {
    Stdio(&'c McpClient),
    Http(Exchange),
}

impl OpenRequest<'_> {
    /// Waits for the response, and returns it with the messages before it.
    #[track_caller]
    fn response(self) -> Response {
        match self.transport {
            RequestConnection::Stdio(client) => Response::from_connection(client, self.id),
            RequestConnection::Http(mut exchange) => {
                let mut meanwhile = Vec::new();
                loop {
                    match exchange.next_message() {
                        Some(it) if it.get("method").is_some() => meanwhile.push(it),
                        Some(answer) => return Response { meanwhile, answer },
                        None => panic!("it ended without an answer; before: {meanwhile:?}"),
                    }
                }
            }
        }
    }

    /// Waits for a notification.
    #[track_caller]
    fn wait_notification(&mut self, method: &str) -> Value {
        match &mut self.transport {
            RequestConnection::Stdio(client) => client.wait_notification(method),
            RequestConnection::Http(exchange) => loop {
                match exchange.next_message() {
                    Some(it) if it["method"] == method => return it,
                    Some(it) if it.get("method").is_some() => {}
                    other => panic!("no `{method}`, but {other:?}"),
                }
            },
        }
    }

    /// Cancels the request: by a notification on a shared connection, otherwise by closing its
    /// stream.
    #[track_caller]
    fn cancel(self) {
        if let RequestConnection::Stdio(client) = self.transport {
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

    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> Response {
        let response = self.start(method, params).response();
        if let Some(result) = response.answer.get("result") {
            assert_eq!(result["resultType"], "complete", "{}", response.answer);
        }
        response
    }

    #[track_caller]
    fn ask_and_reply(&self, method: &str, mut params: Value, reply: &Value) -> (Value, Response) {
        let asking = self.start(method, params.clone()).response().answer;
        let result = &asking["result"];
        assert_eq!(result["resultType"], "input_required", "{asking}");
        let input_requests =
            result["inputRequests"].as_object().unwrap_or_else(|| panic!("{asking}"));
        assert_eq!(input_requests.len(), 1, "{asking}");
        let (key, question) = input_requests.iter().next().unwrap();
        params["inputResponses"] = json!({ key: reply });
        if let Some(state) = result.get("requestState") {
            params["requestState"] = state.clone();
        }
        (question.clone(), self.ask(method, params))
    }

    #[track_caller]
    fn call_logging(&self, tool: &str, level: Option<&str>) -> Response {
        let mut params = self.call(tool);
        if let Some(level) = level {
            params["_meta"] = json!({ format!("{PREFIX}logLevel"): level });
        }
        self.ask("tools/call", params)
    }

    #[track_caller]
    fn cancel_once_started(&self, tool: &str, begun: &str) {
        let mut request = self.start("tools/call", self.call(tool));
        request.wait_notification(begun);
        let id = request.id;
        request.cancel();
        let last = self.ask("tools/call", self.call("last_cancelled")).answer;
        assert!(
            last["result"]["isError"] != true,
            "the server has not received the cancellation: {last}"
        );
        if let Connection::Stdio(client) = &self.transport {
            let answer = client.answer_within(id, std::time::Duration::ZERO);
            assert_eq!(answer, None, "a cancelled call is not answered");
        }
    }

    #[track_caller]
    fn listen<'c>(&'c self, uri: Option<&str>) -> Box<dyn Subscription + 'c> {
        let mut filter = json!({ "toolsListChanged": true });
        if let Some(uri) = uri {
            filter["resourceSubscriptions"] = json!([uri]);
        }
        let request = self.start("subscriptions/listen", json!({ "notifications": filter }));
        let mut subscription = ListChanges(request);
        let accepted = subscription.wait_notification("notifications/subscriptions/acknowledged");
        assert_eq!(accepted["notifications"], filter, "{accepted}");
        Box::new(subscription)
    }
}

/// An open `subscriptions/listen` request.
struct ListChanges<'c>(OpenRequest<'c>);

impl Subscription for ListChanges<'_> {
    #[track_caller]
    fn wait_notification(&mut self, method: &str) -> Value {
        let notification = self.0.wait_notification(method);
        let id = &notification["params"]["_meta"][format!("{PREFIX}subscriptionId")];
        assert_eq!(*id, self.0.id, "the notification has another subscription id: {notification}");
        notification["params"].clone()
    }

    fn end(self: Box<Self>) {
        self.0.cancel();
    }
}
