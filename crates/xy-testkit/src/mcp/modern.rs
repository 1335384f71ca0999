//! An HTTP client of the revision without sessions. Each request uses its own connection.

use std::fmt::Write as _;
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::WAIT_TIMEOUT;
use super::web::{Connection, Head, HttpAnswer, next_event};

const VERSION: &str = "2026-07-28";

/// Read timeout of an exchange. Exchanges may be silent for long, and end when dropped.
const SILENT_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum number of messages that the test has not read. Beyond it, the client stops reading.
const MAX_UNREAD: usize = 1000;

/// A client that sends its metadata with each request, without a session.
#[derive(Debug)]
pub struct McpModern {
    address: SocketAddr,
    path: String,
    token: String,
    capabilities: Value,
    last_id: AtomicU64,
}

impl McpModern {
    /// Creates a client of `http://<address><path>`. An empty `token` means no token.
    #[track_caller]
    pub fn http(address: &str, path: &str, token: &str) -> Self {
        let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
        Self {
            address: found.unwrap_or_else(|| panic!("`{address}` is no address")),
            path: path.to_owned(),
            token: token.to_owned(),
            capabilities: json!({}),
            last_id: AtomicU64::new(0),
        }
    }

    /// Sets the client capabilities.
    #[must_use]
    pub fn with_capabilities(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    /// Returns `params` with the required client metadata in `_meta`. Existing entries are kept.
    pub fn params(&self, params: Value) -> Value {
        let mut params = if params.is_null() { json!({}) } else { params };
        for (key, value) in [
            ("io.modelcontextprotocol/protocolVersion", json!(VERSION)),
            ("io.modelcontextprotocol/clientCapabilities", self.capabilities.clone()),
            ("io.modelcontextprotocol/clientInfo", json!({ "name": "xy-testkit", "version": "1" })),
        ] {
            if params["_meta"].get(key).is_none() {
                params["_meta"][key] = value;
            }
        }
        params
    }

    /// Sends a request and waits for the response, as JSON or at the end of a stream.
    #[track_caller]
    pub fn request(&self, method: &str, params: Value) -> Value {
        self.start(method, params, &[]).answer()
    }

    /// Calls a tool and returns the whole response.
    #[track_caller]
    pub fn call_tool(&self, name: &str, arguments: Value) -> Value {
        self.request("tools/call", with(json!({ "name": name }), "arguments", arguments))
    }

    /// Sends a request and returns the exchange without waiting for a response. `headers` replace
    /// required headers of the same name; an empty value removes the header.
    #[track_caller]
    pub fn start(&self, method: &str, params: Value, headers: &[(&str, &str)]) -> Exchange {
        Exchange::begin(self.address, self.text(method, params, headers).as_bytes())
    }

    /// Sends a request and returns the whole HTTP response.
    #[track_caller]
    pub fn post(&self, method: &str, params: Value, headers: &[(&str, &str)]) -> HttpAnswer {
        self.raw(self.text(method, params, headers).as_bytes())
    }

    /// Sends these bytes on a separate connection, and returns the HTTP response.
    #[track_caller]
    pub fn raw(&self, bytes: &[u8]) -> HttpAnswer {
        let answer = Connection::open(self.address, WAIT_TIMEOUT).and_then(|mut it| {
            let sent = it.send(bytes);
            // The server may reject a request before it has read all of it.
            it.answer().or_else(|cause| sent.and(Err(cause)))
        });
        answer.unwrap_or_else(|cause| panic!("no answer from {}: {cause}", self.address))
    }

    /// Returns the whole HTTP text of a JSON-RPC request, so that a test can change it or send it
    /// in pieces.
    pub fn text(&self, method: &str, params: Value, headers: &[(&str, &str)]) -> String {
        let params = self.params(params);
        let source = match method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _ => "",
        };
        let name = params[source].as_str().map(encoded).unwrap_or_default();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let head = [
            ("Mcp-Method", method),
            ("Mcp-Name", &name),
            ("MCP-Protocol-Version", VERSION),
            ("Content-Type", "application/json"),
        ];
        self.text_of("POST", &[&head[..], headers].concat(), &body.to_string())
    }

    /// Returns the whole HTTP text of any request to this client's address, with its token.
    /// `headers` replace headers of the same name; an empty value removes the header.
    pub fn text_of(&self, method: &str, headers: &[(&str, &str)], body: &str) -> String {
        let (host, length) = (self.address.to_string(), body.len().to_string());
        let bearer = format!("Bearer {}", self.token);
        let bearer = if self.token.is_empty() { "" } else { &*bearer };
        let mut all = vec![
            ("Host", &*host),
            ("Accept", "application/json, text/event-stream"),
            ("Authorization", bearer),
            ("Content-Length", &length),
        ];
        for (name, value) in headers {
            all.retain(|(it, _)| !it.eq_ignore_ascii_case(name));
            all.push((name, value));
        }
        let mut text = format!("{method} {} HTTP/1.1\r\n", self.path);
        for (name, value) in all.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(text, "{name}: {value}\r\n"); // Cannot fail for a `String`.
        }
        text + "\r\n" + body
    }
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}

