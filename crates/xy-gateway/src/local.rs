//! The local listener: a Unix socket for `xy connect`, with one message per line.

mod socket;

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use socket::Socket;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use xy_catalog::names;
use xy_http::HttpStatus;
use xy_http::frontend::{
    ClientSession, Disposition, Entry, Frontend, Lifetime, Refusal, Responder, Route, View,
};
use xy_mcp::edit::append_on_one_line;
use xy_mcp::reply;
use xy_protocol::control::quoted as shortened;
use xy_protocol::framing::{Line, LineSplitter};
use xy_protocol::handshake::{self, Answer, HANDSHAKE_VERSION, Hello};
use xy_transport::error_log::FailedRequest;
use xy_transport::large::{LARGE_THRESHOLD, LargeReader};
use xy_transport::message_text::MAX_MESSAGE;
use xy_transport::scratch::READ_BYTES;
use xy_transport::share::LOCAL;

/// Maximum number of unread bytes of a client. A client with more is disconnected.
const MAX_UNREAD_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of clients. Each needs a file descriptor, and servers need some too.
const MAX_LOCAL_CLIENTS: usize = 2048;

/// Maximum length of a client's first line. The largest legitimate one contains a name.
const MAX_HELLO_BYTES: usize = 64 * 1024;

/// Maximum number of profiles that are listed to a client that requests an unknown one.
const MAX_LISTED_PROFILES: usize = 10;

/// How long a client may take to send its first line.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay after a failed accept, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a client that sends nothing more may take to read the last responses. The bridge waits
/// half as long: it has to give up first, as it can report that.
const FINAL_RESPONSES_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval in which the listener checks whether such a client is still connected.
const HANGUP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long all clients together may take to receive the goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Accepts clients until `stopping` is true, and then says goodbye to them. If the socket's file is
/// lost, `replacements` provides another listener.
pub(crate) async fn serve(
    listener: UnixListener,
    replacements: mpsc::Receiver<std::os::unix::net::UnixListener>,
    gateway: Rc<impl Frontend + HttpStatus + 'static>,
    stopping: watch::Receiver<bool>,
) {
    let own_uid = rustix::process::geteuid().as_raw();
    let large = gateway.large_reader();
    let status: Rc<dyn HttpStatus> = gateway.clone();
    let frontend: Rc<dyn Frontend> = gateway;
    let max_clients = MAX_LOCAL_CLIENTS;
    let listening = LocalListener { frontend, status, own_uid, max_clients, large };
    listening.serve(listener, replacements, stopping).await;
}

/// The listener's settings and dependencies.
struct LocalListener {
    frontend: Rc<dyn Frontend>,
    /// Records the limits that refuse clients.
    status: Rc<dyn HttpStatus>,
    own_uid: u32,
    max_clients: usize,
    large: LargeReader,
}

impl LocalListener {
    async fn serve(
        &self,
        mut listener: UnixListener,
        mut replacements: mpsc::Receiver<std::os::unix::net::UnixListener>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut clients = JoinSet::new();
        let client_stopping = stopping.clone();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopping.wait_for(|is_stopping| *is_stopping) => break,
                Some(_) = clients.join_next() => continue,
                accepted = listener.accept() => accepted,
                Some(replacement) = replacements.recv() => {
                    match replacement.set_nonblocking(true).and_then(|()| UnixListener::from_std(replacement)) {
                        Ok(replacement) => listener = replacement,
                        Err(problem) => tracing::error!(%problem, "the MCP socket cannot be used"),
                    }
                    continue;
                }
            };
            match accepted {
                Ok((stream, _)) => match self.admit(&stream, clients.len()) {
                    Ok(()) => {
                        let (frontend, stopping) = (self.frontend.clone(), client_stopping.clone());
                        let (large, status) = (self.large.clone(), self.status.clone());
                        clients.spawn_local(async move {
                            let gateway = (&*frontend, &*status, &large);
                            if let Err(problem) = serve_client(stream, gateway, stopping).await {
                                tracing::debug!(%problem, "lost the connection to a local client");
                            }
                        });
                    }
                    Err(refusal) => reject_overload(stream, &refusal),
                },
                Err(problem) => {
                    tracing::warn!(%problem, "could not accept a local client");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        // The other clients see the connection close.
        let _ = timeout(GOODBYE_TIMEOUT, clients.join_all()).await;
    }

    /// Checks whether a client may connect.
    fn admit(&self, stream: &UnixStream, clients: usize) -> Result<(), Answer> {
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == self.own_uid) {
            return Err(refused("this daemon belongs to another user", None));
        }
        if clients >= self.max_clients {
            self.status.limit_hit("clients of the local socket", Some(LOCAL));
            let message = format!("{clients} clients are connected, which is the maximum");
            return Err(refused(message, Some("end some of them")));
        }
        Ok(())
    }
}

