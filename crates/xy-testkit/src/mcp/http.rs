//! Clients over Streamable HTTP and the older HTTP+SSE transport. They use no HTTP library, so that
//! tests can also send invalid requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use super::web::{Connection, Head, HttpAnswer, next_event};
use super::{McpClient, Receiver, Transport, WAIT_TIMEOUT};

/// Maximum number of idle connections that are kept for reuse.
const MAX_IDLE: usize = 64;

/// Read timeout of a notification stream. Streams may be silent for long, and end with their
/// client.
const STREAM_TIMEOUT: Duration = Duration::from_mins(10);

/// The connection number of an older client's stream. No exchange uses it.
const STREAM_NUMBER: u64 = u64::MAX;

/// A client over Streamable HTTP. Dropping it closes its streams, but does not end its session.
pub struct McpHttp {
    client: McpClient,
    web: Arc<Web>,
}

struct Web {
    address: SocketAddr,
    path: String,
    own_headers: Mutex<RequestHeaders>,
    idle: Mutex<Vec<Connection>>,
    /// The sockets of open exchanges, which are closed with the client.
    open: Mutex<BTreeMap<u64, TcpStream>>,
    /// Notified when an exchange ends.
    closed: Condvar,
    last_number: AtomicU64,
}

/// The headers of each request.
#[derive(Debug, Default, Clone)]
struct RequestHeaders {
    token: Option<String>,
    session: Option<String>,
    version: Option<String>,
    more: Vec<(String, String)>,
    last_event: Option<String>,
}

impl McpHttp {
    /// Creates a client of `http://<address><path>` without sending a request. An empty `token`
    /// means no token.
    #[track_caller]
    pub fn new(address: &str, path: &str, token: &str) -> Self {
        let web = Arc::new(Web::new(address, path, token));
        let client = McpClient::new(Receiver::new(), Arc::clone(&web) as Arc<dyn Transport>);
        Self { client, web }
    }