/// Returns a name as a header value. A name that is not plain ASCII is encoded as base64.
fn encoded(name: &str) -> String {
    let is_plain = name.trim() == name && name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain && !name.is_empty() && !name.starts_with("=?") {
        return name.to_owned();
    }
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut all = String::from("=?base64?");
    for three in name.as_bytes().chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let digit = char::from(digits[bits >> (18 - 6 * at) & 63]);
            all.push(if at <= three.len() { digit } else { '=' });
        }
    }
    all + "?="
}

#[track_caller]
fn read_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|cause| panic!("no JSON ({cause}): {text}"))
}

/// An HTTP exchange: a request and the response to it. Dropping it closes the connection.
#[derive(Debug)]
pub struct Exchange {
    socket: TcpStream,
    received: Receiver<Incoming>,
    head: Option<Head>,
}

#[derive(Debug)]
enum Incoming {
    Head(Head),
    Message(String),
    Broken(io::Error),
}

impl Exchange {
    #[track_caller]
    fn begin(address: SocketAddr, request: &[u8]) -> Self {
        let opened = Connection::open(address, SILENT_TIMEOUT).and_then(|mut connection| {
            connection.send(request)?;
            let socket = connection.socket().try_clone()?;
            Ok((connection, socket))
        });
        let (connection, socket) =
            opened.unwrap_or_else(|cause| panic!("{address} took no request: {cause}"));
        let (sender, received) = sync_channel(MAX_UNREAD);
        thread::spawn(move || {
            if let Err(cause) = read(connection, &sender) {
                let _ = sender.send(Incoming::Broken(cause)); // The test may have hung up.
            }
        });
        Self { socket, received, head: None }
    }

    /// Waits for the status and returns it.
    #[track_caller]
    pub fn status(&mut self) -> u16 {
        self.head().status
    }

    /// Waits for the head and returns a header of it. `name` is case-insensitive.
    #[track_caller]
    pub fn header(&mut self, name: &str) -> Option<String> {
        self.head().header(name).map(str::to_owned)
    }

    #[track_caller]
    fn head(&mut self) -> &Head {
        if self.head.is_none() {
            match self.receive(WAIT_TIMEOUT) {
                Some(Incoming::Head(head)) => self.head = Some(head),
                other => panic!("no head, but {other:?}"),
            }
        }
        self.head.as_ref().expect("it was just put there")
    }

    /// Waits for the next message (an event or the whole body). Returns `None` at the end.
    #[track_caller]
    pub fn next_message(&mut self) -> Option<Value> {
        self.next_text().map(|text| read_json(&text))
    }

    /// Waits for the next message and returns its original text, or `None` at the end.
    #[track_caller]
    pub fn next_text(&mut self) -> Option<String> {
        self.head();
        match self.receive(WAIT_TIMEOUT)? {
            Incoming::Message(text) => Some(text),
            other => panic!("no message, but {other:?}"),
        }
    }

    /// Returns true if no message arrives within the limit.
    pub fn is_silent_for(&mut self, limit: Duration) -> bool {
        matches!(self.received.recv_timeout(limit), Err(RecvTimeoutError::Timeout))
    }

    /// Waits for the response and returns it. Skips messages before it.
    #[track_caller]
    pub fn answer(mut self) -> Value {
        loop {
            match self.next_message() {
                Some(message) if message.get("method").is_none() => return message,
                Some(_) => {}
                None => panic!("it ended without an answer"),
            }
        }
    }

    /// Waits for the response and returns its original text. Skips messages before it.
    #[track_caller]
    pub fn answer_text(mut self) -> String {
        loop {
            match self.next_text() {
                Some(text) if read_json(&text).get("method").is_none() => return text,
                Some(_) => {}
                None => panic!("it ended without an answer"),
            }
        }
    }

    /// Waits for the response, and skips messages before it. Returns `None` if the server is
    /// silent for `silent`, or if the exchange ends or breaks without a response.
    pub fn answer_within(&mut self, silent: Duration) -> Option<Value> {
        loop {
            match self.received.recv_timeout(silent).ok()? {
                Incoming::Head(head) => self.head = Some(head),
                Incoming::Message(text) => match serde_json::from_str::<Value>(&text) {
                    Ok(message) if message.get("method").is_none() => return Some(message),
                    _ => {}
                },
                Incoming::Broken(_) => return None,
            }
        }
    }

    #[track_caller]
    fn receive(&mut self, limit: Duration) -> Option<Incoming> {
        match self.received.recv_timeout(limit) {
            Ok(Incoming::Broken(cause)) => panic!("the exchange broke: {cause}"),
            Ok(received) => Some(received),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing was said within {limit:?}"),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both); // It may already be closed.
    }
}

/// Reads an HTTP response, and sends its head and messages to the test as they arrive.
fn read(mut connection: Connection, sender: &SyncSender<Incoming>) -> io::Result<()> {
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    let head = connection.head()?;
    sender.send(Incoming::Head(head.clone())).map_err(gone)?;
    let mut body = BufReader::new(connection.body(&head));
    if head.is_stream() {
        while let Some(event) = next_event(&mut body)? {
            sender.send(Incoming::Message(event.data)).map_err(gone)?;
        }
        return Ok(());
    }
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    if text.is_empty() { Ok(()) } else { sender.send(Incoming::Message(text)).map_err(gone) }
}