/// Tells a client why it is refused, and closes the connection.
fn reject_overload(stream: UnixStream, refusal: &Answer) {
    tracing::warn!(?refusal, "refused a local client");
    let mut line = text_of(refusal);
    line.push('\n');
    // The buffer of a new socket has room for one line. A client that left needs none.
    let _ = stream.into_std().and_then(|mut stream| stream.write(line.as_bytes()));
}

fn text_of(answer: &Answer) -> String {
    serde_json::to_string(answer).expect("wire types always serialise")
}

/// The output for one client.
#[derive(Default)]
struct OutputQueue {
    buffer: RefCell<OutputBuffer>,
    new_output: Notify,
    /// Notified when there are too many unread bytes.
    overflowed: Notify,
}

#[derive(Default)]
struct OutputBuffer {
    /// The bytes that are being written. They stay here until that is complete: the writing future
    /// may be dropped in the middle of a line.
    writing: Vec<u8>,
    /// How many of these are written.
    written: usize,
    /// The bytes that follow.
    queued: Vec<u8>,
}

impl OutputBuffer {
    fn unread(&self) -> usize {
        self.writing.len() - self.written + self.queued.len()
    }

    /// Returns the bytes to write now.
    fn unwritten(&mut self) -> &[u8] {
        if self.writing.is_empty() {
            std::mem::swap(&mut self.writing, &mut self.queued);
        }
        &self.writing[self.written..]
    }

    fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.writing.len() {
            self.written = 0;
            self.writing.clear();
            self.writing.shrink_to(READ_BYTES); // A small buffer is used again.
        }
    }
}

impl OutputQueue {
    fn push(&self, line: &[u8]) {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.unread() > MAX_UNREAD_BYTES {
            self.overflowed.notify_one();
        } else {
            append_on_one_line(&mut buffer.queued, line);
            buffer.queued.push(b'\n');
        }
        self.new_output.notify_one();
    }