    /// Adds a header to all later requests.
    #[must_use]
    pub fn with_header(self, name: &str, value: &str) -> Self {
        self.web.own_headers().more.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the session id of the server.
    pub fn session(&self) -> Option<String> {
        self.web.own_headers().session.clone()
    }

    /// Switches to another session, or to none.
    pub fn set_session(&self, session: Option<&str>) {
        self.web.own_headers().session = session.map(str::to_owned);
    }

    /// Returns the id of the last event that had one.
    pub fn last_event_id(&self) -> Option<String> {
        self.web.own_headers().last_event.clone()
    }

    /// Performs one exchange with the headers of this client and `headers`, which override them. An
    /// empty value removes a header.
    #[track_caller]
    pub fn exchange(&self, method: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let head = self.web.head(method, headers, body.len());
        if body.len() < COPIED_SIZE {
            return self.raw(format!("{head}{body}").as_bytes());
        }
        self.send_parts(&[head.as_bytes(), body.as_bytes()])
    }

    /// Posts this body and returns the response, which the client does not process.
    #[track_caller]
    pub fn post(&self, body: &str) -> HttpAnswer {
        self.exchange("POST", &[], body)
    }

    /// Sends these bytes on a separate connection, and returns the HTTP response.
    #[track_caller]
    pub fn raw(&self, bytes: &[u8]) -> HttpAnswer {
        self.send_parts(&[bytes])
    }

    #[track_caller]
    fn send_parts(&self, parts: &[&[u8]]) -> HttpAnswer {
        let answer = Connection::open(self.web.address, WAIT_TIMEOUT).and_then(|mut it| {
            let sent = parts.iter().try_for_each(|part| it.send(part));
            // The server may reject a request before it has read all of it.
            it.answer().or_else(|cause| sent.and(Err(cause)))
        });
        answer.unwrap_or_else(|cause| panic!("no answer from {}: {cause}", self.web.address))
    }

    /// Opens the notification stream and returns its status. Its messages are received if the
    /// status is 200.
    #[track_caller]
    pub fn open_stream(&self) -> u16 {
        self.open_stream_after(None)
    }

    /// Opens the notification stream and resumes it after this event.
    #[track_caller]
    pub fn open_stream_after(&self, last_event: Option<&str>) -> u16 {
        let last_event = last_event.map(|id| ("Last-Event-ID", id));
        let accept = ("Accept", "text/event-stream");
        let headers: Vec<_> = [Some(accept), last_event].into_iter().flatten().collect();
        let request = self.web.head("GET", &headers, 0);
        let opened = Connection::open(self.web.address, STREAM_TIMEOUT).and_then(|mut it| {
            it.send(request.as_bytes())?;
            let head = it.head()?;
            Ok((it, head))
        });
        let (mut connection, head) =
            opened.unwrap_or_else(|cause| panic!("no stream from {}: {cause}", self.web.address));
        let status = head.status;
        if status == 200 {
            let (web, receiver) = (Arc::clone(&self.web), Arc::clone(&self.client.receiver));
            let number = web.note(&connection);
            thread::spawn(move || {
                // A stream may end by error.
                let _ = web.receive_body(&receiver, &mut connection, &head);
                web.close(number);
            });
        }
        status
    }

    /// Ends the session and returns the status.
    #[track_caller]
    pub fn delete(&self) -> u16 {
        self.exchange("DELETE", &[], "").status
    }

    /// Breaks all open exchanges and streams, like a network failure.
    pub fn break_connections(&self) {
        self.web.break_connections();
    }

    /// Ends the session, and closes all streams. Panics if the server does not end the session.
    #[track_caller]
    pub fn close(self) {
        let status = self.delete();
        assert!((200..300).contains(&status), "the session was not ended: {status}");
    }
}

/// The size above which a body is sent as it is, in a second write: copying it costs the processor
/// time that a benchmark measures.
const COPIED_SIZE: usize = 64 * 1024;

/// A client over the HTTP+SSE transport of 2024: messages are posted, and responses arrive on one
/// stream. Dropping the client closes the stream, which ends the session.
pub struct McpOlder {
    client: McpClient,
    posts: Arc<Posts>,
}

/// The posting half of an older client. The server only accepts posts; its responses arrive on the
/// stream.
struct Posts(Web);

impl McpOlder {
    /// Opens the stream at `http://<address><path>` and waits for its `endpoint` event.
    #[track_caller]
    pub fn open(address: &str, path: &str, token: &str) -> Self {
        let stream = Web::new(address, path, token);
        let opened = Connection::open(stream.address, STREAM_TIMEOUT).and_then(|mut it| {
            it.send(stream.head("GET", &[("Accept", "text/event-stream")], 0).as_bytes())?;
            let head = it.head()?;
            Ok((it, head))
        });
        let (mut connection, head) =
            opened.unwrap_or_else(|cause| panic!("no stream from {address}: {cause}"));
        assert!(head.status == 200 && head.is_stream(), "no stream: {head:?}");
        let socket = connection.socket().try_clone();
        let receiver = Receiver::new();
        let (closes, address) = (Arc::clone(&receiver), address.to_owned());
        let (opened, opens) = mpsc::sync_channel(1);
        let token = token.to_owned();
        thread::spawn(move || {
            let mut body = BufReader::new(connection.body(&head));
            let mut posts: Option<Arc<Posts>> = None;
            // A stream may end by error.
            while let Ok(Some(event)) = next_event(&mut body) {
                match &posts {
                    Some(posts) => posts.0.receive(&closes, &event.data),
                    None if event.name == "endpoint" => {
                        let found = Arc::new(Posts(Web::new(&address, &event.data, &token)));
                        if let Ok(socket) = &socket
                            && let Ok(socket) = socket.try_clone()
                        {
                            found.0.open().insert(STREAM_NUMBER, socket);
                        }
                        let _ = opened.send(Arc::clone(&found)); // The test may have given up.
                        posts = Some(found);
                    }
                    None => break,
                }
            }
            closes.inbox.change(|received| received.is_closed = true);
            if let Some(posts) = posts {
                posts.0.close(STREAM_NUMBER);
            }
        });
        let posts = opens.recv_timeout(WAIT_TIMEOUT);
        let posts = posts.unwrap_or_else(|_| panic!("{path} named no endpoint"));
        let client = McpClient::new(receiver, Arc::clone(&posts) as Arc<dyn Transport>);
        Self { client, posts }
    }

