//! A remote MCP server over HTTP, in a thread of the test. The test controls the server's
//! behaviour and inspects the requests that the server has received.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

mod modern;
mod tls;

pub use tls::Tls;

/// Maximum time to hold back a response.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// The behaviour of a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behaviour {
    /// Behaves correctly.
    Normal,
    /// Responds to each request with this status and these headers. If `x-echo-id` is among the
    /// headers, the body is a JSON-RPC error with the id of the request.
    Status(u16, Vec<(String, String)>),
    /// Responds with this text as JSON.
    Responds(String),
    /// Responds with an HTML page.
    Page,
    /// Reads requests and never responds.
    Silent,
    /// Closes the connection at each request.
    Disconnects,
    /// Closes the connection in the middle of each response.
    BreaksOff,
    /// Waits for [`Remote::let_go`], then behaves correctly.
    Waits,
    /// Sends this many bytes of a response, then holds the connection open and sends no more.
    Stalls(usize),
}

/// The requests that a behaviour applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// All requests.
    Everything,
    /// Tool calls only.
    Calls,
    /// Handshakes only.
    Greetings,
    /// Client responses to server requests only.
    Answers,
}

/// A remote server at `/mcp`; `/moved` redirects there. The server stops when it is dropped.
#[derive(Debug)]
pub struct Remote {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
struct State {
    everything: Behaviour,
    calls: Behaviour,
    greetings: Behaviour,
    responses: Behaviour,
    sessions: BTreeSet<String>,
    begun: usize,
    /// The `message` arguments of all executed calls, in order.
    done: Vec<String>,
    /// The head of each request.
    heads: Vec<Head>,
    /// The open connections, by number. They are closed with the server.
    open: HashMap<usize, TcpStream>,
    /// The open notification streams.
    listeners: Vec<TcpStream>,
    /// Responses of interrupted streams, by the event id that a client resumes from.
    kept: HashMap<String, String>,
    /// Client responses to server requests.
    answers: Vec<Value>,
    is_over: bool,
    /// Requests for a notification stream are refused.
    has_no_stream: bool,
    /// Calls of `wait` and requests under [`Behaviour::Waits`] are no longer held back.
    is_let_go: bool,
    /// The server speaks only the revision without sessions.
    is_modern: bool,
    /// The header name (`x-mcp-header`) for the argument of the tool `marked`.
    mark: String,
    /// The number of `subscriptions/listen` requests so far.
    listened: usize,
    /// The numbers of executed calls at which all sessions are removed.
    forgets_after: Vec<usize>,
    /// The only revision that `initialize` may request, if limited.
    only_revision: Option<String>,
}

/// The head of a request.
#[derive(Debug, Clone)]
pub struct Head {
    /// The HTTP method: GET, POST or DELETE.
    pub method: String,
    /// The path, including the query.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: HashMap<String, String>,
    /// The method of the JSON-RPC message in the body; empty if there is none.
    pub message: String,
}

impl Remote {
    /// Starts a server on a free port.
    pub fn start() -> Self {
        Self::start_at(0)
    }

