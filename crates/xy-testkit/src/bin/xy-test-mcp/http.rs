//! The server over minimal HTTP, as a baseline for comparison.
//!
//! Each POST is answered with JSON on a connection that stays open. There are no streams:
//! messages other than the answer are dropped. With `--sessions`, `initialize` creates a session,
//! and any other request without a known session gets 404.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;

use serde_json::Value;
use xy_testkit::standin::{self, Output};

use crate::blocking;
use crate::eras::Era;
use crate::options::Options;
use crate::responder::{Outgoing, Responder};
use crate::server::{self, Server};

/// Maximum size of a body; no message of a test is longer.
const MAX_BODY_SIZE: usize = 64 << 20;

/// The capacity of the channel to a connection; more messages than any call sends at once
/// without a worker.
const CHANNEL_CAPACITY: usize = 64;

/// Listens on `port` of the loopback interface until a signal ends the process.
pub(crate) fn serve(server: &Arc<Server>, port: u16) -> ExitCode {
    let listener = TcpListener::bind((standin::listen_address(), port)).expect("the port is free");
    let address = listener.local_addr().expect("it listens");
    let server = Arc::clone(server);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            thread::spawn(move || serve_client(&server, client));
        }
    });
    Output::Stderr.say(&format!("listening on {address}"));
    standin::sleep(Output::Stderr)
}

/// Answers one client until it disconnects or sends something unreadable.
fn serve_client(server: &Arc<Server>, client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    let (answers, answered) = sync_channel(CHANNEL_CAPACITY);
    let responder = Arc::new(Responder::to_http(answers));
    let (mut writer, mut out) = (client, Vec::new());
    while let Some(HttpRequest { is_about_health, session, body }) = read_request(&mut reader)? {
        if IS_FROZEN.load(Ordering::SeqCst) {
            server::park_forever(); // Reads nothing more, even before SIGSTOP takes effect.
        }
        out.clear();
        let freezes = completes_handshake(&server.options, &body) && server.is_freeze_due();
        IS_FROZEN.fetch_or(freezes, Ordering::SeqCst);
        let creates_session = server.options.has("--sessions") && is_initialize(&body);
        let lacks_session =
            server.options.has("--sessions") && !creates_session && !is_known(session.as_deref());
        if is_about_health || lacks_session {
            let status = if lacks_session { "404 Not Found" } else { blocking::status(server) };
            write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")?;
            writer.write_all(&out)?;
            continue;
        }
        log_input(server, &body)?;
        let answer =
            if server.handle(&body, &responder) { wait_for_answer(&answered) } else { None };
        match answer {
            Some(json) => {
                let length = json.len();
                write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")?;
                if creates_session {
                    write!(out, "Mcp-Session-Id: {}\r\n", begin_session())?;
                }
                write!(out, "Content-Length: {length}\r\n\r\n")?;
                out.extend_from_slice(&json);
            }
            None => write!(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")?,
        }
        writer.write_all(&out)?;
        if freezes {
            server::freeze();
        }
    }
    Ok(())
}

/// True once the process must freeze.
static IS_FROZEN: AtomicBool = AtomicBool::new(false);

/// Returns true if the answer to this body completes the handshake.
fn completes_handshake(options: &Options, body: &[u8]) -> bool {
    let last = match options.era {
        Era::Legacy => "notifications/initialized",
        Era::Modern | Era::Both => "server/discover",
    };
    method_of(body) == last
}

/// Appends a message to the input log, as a line, before it is handled.
fn log_input(server: &Server, body: &[u8]) -> io::Result<()> {
    let Some(input_log) = server.options.input_log.as_ref().filter(|_| !body.is_empty()) else {
        return Ok(());
    };
    File::options().append(true).create(true).open(input_log)?.write_all(&[body, b"\n"].concat())
}

/// The number of sessions begun, which is part of their ids.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

fn begin_session() -> String {
    format!("{}-{}", std::process::id(), SESSIONS.fetch_add(1, Ordering::SeqCst) + 1)
}

/// Returns true if this process has created the session.
fn is_known(session: Option<&str>) -> bool {
    let own = session.and_then(|it| it.strip_prefix(&format!("{}-", std::process::id())));
    let number = own.and_then(|number| number.parse::<u64>().ok());
    number.is_some_and(|number| (1..=SESSIONS.load(Ordering::SeqCst)).contains(&number))
}

fn is_initialize(body: &[u8]) -> bool {
    method_of(body) == "initialize"
}

fn method_of(body: &[u8]) -> String {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    message["method"].as_str().unwrap_or_default().to_owned()
}

/// Waits for the answer and returns it.
fn wait_for_answer(answered: &Receiver<Outgoing>) -> Option<Vec<u8>> {
    loop {
        match answered.recv_timeout(standin::SAFETY_LIMIT) {
            Ok(Outgoing::Answer(json)) => return Some(json),
            Ok(Outgoing::Other) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// An HTTP request.
struct HttpRequest {
    /// True for a GET of any path but `/mcp`.
    is_about_health: bool,
    /// The session that the request names.
    session: Option<String>,
    body: Vec<u8>,
}

/// Reads the next request. Returns `None` if the client has disconnected or the body is too
/// large.
fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<HttpRequest>> {
    let (mut length, mut is_about_health, mut session) = (0, false, None);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let header = std::str::from_utf8(&line).unwrap_or_default().trim_end();
        if header.is_empty() {
            break;
        }
        is_about_health |= header.starts_with("GET ") && !header.starts_with("GET /mcp ");
        let Some((name, value)) = header.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        } else if name.eq_ignore_ascii_case("mcp-session-id") {
            session = Some(value.trim().to_owned());
        }
    }
    if length > MAX_BODY_SIZE {
        return Ok(None);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(HttpRequest { is_about_health, session, body }))
}