    /// Returns the endpoint for messages.
    pub fn endpoint(&self) -> &str {
        &self.posts.0.path
    }

    /// Breaks the stream, like a network failure.
    pub fn break_connections(&self) {
        self.posts.0.break_connections();
    }
}

impl Deref for McpOlder {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        &self.client
    }
}

impl Drop for McpOlder {
    fn drop(&mut self) {
        self.break_connections();
    }
}

impl std::fmt::Debug for McpOlder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("McpOlder").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Transport for Posts {
    fn send(self: Arc<Self>, receiver: &Arc<Receiver>, message: &str, id: Option<&str>) {
        let request = format!("{}{message}", self.0.head("POST", &[], message.len()));
        match (self.0.post(receiver, &request), id) {
            (Ok(()), _) => {}
            (Err(why), Some(id)) => receiver.inbox.lose(id, why),
            (Err(why), None) => receiver.inbox.change(|received| received.strays.push(why)),
        }
    }

    fn agreed(&self, version: &str) {
        self.0.own_headers().version = Some(version.to_owned());
    }
}

impl Deref for McpHttp {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        &self.client
    }
}

impl Drop for McpHttp {
    fn drop(&mut self) {
        self.break_connections();
    }
}

impl std::fmt::Debug for McpHttp {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("McpHttp").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Transport for Web {
    fn send(self: Arc<Self>, receiver: &Arc<Receiver>, message: &str, id: Option<&str>) {
        let request = format!("{}{message}", self.head("POST", &[], message.len()));
        let Some(id) = id else {
            // Posting on this thread keeps the order of messages. A failure is recorded as a stray.
            if let Err(why) = self.post(receiver, &request) {
                receiver.inbox.change(|received| received.strays.push(why));
            }
            return;
        };
        let (receiver, id) = (Arc::clone(receiver), id.to_owned());
        thread::spawn(move || {
            let ended = self.post(&receiver, &request);
            let why = ended.err().unwrap_or_else(|| "the body ended without it".to_owned());
            receiver.inbox.lose(&id, why);
        });
    }

    fn agreed(&self, version: &str) {
        self.own_headers().version = Some(version.to_owned());
    }
}

impl Web {
    #[track_caller]
    fn new(address: &str, path: &str, token: &str) -> Self {
        let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
        let headers = RequestHeaders {
            token: (!token.is_empty()).then(|| token.to_owned()),
            ..RequestHeaders::default()
        };
        Self {
            address: found.unwrap_or_else(|| panic!("`{address}` is no address")),
            path: path.to_owned(),
            own_headers: Mutex::new(headers),
            idle: Mutex::default(),
            open: Mutex::default(),
            closed: Condvar::new(),
            last_number: AtomicU64::new(0),
        }
    }

    /// Closes all connections. Waits until everything that arrived before has been handled.
    fn break_connections(&self) {
        self.idle().clear();
        let open = self.open();
        let broken: Vec<u64> = open.keys().copied().collect();
        for socket in open.values() {
            let _ = socket.shutdown(Shutdown::Both); // The server may have closed it already.
        }
        let is_read = |open: &mut BTreeMap<u64, TcpStream>| {
            broken.iter().any(|number| open.contains_key(number))
        };
        drop(self.closed.wait_timeout_while(open, WAIT_TIMEOUT, is_read));
    }

    /// Removes a connection from the open ones.
    fn close(&self, number: u64) {
        self.open().remove(&number);
        self.closed.notify_all();
    }

    /// Posts a request and handles the messages in the response. An error is a text for people.
    fn post(&self, receiver: &Arc<Receiver>, request: &str) -> Result<(), String> {
        let failed = |cause: io::Error| format!("the exchange broke: {cause}");
        let mut connection = self.connection().map_err(failed)?;
        let number = self.note(&connection);
        let ended = self.post_on(&mut connection, receiver, request);
        self.close(number);
        let mut idle = self.idle();
        if ended.map_err(failed)? && idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        Ok(())
    }

