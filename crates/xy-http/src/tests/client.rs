//! A minimal HTTP client that shows every byte.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xy_mcp::modern;
use xy_mcp::revision::MODERN;

use super::within;

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    pub(super) fn new(method: &str, path: &str) -> Self {
        Self { line: format!("{method} {path}"), headers: Vec::new(), body: String::new() }
            .with("host", "localhost")
    }

    pub(super) fn post(path: &str, body: &str) -> Self {
        let mut request = Self::new("POST", path)
            .with("content-type", "application/json")
            .with("accept", "application/json, text/event-stream")
            .with("content-length", &body.len().to_string());
        body.clone_into(&mut request.body);
        request
    }

    /// Creates a call of `method` within a session.
    pub(super) fn call(session: &str, id: u64, method: &str, params: &str) -> Self {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        Self::post("/mcp", &body).with("mcp-session-id", session)
    }

    pub(super) fn listen(session: &str) -> Self {
        Self::new("GET", "/mcp").with("accept", "text/event-stream").with("mcp-session-id", session)
    }

    /// Creates a stateless request with matching headers. `params` must be an object.
    pub(super) fn stateless_request(id: u64, method: &str, params: &str) -> Self {
        Self::stateless_request_at("/mcp", id, method, params)
    }

    pub(super) fn stateless_request_at(path: &str, id: u64, method: &str, params: &str) -> Self {
        let meta = format!(
            r#""_meta":{{"{}":"{MODERN}","{}":{{}}}}"#,
            modern::VERSION,
            modern::CAPABILITIES
        );
        let more = params.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap();
        let comma = if more.is_empty() { "" } else { "," };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{meta}{comma}{more}}}}}"#
        );
        Self::post(path, &body).with("mcp-protocol-version", MODERN).with("mcp-method", method)
    }

    /// Creates a request that resumes a stream after an event.
    pub(super) fn resume(session: &str, after: &str) -> Self {
        Self::listen(session).with("last-event-id", after)
    }

    /// Creates a request that opens a session of the legacy SSE transport.
    pub(super) fn legacy_sse() -> Self {
        Self::new("GET", "/sse").with("accept", "text/event-stream")
    }

    pub(super) fn end(session: &str) -> Self {
        Self::new("DELETE", "/mcp").with("mcp-session-id", session)
    }

    /// Adds or replaces a header.
    pub(super) fn with(self, name: &str, value: &str) -> Self {
        let mut request = self.without(name);
        request.headers.push((name.to_owned(), value.to_owned()));
        request
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{} HTTP/1.1\r\n", self.line);
        for (name, value) in &self.headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        text + "\r\n" + &self.body
    }
}

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(super) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().expect("an error has a message").to_owned()
    }

    /// Returns the data of each event.
    pub(super) fn events(&self) -> Vec<String> {
        self.body.split_terminator("\n\n").filter_map(data_of).collect()
    }
}

fn data_of(event: &str) -> Option<String> {
    let named = event.starts_with("id: ").then(|| event.split_once('\n')).flatten();
    let rest = named.map_or(event, |(_, rest)| rest);
    Some(rest.strip_prefix("event: message\ndata: ")?.to_owned())
}

fn id_of(event: &str) -> Option<String> {
    Some(event.strip_prefix("id: ")?.lines().next()?.to_owned())
}

/// A connection.
pub(super) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
    /// Received text of a stream that is not yet a complete event.
    events: String,
    /// The id of the last event that had one.
    pub(super) last_event: Option<String>,
}

impl Client {
    pub(super) async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new(), events: String::new(), last_event: None }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends as much as the peer accepts. The peer may close the connection meanwhile.
    pub(super) async fn try_send(&mut self, bytes: &[u8]) {
        let _ = within(self.stream.write_all(bytes)).await;
    }

    pub(super) async fn ask(&mut self, request: &Request) -> Answer {
        self.send(request.text().as_bytes()).await;
        self.answer().await
    }

    /// Reads a whole response.
    pub(super) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                answer.body += &chunk;
            }
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.take(length).await;
        }
        answer
    }

    /// Reads the head of a response.
    pub(super) async fn head(&mut self) -> Answer {
        let end = self.find(b"\r\n\r\n").await;
        let head = self.take(end + 4).await;
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Answer { status, headers, body: String::new() }
    }

    /// Opens an event stream, which must succeed.
    pub(super) async fn open(&mut self, request: &Request) {
        self.send(request.text().as_bytes()).await;
        let head = self.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    }

    /// Waits for an event with an id, and returns this id.
    pub(super) async fn first_id(&mut self) -> String {
        while self.last_event.is_none() {
            let chunk = self.chunk().await.expect("the stream goes on");
            self.events += &chunk;
            self.last_event = id_of(&self.events);
        }
        self.last_event.clone().unwrap()
    }

    /// Returns the data of the next event, or `None` at the end of the stream. Skips comments.
    pub(super) async fn event(&mut self) -> Option<String> {
        loop {
            while let Some(end) = self.events.find("\n\n") {
                let event = self.events.drain(..end + 2).collect::<String>();
                self.last_event = id_of(&event).or(self.last_event.take());
                if let Some(data) = data_of(event.trim_end()) {
                    return Some(data);
                }
            }
            let chunk = self.chunk().await?;
            self.events += &chunk;
        }
    }

    /// Returns the next chunk of a body, or `None` at its end.
    pub(super) async fn chunk(&mut self) -> Option<String> {
        let end = self.find(b"\r\n").await;
        let length = self.take(end + 2).await;
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        let chunk = self.take(length).await;
        self.take(2).await;
        (length > 0).then_some(chunk)
    }

    /// Closes the sending half of the connection.
    pub(super) async fn hang_up(&mut self) {
        within(self.stream.shutdown()).await.unwrap();
    }

    /// Returns true if the peer has closed the connection and sent nothing more.
    pub(super) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let outcome = within(self.stream.read_to_end(&mut rest)).await;
        self.read.is_empty() && rest.is_empty() || outcome.is_err()
    }

    /// Returns true if everything that has arrived was read.
    pub(super) fn has_received_nothing(&self) -> bool {
        let received = self.stream.try_read(&mut [0]);
        self.read.is_empty() && received.is_err_and(|cause| cause.kind() == ErrorKind::WouldBlock)
    }

    async fn find(&mut self, what: &[u8]) -> usize {
        loop {
            if let Some(at) = memchr::memmem::find(&self.read, what) {
                return at;
            }
            self.more().await;
        }
    }

    async fn take(&mut self, length: usize) -> String {
        while self.read.len() < length {
            self.more().await;
        }
        String::from_utf8(self.read.drain(..length).collect()).unwrap()
    }

    async fn more(&mut self) {
        let read = within(self.stream.read_buf(&mut self.read)).await.unwrap();
        assert_ne!(read, 0, "the connection is open: {:?}", String::from_utf8_lossy(&self.read));
    }
}
