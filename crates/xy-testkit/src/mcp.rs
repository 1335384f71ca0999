//! MCP clients for tests: over stdio, a Unix socket, and HTTP.
//!
//! They speak the revisions with `initialize`; `mcp/modern.rs` speaks the revision without it.
//! Received messages are kept as text, so that tests can check numbers and key order. Many requests
//! may be in flight, from many threads. All waits have a limit, and failures panic with a message.

mod http;
mod inbox;
mod lines;
mod modern;
mod web;

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

pub use self::http::{McpHttp, McpOlder};
use self::inbox::{Inbox, MessageKind};
pub use self::lines::{McpSocket, McpStdio};
pub use self::modern::{Exchange, McpModern};
pub use self::web::HttpAnswer;

/// How long to wait for a response, a notification or a server request.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The newest revision with `initialize`.
const VERSION: &str = "2025-11-25";

/// A handler that answers a server request, or returns `None` to leave it to the test.
type Answerer = Box<dyn Fn(&Value) -> Option<Result<Value, Value>> + Send>;

/// A transport of messages.
trait Transport: Send + Sync {
    /// Sends one message. If it is a request, `id` is the text of its id.
    fn send(self: Arc<Self>, receiver: &Arc<Receiver>, message: &str, id: Option<&str>);

    /// Sets the negotiated revision.
    fn agreed(&self, _version: &str) {}
}

/// The receiver of all incoming messages.
struct Receiver {
    inbox: Inbox,
    answerer: Mutex<Option<Answerer>>,
}

impl Receiver {
    fn new() -> Arc<Self> {
        Arc::new(Self { inbox: Inbox::default(), answerer: Mutex::new(None) })
    }

    /// Handles an incoming message. Returns an immediate response, if there is one.
    fn receive(&self, text: &str) -> Option<String> {
        let MessageKind::Question(question) = self.inbox.put(text) else {
            return None;
        };
        let answerer = self.answerer.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answerer.as_ref().and_then(|answer| answer(&question));
        match answer {
            Some(outcome) => Some(answer_to(&question, outcome)),
            None if question["method"] == "ping" => Some(answer_to(&question, Ok(json!({})))),
            None => {
                self.inbox.change(|received| received.questions.push_back(question));
                None
            }
        }
    }
}

/// An MCP client over any transport.
pub struct McpClient {
    receiver: Arc<Receiver>,
    transport: Arc<dyn Transport>,
    last_id: AtomicU64,
}

impl McpClient {
    fn new(receiver: Arc<Receiver>, transport: Arc<dyn Transport>) -> Self {
        Self { receiver, transport, last_id: AtomicU64::new(0) }
    }

    /// Performs the handshake without capabilities. Returns the result.
    #[track_caller]
    pub fn initialize(&self) -> Value {
        self.initialize_with(&json!({}))
    }

    /// Performs the handshake with these capabilities. Returns the result.
    #[track_caller]
    pub fn initialize_with(&self, capabilities: &Value) -> Value {
        let client = json!({ "name": "xy-testkit", "version": "1" });
        let params = json!({
            "protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": client,
        });
        let mut answer = self.initialize_as(params);
        assert!(answer.get("result").is_some(), "`initialize` was refused: {answer}");
        answer["result"].take()
    }

    /// Sends `initialize` with these params, and `initialized` unless it fails. Returns the whole
    /// response.
    #[track_caller]
    pub fn initialize_as(&self, params: Value) -> Value {
        let answer = self.request("initialize", params);
        if let Some(version) = answer["result"]["protocolVersion"].as_str() {
            self.transport.agreed(version);
            self.notify("notifications/initialized", Value::Null);
        }
        answer
    }

    /// Sends a request and returns the whole response.
    #[track_caller]
    pub fn request(&self, method: &str, params: Value) -> Value {
        let id = self.start_request(method, params);
        self.wait_answer(id)
    }

    /// Calls a tool and returns the whole response.
    #[track_caller]
    pub fn call(&self, tool: &str, arguments: Value) -> Value {
        let id = self.start_call(tool, arguments);
        self.wait_answer(id)
    }