    /// Starts a server on this port, which an earlier server may have used.
    pub fn start_at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = State {
            everything: Behaviour::Normal,
            calls: Behaviour::Normal,
            greetings: Behaviour::Normal,
            responses: Behaviour::Normal,
            sessions: BTreeSet::new(),
            begun: 0,
            done: Vec::new(),
            heads: Vec::new(),
            open: HashMap::new(),
            listeners: Vec::new(),
            kept: HashMap::new(),
            answers: Vec::new(),
            is_over: false,
            has_no_stream: false,
            is_let_go: false,
            is_modern: false,
            mark: "Region".to_owned(),
            listened: 0,
            forgets_after: Vec::new(),
            only_revision: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let serving = shared.clone();
        thread::spawn(move || serve(&listener, &serving));
        Self { address, shared }
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the KDL settings of an entry for this server.
    pub fn kdl(&self) -> String {
        format!("url \"http://127.0.0.1:{}/mcp\"\n", self.port())
    }

    /// Sets the behaviour for a kind of request.
    pub fn set_behaviour(&self, to: To, behaviour: Behaviour) {
        let mut state = self.shared.lock();
        match to {
            To::Everything => state.everything = behaviour,
            To::Calls => state.calls = behaviour,
            To::Greetings => state.greetings = behaviour,
            To::Answers => state.responses = behaviour,
        }
    }

    /// Selects the revisions to speak from now on: only the one without sessions if true, only
    /// those with sessions if false.
    pub fn set_modern(&self, is_modern: bool) {
        self.shared.lock().is_modern = is_modern;
    }

    /// Refuses `initialize` in any other revision from now on, with the error code of the newest
    /// revision.
    pub fn speak_only(&self, revision: &str) {
        self.shared.lock().only_revision = Some(revision.to_owned());
    }

    /// Sets the header name (`x-mcp-header`) for the argument of the tool `marked`.
    pub fn mark(&self, name: &str) {
        name.clone_into(&mut self.shared.lock().mark);
    }

    /// Returns the number of `subscriptions/listen` requests so far.
    pub fn listened(&self) -> usize {
        self.shared.lock().listened
    }

    /// Refuses requests for a notification stream from now on.
    pub fn offer_no_stream(&self) {
        self.shared.lock().has_no_stream = true;
    }

    /// Removes all sessions, as if the server had restarted.
    pub fn forget(&self) {
        self.shared.lock().sessions.clear();
    }

    /// Removes all sessions each time the number of executed calls reaches one of these totals.
    pub fn forget_after(&self, calls: &[usize]) {
        self.shared.lock().forgets_after = calls.to_vec();
    }

    /// Returns the number of sessions that were opened.
    pub fn begun(&self) -> usize {
        self.shared.lock().begun
    }

    /// Returns the number of known sessions.
    pub fn sessions(&self) -> usize {
        self.shared.lock().sessions.len()
    }

    /// Returns the `message` of each executed call, in order.
    pub fn done(&self) -> Vec<String> {
        self.shared.lock().done.clone()
    }

    /// Returns the heads of all requests so far.
    pub fn heads(&self) -> Vec<Head> {
        self.shared.lock().heads.clone()
    }

    /// Returns the client responses to server requests.
    pub fn answers(&self) -> Vec<Value> {
        self.shared.lock().answers.clone()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.lock().open.len()
    }

    /// Returns the number of open notification streams.
    pub fn listeners(&self) -> usize {
        self.shared.lock().listeners.len()
    }

    /// Sends a message to all notification streams.
    pub fn tell(&self, message: &Value) {
        let mut state = self.shared.lock();
        state.listeners.retain_mut(|listener| event(listener, None, &message.to_string()).is_ok());
    }

    /// Releases calls of `wait` and requests under [`Behaviour::Waits`], now and from now on.
    pub fn let_go(&self) {
        self.shared.lock().is_let_go = true;
        self.shared.changed.notify_all();
    }

    /// Closes all connections and keeps listening.
    pub fn hang_up(&self) {
        let mut state = self.shared.lock();
        state.hang_up();
        drop(state);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        state.hang_up();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hang_up(&mut self) {
        for (_, connection) in self.open.drain() {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        self.listeners.clear();
    }
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, connection) in listener.incoming().enumerate() {
        let Ok(connection) = connection else { return };
        let mut state = shared.lock();
        if state.is_over {
            return;
        }
        if let Ok(other) = connection.try_clone() {
            state.open.insert(number, other);
        }
        drop(state);
        let shared = shared.clone();
        thread::spawn(move || {
            let _ = converse(&shared, &connection); // The connection may break at any time.
            let _ = connection.shutdown(std::net::Shutdown::Both);
            shared.lock().open.remove(&number);
        });
    }
}

/// Answers requests on one connection.
fn converse(shared: &Shared, connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    while let Some((mut head, body)) = request(&mut reader)? {
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        message["method"].as_str().unwrap_or_default().clone_into(&mut head.message);
        let behaviour = {
            let mut state = shared.lock();
            state.heads.push(head.clone());
            match head.message.as_str() {
                "tools/call" if state.everything == Behaviour::Normal => state.calls.clone(),
                "initialize" if state.everything == Behaviour::Normal => state.greetings.clone(),
                "" if head.method == "POST" && state.everything == Behaviour::Normal => {
                    state.responses.clone()
                }
                _ => state.everything.clone(),
            }
        };
        let mut out = connection.try_clone()?;
        if head.path == "/moved" {
            answer(&mut out, 308, &[("location".to_owned(), "/mcp".to_owned())], "")?;
            continue;
        }
        if behaviour == Behaviour::Waits {
            drop(wait(shared, |state| state.is_over || state.is_let_go));
        }
        match behaviour {
            Behaviour::Normal | Behaviour::Waits => {
                if !respond_normally(shared, &mut out, &head, &message)? {
                    return Ok(());
                }
            }
            Behaviour::Status(status, headers) => {
                let has_words = headers.iter().any(|(name, _)| name == "x-echo-id");
                let error = json!({ "code": -32000, "message": "no such thing" });
                let words = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
                let words = if has_words { words.to_string() } else { String::new() };
                answer(&mut out, status, &headers, &words)?;
            }
            Behaviour::Responds(text) => answer(&mut out, 200, &json_type(), &text)?,
            Behaviour::Page => {
                let page = [("content-type".to_owned(), "text/html".to_owned())];
                answer(&mut out, 200, &page, "<html>hello</html>")?;
            }
            Behaviour::Silent => drop(wait(shared, |state| state.is_over)),
            Behaviour::Disconnects => return Ok(()),
            Behaviour::Stalls(bytes) => {
                let length = bytes + 1;
                let kind = "content-type: application/json\r\n";
                write!(out, "HTTP/1.1 200 x\r\n{kind}content-length: {length}\r\n\r\n")?;
                out.write_all(&vec![b' '; bytes])?;
                drop(wait(shared, |state| state.is_over));
            }
            Behaviour::BreaksOff => {
                let head = "HTTP/1.1 200 x\r\ncontent-type: application/json\r\n";
                return write!(out, "{head}content-length: 1000\r\n\r\n{{\"jsonrpc\":");
            }
        }
    }
    Ok(())
}

fn request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(Head, Vec<u8>)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok(Some((Head { method, path, headers, message: String::new() }, body)))
}

/// Handles a request correctly. Returns true if the connection can be reused.
fn respond_normally(
    shared: &Shared,
    out: &mut TcpStream,
    head: &Head,
    message: &Value,
) -> io::Result<bool> {
    if shared.lock().is_modern {
        return modern::respond_normally(shared, out, head, message);
    }
    let session = head.headers.get("mcp-session-id").cloned();
    let is_known = {
        let state = shared.lock();
        session.as_ref().is_some_and(|session| state.sessions.contains(session))
    };
    let is_nothing_there = head.method == "GET" && shared.lock().has_no_stream;
    if head.message != "initialize" && !is_known || is_nothing_there {
        answer(out, 404, &[], "")?;
        return Ok(true);
    }
    match (head.method.as_str(), head.message.as_str()) {
        ("GET", _) => listen(shared, out, head).map(|()| false),
        ("DELETE", _) => {
            shared.lock().sessions.remove(&session.unwrap_or_default());
            answer(out, 204, &[], "").map(|()| true)
        }
        (_, "initialize") => initialize(shared, out, message).map(|()| true),
        (_, "tools/call") => call(shared, out, message),
        (_, "tools/list") => {
            let schema = json!({ "type": "object" });
            let names = ["echo", "wait", "stream", "cut", "lost", "ask", "large"];
            let mut tools: Vec<Value> =
                names.iter().map(|name| json!({ "name": name, "inputSchema": schema })).collect();
            let hints = json!({ "readOnlyHint": true });
            tools.push(json!({ "name": "look", "inputSchema": schema, "annotations": hints }));
            result(out, message, &json!({ "tools": tools })).map(|()| true)
        }
        (_, "") => {
            shared.lock().answers.push(message.clone());
            shared.changed.notify_all();
            answer(out, 202, &[], "").map(|()| true)
        }
        (_, method) if method.starts_with("notifications/") => {
            answer(out, 202, &[], "").map(|()| true)
        }
        (_, "ping") => result(out, message, &json!({})).map(|()| true),
        _ => {
            let error = json!({ "code": -32601, "message": "no such method" });
            let error = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            answer(out, 200, &json_type(), &error.to_string()).map(|()| true)
        }
    }
}

fn initialize(shared: &Shared, out: &mut TcpStream, message: &Value) -> io::Result<()> {
    let requested = &message["params"]["protocolVersion"];
    let session = {
        let mut state = shared.lock();
        if let Some(only) = state.only_revision.as_deref().filter(|only| requested != only) {
            let data = json!({ "supported": [only], "requested": requested });
            let error = json!({ "code": -32022, "message": "not this one", "data": data });
            let text = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }).to_string();
            return answer(out, 400, &json_type(), &text);
        }
        state.begun += 1;
        let session = format!("session-{}", state.begun);
        state.sessions.insert(session.clone());
        session
    };
    let result = json!({
        "protocolVersion": message["params"]["protocolVersion"],
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "remote", "version": "1" },
    });
    let text = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string();
    let mut headers = json_type();
    headers.push(("mcp-session-id".to_owned(), session));
    answer(out, 200, &headers, &text)
}