    /// Writes all output. Cancel safe: the next call continues.
    async fn write(&self, socket: &Socket) -> io::Result<()> {
        while self.buffer.borrow().unread() > 0 {
            if !self.write_once(socket)? {
                socket.wait_writable().await?;
            } else if self.buffer.borrow().unread() > 0 {
                // A client that reads fast must not keep other tasks waiting.
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Writes once. Returns false if the socket's buffer is full.
    fn write_once(&self, socket: &Socket) -> io::Result<bool> {
        let mut buffer = self.buffer.borrow_mut();
        match socket.write(buffer.unwritten()) {
            Ok(written) => buffer.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Waits until there are too many unread bytes.
    async fn overflow(&self) -> io::Result<()> {
        self.overflowed.notified().await;
        Err(io::Error::other("the client does not read its messages"))
    }
}

impl Responder for OutputQueue {
    fn put(&self, message: &[u8], to: Route) {
        if !matches!(to, Route::Cancelled(_)) {
            self.push(message);
        }
    }
}

async fn serve_client(
    stream: UnixStream,
    (frontend, status, large): (&dyn Frontend, &dyn HttpStatus, &LargeReader),
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let socket = Socket::new(stream)?;
    let output = Rc::new(OutputQueue::default());
    let mut buffered = Vec::new();
    let opened = match timeout(HELLO_TIMEOUT, read_hello(&socket, &mut buffered)).await {
        Ok(hello) => {
            hello?.and_then(|hello| open_session(&hello, (frontend, status), output.clone()))
        }
        Err(_) => Err(refused("no first line arrived within 10 s", None)),
    };
    let (answer, client_session) = match opened {
        Ok(client_session) => {
            (Answer::Welcome { protocol: HANDSHAKE_VERSION }, Some(client_session))
        }
        Err(refusal) => {
            tracing::debug!(?refusal, "refused a local client");
            (refusal, None)
        }
    };
    output.push(text_of(&answer).as_bytes());
    let Some(client_session) = client_session else {
        return timeout(FINAL_RESPONSES_TIMEOUT, output.write(&socket)).await.unwrap_or(Ok(()));
    };
    let ended = tokio::select! {
        ended = read_messages(&socket, (&*client_session, large), buffered, &output) => ended,
        ended = write_output(&output, &socket) => ended,
        ended = output.overflow() => {
            status.limit_hit("bytes that one local client has not read", Some(LOCAL));
            ended
        }
        Ok(_) = stopping.wait_for(|is_stopping| *is_stopping) => {
            output.push(text_of(&Answer::Goodbye).as_bytes());
            let written = timeout(GOODBYE_TIMEOUT, output.write(&socket)).await;
            client_session.close();
            return written.unwrap_or(Ok(()));
        }
    };
    if ended.is_ok() {
        // The client sends nothing more. Its open requests are answered as long as it reads.
        let responses = drain_responses(&*client_session, &output, &socket);
        let _ = timeout(FINAL_RESPONSES_TIMEOUT, responses).await;
    }
    client_session.close();
    ended
}

/// Opens a session for a client, or returns why not.
fn open_session(
    hello: &[u8],
    (frontend, status): (&dyn Frontend, &dyn HttpStatus),
    responder: Rc<OutputQueue>,
) -> Result<Rc<dyn ClientSession>, Answer> {
    let hello: Hello = serde_json::from_slice(hello).map_err(|problem| {
        refused(format!("the first line is not a hello: {problem}"), Some("use `xy connect`"))
    })?;
    if hello.protocol != HANDSHAKE_VERSION {
        let message = format!(
            "this daemon speaks revision {HANDSHAKE_VERSION} of the local protocol, and `xy connect` {}",
            hello.protocol
        );
        return Err(refused(message, Some("their versions differ: run `xy daemon --replace`")));
    }
    let view = match hello.view {
        handshake::View::Profile(name) => View::Profile(name),
        handshake::View::Server(name) => View::Server(name),
    };
    let entry =
        Entry { view, may_manage: true, lifetime: Lifetime::Session, principal: 0, bound: None };
    frontend.open(entry, responder).map_err(|refusal| {
        let hint = match &refusal {
            Refusal::NoServer(_) => Some("see `xy list`".to_owned()),
            Refusal::NoProfile(name) => Some(profile_hint(name, &frontend.profiles())),
            Refusal::TooMany(_) => {
                status.limit_hit("clients", Some(LOCAL));
                None
            }
            Refusal::Outside { .. } => None,
        };
        refused(refusal.to_string(), hint.as_deref())
    })
}

/// Returns the profile that the client may have meant, or a list of profiles.
fn profile_hint(name: &str, all: &[String]) -> String {
    if let Some(question) =
        names::did_you_mean(&names::nearest(name, all.iter().map(String::as_str)))
    {
        return question;
    }
    let listed: Vec<String> =
        all.iter().take(MAX_LISTED_PROFILES).map(|it| format!("`{}`", shortened(it))).collect();
    let more = match all.len().saturating_sub(MAX_LISTED_PROFILES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let there = if listed.is_empty() {
        String::new()
    } else {
        format!("there are {}{more}; ", listed.join(", "))
    };
    format!("{there}to add one, create a file in the folder `profiles` and run `xy reload`")
}

fn refused(message: impl Into<String>, hint: Option<&str>) -> Answer {
    Answer::Refused { message: message.into(), hint: hint.map(str::to_owned) }
}

/// Reads the first line. Stores the bytes that follow it in `buffered`.
async fn read_hello(
    socket: &Socket,
    buffered: &mut Vec<u8>,
) -> io::Result<Result<Vec<u8>, Answer>> {
    let mut splitter = LineSplitter::new(MAX_HELLO_BYTES);
    loop {
        let mut first = None;
        let read = socket.read(|mut bytes| {
            first = splitter.next_line(&mut bytes).map(|line| match line {
                Line::Whole(line) => Ok(line.to_vec()),
                Line::TooLong(_) => Err(refused(
                    format!("the first line is longer than {} KiB", MAX_HELLO_BYTES >> 10),
                    Some("use `xy connect`"),
                )),
            });
            *buffered = bytes.to_vec();
        });
        let more = read.await?;
        match first {
            Some(first) => return Ok(first),
            None if more => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Handles the client's messages until it closes its side.
async fn read_messages(
    socket: &Socket,
    (client_session, large): (&dyn ClientSession, &LargeReader),
    buffered: Vec<u8>,
    output: &OutputQueue,
) -> io::Result<()> {
    let mut splitter = LineSplitter::new(MAX_MESSAGE);
    let mut deferred = Vec::new();
    handle_lines((client_session, large), &mut splitter, &buffered, output, &mut deferred);
    drop(buffered);
    loop {
        // Nothing more is read until these are handled.
        for line in deferred.drain(..) {
            let accepted = if line.len() > LARGE_THRESHOLD {
                let message = large.read(line).await;
                message.map(|message| client_session.handle_large(&message, 0))
            } else {
                Some(client_session.handle(&line, 0))
            };
            if let Some(Disposition::Rejected(error)) = accepted {
                output.push(&error);
            }
        }
        let mut length = 0;
        let handle = |bytes: &[u8]| {
            length = bytes.len();
            handle_lines((client_session, large), &mut splitter, bytes, output, &mut deferred);
        };
        if !socket.read(handle).await? {
            return Ok(());
        }
        if length == READ_BYTES {
            large.pace().give_way(length).await;
        }
    }
}

/// Handles all complete lines up to the first large one. That line and all later ones go to
/// `deferred`, which keeps their order.
fn handle_lines(
    (client_session, large): (&dyn ClientSession, &LargeReader),
    splitter: &mut LineSplitter,
    mut bytes: &[u8],
    output: &OutputQueue,
    deferred: &mut Vec<Bytes>,
) {
    while let Some(line) = splitter.next_line(&mut bytes) {
        match line {
            Line::Whole(line) if line.len() > LARGE_THRESHOLD || !deferred.is_empty() => {
                deferred.push(Bytes::copy_from_slice(line));
            }
            Line::Whole(line) => {
                large.pace().record_small();
                if let Disposition::Rejected(error) = client_session.handle(line, 0) {
                    output.push(&error);
                }
            }
            Line::TooLong(_) => {
                let problem = format!("the message is longer than {} MiB", MAX_MESSAGE >> 20);
                let (outcome, code) = ("too-long", -32600);
                FailedRequest { client: "local", outcome, code, ..FailedRequest::default() }.log();
                output.push(&reply::error("null", code, &problem));
            }
        }
    }
}

/// Writes output as it comes. Never returns without an error.
async fn write_output(output: &OutputQueue, socket: &Socket) -> io::Result<()> {
    loop {
        output.write(socket).await?;
        output.new_output.notified().await;
    }
}

/// Writes the responses to open requests as they come.
async fn drain_responses(
    client_session: &dyn ClientSession,
    output: &OutputQueue,
    socket: &Socket,
) -> io::Result<()> {
    loop {
        tokio::select! {
            written = output.write(socket) => written?,
            ended = output.overflow() => return ended,
        }
        // A client that has closed both directions waits for no response.
        if !client_session.is_busy() || socket.is_closed_by_peer() {
            return Ok(());
        }
        let _ = timeout(HANGUP_CHECK_INTERVAL, output.new_output.notified()).await;
    }
}

#[cfg(test)]
mod tests;