    /// Posts on this connection. Returns true if the connection can be reused.
    fn post_on(
        &self,
        connection: &mut Connection,
        receiver: &Arc<Receiver>,
        request: &str,
    ) -> io::Result<bool> {
        connection.send(request.as_bytes())?;
        let head = connection.head()?;
        if let Some(session) = head.header("mcp-session-id") {
            self.own_headers().session = Some(session.to_owned());
        }
        self.receive_body(receiver, connection, &head)?;
        Ok(head.keeps_alive())
    }

    /// Returns an idle connection that is still usable, or opens a new one.
    fn connection(&self) -> io::Result<Connection> {
        let usable = || {
            let mut idle = self.idle();
            while let Some(connection) = idle.pop() {
                if connection.is_usable() {
                    return Some(connection);
                }
            }
            None
        };
        usable().map_or_else(|| Connection::open(self.address, WAIT_TIMEOUT), Ok)
    }

    /// Handles the message or the stream of messages in a body. A status other than 2xx is an
    /// error.
    fn receive_body(
        &self,
        receiver: &Arc<Receiver>,
        connection: &mut Connection,
        head: &Head,
    ) -> io::Result<()> {
        let mut body = connection.body(head);
        if head.status == 200 && head.is_stream() {
            let mut body = BufReader::new(body);
            while let Some(event) = next_event(&mut body)? {
                if event.id.is_some() {
                    self.own_headers().last_event = event.id;
                }
                self.receive(receiver, &event.data);
            }
            return Ok(());
        }
        let mut bytes = Vec::new();
        body.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        if !(200..300).contains(&head.status) {
            return Err(io::Error::other(format!("status {}: {text}", head.status)));
        }
        self.receive(receiver, &text);
        Ok(())
    }

    fn receive(&self, receiver: &Arc<Receiver>, text: &str) {
        if text.is_empty() {
            return; // An event with only an id, or an accepted notification.
        }
        if let Some(answer) = receiver.receive(text) {
            let request = format!("{}{answer}", self.head("POST", &[], answer.len()));
            if let Err(why) = self.post(receiver, &request) {
                receiver.inbox.change(|received| received.strays.push(why));
            }
        }
    }

    /// Returns the head of a request. `headers` override the headers of the client, and an empty
    /// value removes a header.
    fn head(&self, method: &str, headers: &[(&str, &str)], length: usize) -> String {
        let own = self.own_headers().clone();
        let mut all = vec![
            ("Host".to_owned(), self.address.to_string()),
            ("Accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        if method == "POST" {
            all.push(("Content-Type".to_owned(), "application/json".to_owned()));
        }
        all.push(("Content-Length".to_owned(), length.to_string()));
        let token = own.token.map(|it| ("Authorization".to_owned(), format!("Bearer {it}")));
        let session = own.session.map(|it| ("Mcp-Session-Id".to_owned(), it));
        let version = own.version.map(|it| ("MCP-Protocol-Version".to_owned(), it));
        all.extend([token, session, version].into_iter().flatten());
        let given = headers.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        for (name, value) in own.more.into_iter().chain(given) {
            all.retain(|(it, _)| !it.eq_ignore_ascii_case(&name));
            if !value.is_empty() {
                all.push((name, value));
            }
        }
        let mut head = format!("{method} {} HTTP/1.1\r\n", self.path);
        for (name, value) in all {
            let _ = write!(head, "{name}: {value}\r\n"); // Cannot fail for a `String`.
        }
        head + "\r\n"
    }

    /// Adds a connection to the open ones and returns its number.
    fn note(&self, connection: &Connection) -> u64 {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed);
        if let Ok(socket) = connection.socket().try_clone() {
            self.open().insert(number, socket);
        }
        number
    }

    fn own_headers(&self) -> MutexGuard<'_, RequestHeaders> {
        self.own_headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