/// Executes a tool call. Returns true if the connection can be reused.
fn call(shared: &Shared, out: &mut TcpStream, message: &Value) -> io::Result<bool> {
    let params = &message["params"];
    let said = params["arguments"]["message"].as_str().unwrap_or_default().to_owned();
    {
        let mut state = shared.lock();
        state.done.push(said.clone());
        if state.forgets_after.contains(&state.done.len()) {
            state.sessions.clear();
        }
    }
    shared.changed.notify_all();
    let content = json!({ "content": [{ "type": "text", "text": said }] });
    let whole = json!({ "jsonrpc": "2.0", "id": message["id"], "result": content }).to_string();
    let log = |text: &str| {
        let params = json!({ "level": "info", "data": text });
        json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string()
    };
    match params["name"].as_str().unwrap_or_default() {
        "wait" => {
            drop(wait(shared, |state| state.is_over || state.is_let_go));
            answer(out, 200, &json_type(), &whole).map(|()| true)
        }
        "stream" => {
            begin_events(out)?;
            event(out, None, &log(&said))?;
            event(out, None, &whole)?;
            end_events(out).map(|()| true)
        }
        // The stream breaks, and the response can be resumed.
        "cut" => {
            let id = format!("event-{said}");
            shared.lock().kept.insert(id.clone(), whole);
            begin_events(out)?;
            event(out, Some(&id), &log(&said))?;
            Ok(false)
        }
        // The stream breaks permanently.
        "lost" => {
            begin_events(out)?;
            event(out, None, &log(&said))?;
            Ok(false)
        }
        "ask" => {
            begin_events(out)?;
            let id = format!("ask-{said}");
            let question = json!({ "message": said, "requestedSchema": { "type": "object", "properties": {} } });
            let ask = json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": question });
            event(out, None, &ask.to_string())?;
            drop(wait(shared, |state| {
                state.is_over || state.answers.iter().any(|answer| answer["id"] == id.as_str())
            }));
            event(out, None, &whole)?;
            end_events(out).map(|()| true)
        }
        "large" => {
            let bytes = params["arguments"]["bytes"].as_u64().unwrap_or(0);
            let text = "x".repeat(usize::try_from(bytes).unwrap_or(0));
            let content = json!({ "content": [{ "type": "text", "text": text }] });
            result(out, message, &content).map(|()| true)
        }
        _ => answer(out, 200, &json_type(), &whole).map(|()| true),
    }
}