    /// Calls a tool, which must succeed, and returns its first text.
    #[track_caller]
    pub fn call_text(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments);
        let text = answer["result"]["content"][0]["text"].as_str();
        let is_error = answer["result"]["isError"] == true;
        match text {
            Some(text) if !is_error => text.to_owned(),
            _ => panic!("`{tool}` failed: {answer}"),
        }
    }

    /// Calls a tool, which must succeed with equal text and structured content, and returns it.
    #[track_caller]
    pub fn call_value(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments);
        let result = &answer["result"];
        assert!(result.is_object() && result["isError"] != true, "`{tool}` failed: {answer:#}");
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        let text: Value = serde_json::from_str(text).unwrap_or_default();
        assert_eq!(text, result["structuredContent"], "both say the same");
        text
    }

    /// Returns all entries of a list over all pages, such as `tools` of `tools/list`.
    #[track_caller]
    pub fn list(&self, method: &str, name: &str) -> Vec<Value> {
        let (mut all, mut params) = (Vec::new(), Value::Null);
        for _page in 0..10_000 {
            let mut answer = self.request(method, params);
            let Value::Array(entries) = answer["result"][name].take() else {
                panic!("`{method}` answered no `{name}`: {answer}");
            };
            all.extend(entries);
            match answer["result"]["nextCursor"].take() {
                Value::Null => return all,
                cursor => params = json!({ "cursor": cursor }),
            }
        }
        panic!("`{method}` has no last page");
    }

    /// Returns the names of all tools.
    #[track_caller]
    pub fn tool_names(&self) -> Vec<String> {
        let tools = self.list("tools/list", "tools");
        tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Sends a request without waiting, and returns its id.
    #[track_caller]
    pub fn start_request(&self, method: &str, params: Value) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        self.start_request_as(id, method, params);
        id
    }

    /// Sends a request with this id, as JSON text, without waiting.
    #[track_caller]
    pub fn start_request_as(&self, id: impl Display, method: &str, params: Value) {
        let id = id.to_string();
        let params = match params {
            Value::Null => String::new(),
            params => format!(",\"params\":{params}"),
        };
        let message =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"{params}}}");
        self.send(&message, Some(&id));
    }

    /// Calls a tool without waiting, and returns the id of the request.
    #[track_caller]
    pub fn start_call(&self, tool: &str, arguments: Value) -> u64 {
        let mut params = json!({ "name": tool });
        params["arguments"] = arguments;
        self.start_request("tools/call", params)
    }

    /// Waits for the response to the request `id`, a number or other JSON text.
    #[track_caller]
    pub fn wait_answer(&self, id: impl Display) -> Value {
        let text = self.wait_answer_text(id);
        serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause}: {text}"))
    }

    /// Waits for the response to the request `id`, and returns its original text.
    #[track_caller]
    pub fn wait_answer_text(&self, id: impl Display) -> String {
        let id = id.to_string();
        let found = self.receiver.inbox.wait(WAIT_TIMEOUT, |received| {
            let answer = received.take_answer(&id).map(Ok);
            let lost = || received.lost.remove(&id).map(Err);
            let over = || received.is_closed.then(|| Err("the connection is closed".to_owned()));
            answer.or_else(lost).or_else(over)
        });
        match found {
            Some(Ok(answer)) => answer,
            Some(Err(why)) => panic!("request {id} has no answer: {why}; {}", self.describe()),
            None => panic!("request {id} has no answer in {WAIT_TIMEOUT:?}; {}", self.describe()),
        }
    }

    /// Returns the response to the request `id` if it arrives within `limit`.
    pub fn answer_within(&self, id: impl Display, limit: Duration) -> Option<Value> {
        let id = id.to_string();
        let text = self.receiver.inbox.wait(limit, |received| received.take_answer(&id))?;
        serde_json::from_str(&text).ok()
    }

    /// Cancels the request `id`.
    #[track_caller]
    pub fn cancel(&self, id: &Value) {
        self.notify("notifications/cancelled", json!({ "requestId": id }));
    }

    /// Sends a notification, without params if they are null.
    #[track_caller]
    pub fn notify(&self, method: &str, params: Value) {
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if !params.is_null() {
            message["params"] = params;
        }
        self.send(&message.to_string(), None);
    }

    /// Sends a text unchanged: a line, or the body of a POST. Responses are received as usual.
    #[track_caller]
    pub fn send_raw(&self, text: &str) {
        self.send(text, None);
    }

    /// Returns all notifications that were not taken yet.
    pub fn notifications(&self) -> Vec<Value> {
        self.receiver.inbox.received().notifications.iter().cloned().collect()
    }

    /// Waits for the first notification of this method and takes it.
    #[track_caller]
    pub fn wait_notification(&self, method: &str) -> Value {
        self.wait_notification_that(method, |it| it["method"] == method)
    }

    /// Waits for the first notification that matches and takes it.
    #[track_caller]
    pub fn wait_notification_that(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let found = self.receiver.inbox.wait(WAIT_TIMEOUT, |received| {
            let at = received.notifications.iter().position(&is_it)?;
            received.notifications.remove(at)
        });
        found.unwrap_or_else(|| {
            panic!("no notification `{what}` in {WAIT_TIMEOUT:?}; {}", self.describe())
        })
    }

    /// Sets the handler of server requests. It returns a result, an error object, or `None` to leave
    /// the request to [`McpClient::wait_question`].
    pub fn answer_with(
        &self,
        answerer: impl Fn(&Value) -> Option<Result<Value, Value>> + Send + 'static,
    ) {
        let answerer: Answerer = Box::new(answerer);
        *self.receiver.answerer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answerer);
    }

    /// Waits for the first unanswered server request and takes the whole message.
    #[track_caller]
    pub fn wait_question(&self) -> Value {
        let found =
            self.receiver.inbox.wait(WAIT_TIMEOUT, |received| received.questions.pop_front());
        found.unwrap_or_else(|| panic!("no question in {WAIT_TIMEOUT:?}; {}", self.describe()))
    }

    /// Answers a server request with a result or an error object.
    #[track_caller]
    pub fn answer(&self, question: &Value, outcome: Result<Value, Value>) {
        self.send(&answer_to(question, outcome), None);
    }

    /// Starts keeping the original text of all messages for [`McpClient::recorded`].
    pub fn record(&self) {
        self.receiver.inbox.change(|received| received.record = Some(Vec::new()));
    }

    /// Returns the text of message number `index`, from 0, if it arrives within `limit`.
    pub fn recorded(&self, index: usize, limit: Duration) -> Option<String> {
        self.receiver.inbox.wait(limit, |received| received.record.as_ref()?.get(index).cloned())
    }

    /// Sends a request text unchanged without waiting; `id` is the text of its id.
    #[track_caller]
    pub fn start_raw(&self, id: impl Display, request: &str) {
        self.send(request, Some(&id.to_string()));
    }

    /// Returns everything received that was not a message.
    pub fn strays(&self) -> Vec<String> {
        self.receiver.inbox.received().strays.clone()
    }

    /// Returns unexpected responses: to unknown requests, or repeated ones.
    pub fn unclaimed_answers(&self) -> Vec<String> {
        self.receiver.inbox.received().answers.values().flatten().cloned().collect()
    }

    /// Returns true if the peer has closed the connection and all its messages were received.
    pub fn is_closed(&self) -> bool {
        self.receiver.inbox.received().is_closed
    }

    /// Waits until the peer has closed the connection.
    #[track_caller]
    pub fn wait_closed(&self) {
        let closed =
            self.receiver.inbox.wait(WAIT_TIMEOUT, |received| received.is_closed.then_some(()));
        assert!(closed.is_some(), "not closed within {WAIT_TIMEOUT:?}; {}", self.describe());
    }

    #[track_caller]
    fn send(&self, message: &str, id: Option<&str>) {
        if let Some(id) = id {
            self.receiver.inbox.received().open.insert(id.to_owned());
        }
        Arc::clone(&self.transport).send(&self.receiver, message, id);
    }

    fn describe(&self) -> String {
        self.receiver.inbox.received().describe()
    }
}

impl std::fmt::Debug for McpClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("McpClient").field("received", &self.describe()).finish()
    }
}

/// Returns the text of a response to a server request.
fn answer_to(question: &Value, outcome: Result<Value, Value>) -> String {
    let (name, value) = match outcome {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    json!({ "jsonrpc": "2.0", "id": question["id"], name: value }).to_string()
}
