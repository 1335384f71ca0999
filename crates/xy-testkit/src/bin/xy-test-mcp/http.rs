//! The same server over HTTP, as plain as can be: something to compare with.
//!
//! Each POST is answered with JSON on a connection that stays open. No streams: what is said
//! besides the answer is lost. With `--sessions` a greeting begins one, and whatever is said in
//! none is refused; without, there are none.

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

use crate::dull;
use crate::eras::Era;
use crate::outlet::{Out, Outlet};
use crate::plan::Plan;
use crate::server::{self, Server};

/// No message of a test is longer.
const LONGEST_BODY: usize = 64 << 20;

/// More than a call says before a worker of its own says it.
const ROOM: usize = 64;

/// Listens on `port` of the loopback until it is told to end.
pub(crate) fn serve(server: &Arc<Server>, port: u16) -> ExitCode {
    let listener = TcpListener::bind((standin::listen_address(), port)).expect("the port is free");
    let address = listener.local_addr().expect("it listens");
    let server = Arc::clone(server);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            thread::spawn(move || converse(&server, client));
        }
    });
    Output::Stderr.say(&format!("listening on {address}"));
    standin::sleep(Output::Stderr)
}

/// Answers one client until it leaves or says what we do not understand.
fn converse(server: &Arc<Server>, client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    let (answers, answered) = sync_channel(ROOM);
    let outlet = Arc::new(Outlet::to_http(answers));
    let (mut writer, mut out) = (client, Vec::new());
    while let Some(Request { is_about_health, session, body }) = read_request(&mut reader)? {
        if IS_FROZEN.load(Ordering::SeqCst) {
            server::hold_still(); // Nothing is heard any more, whoever stops the process when.
        }
        out.clear();
        let freezes = is_greeted_by(&server.plan, &body) && server.is_freeze_due();
        IS_FROZEN.fetch_or(freezes, Ordering::SeqCst);
        let begins = server.plan.has("--sessions") && is_greeting(&body);
        let is_lost = server.plan.has("--sessions") && !begins && !is_known(session.as_deref());
        if is_about_health || is_lost {
            let status = if is_lost { "404 Not Found" } else { dull::status(server) };
            write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")?;
            writer.write_all(&out)?;
            continue;
        }
        note(server, &body)?;
        let answer = if server.hear(&body, &outlet) { answer(&answered) } else { None };
        match answer {
            Some(json) => {
                let length = json.len();
                write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")?;
                if begins {
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

/// Whether it is to stop, or has.
static IS_FROZEN: AtomicBool = AtomicBool::new(false);

/// Whether the answer to this is the end of a greeting.
fn is_greeted_by(plan: &Plan, body: &[u8]) -> bool {
    let last = match plan.era {
        Era::Legacy => "notifications/initialized",
        Era::Modern | Era::Both => "server/discover",
    };
    method_of(body) == last
}

/// Writes a message down before it is heard, on a line of its own.
fn note(server: &Server, body: &[u8]) -> io::Result<()> {
    let Some(diary) = server.plan.diary.as_ref().filter(|_| !body.is_empty()) else {
        return Ok(());
    };
    File::options().append(true).create(true).open(diary)?.write_all(&[body, b"\n"].concat())
}

/// How many sessions have begun; their ids are made of that.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

fn begin_session() -> String {
    format!("{}-{}", std::process::id(), SESSIONS.fetch_add(1, Ordering::SeqCst) + 1)
}

/// Whether a session of this id has begun in this process.
fn is_known(session: Option<&str>) -> bool {
    let ours = session.and_then(|it| it.strip_prefix(&format!("{}-", std::process::id())));
    let number = ours.and_then(|number| number.parse::<u64>().ok());
    number.is_some_and(|number| (1..=SESSIONS.load(Ordering::SeqCst)).contains(&number))
}

fn is_greeting(body: &[u8]) -> bool {
    method_of(body) == "initialize"
}

fn method_of(body: &[u8]) -> String {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    message["method"].as_str().unwrap_or_default().to_owned()
}

/// The answer, once it is there.
fn answer(answered: &Receiver<Out>) -> Option<Vec<u8>> {
    loop {
        match answered.recv_timeout(standin::SAFETY_LIMIT) {
            Ok(Out::Answer(json)) => return Some(json),
            Ok(Out::Other) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// What somebody wants.
struct Request {
    /// It is a GET of something else than messages.
    is_about_health: bool,
    /// The session that it is said in.
    session: Option<String>,
    body: Vec<u8>,
}

/// The next request; `None` if there is none any more.
fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
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
    if length > LONGEST_BODY {
        return Ok(None);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { is_about_health, session, body }))
}