/// Serves a notification stream. With a known `Last-Event-ID`, sends the rest of that interrupted
/// stream instead.
fn listen(shared: &Shared, out: &mut TcpStream, head: &Head) -> io::Result<()> {
    let last = head.headers.get("last-event-id");
    let kept = last.and_then(|last| shared.lock().kept.remove(last));
    begin_events(out)?;
    if let Some(kept) = kept {
        event(out, None, &kept)?;
        return end_events(out);
    }
    shared.lock().listeners.push(out.try_clone()?);
    // Serve until the client closes the connection.
    let mut rest = [0; 64];
    while out.read(&mut rest)? > 0 {}
    Ok(())
}

fn wait(shared: &Shared, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
    let state = shared.lock();
    let waited = shared.changed.wait_timeout_while(state, HOLD_TIMEOUT, |state| !is_so(state));
    waited.unwrap_or_else(PoisonError::into_inner).0
}

fn json_type() -> Vec<(String, String)> {
    vec![("content-type".to_owned(), "application/json".to_owned())]
}

fn result(out: &mut TcpStream, message: &Value, result: &Value) -> io::Result<()> {
    let whole = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    answer(out, 200, &json_type(), &whole.to_string())
}

fn answer(
    out: &mut TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.extend([name, ": ", value, "\r\n"]);
    }
    text.push_str("\r\n");
    text.push_str(body);
    out.write_all(text.as_bytes())
}

fn begin_events(out: &mut TcpStream) -> io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )
}

fn event(out: &mut TcpStream, id: Option<&str>, data: &str) -> io::Result<()> {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let text = format!("{id}data: {data}\n\n");
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn end_events(out: &mut TcpStream) -> io::Result<()> {
    out.write_all(b"0\r\n\r\n")
}
