//! Answers over HTTP, and how they are written.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::answer::Answer;
use crate::stream::{Next, Reader};

/// After so long a silence something is said, so that a client that has left is noticed.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// How soon a client that was let go of may come back, in milliseconds.
const RETRY: u32 = 100;

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Json(String),
    Empty,
    Events {
        reader: Reader,
        style: Style,
    },
    /// To a request of the modern era.
    Answer(Answer),
}

/// How events are written.
#[derive(Debug, Clone)]
pub(crate) enum Style {
    /// With ids that begin with the number of the stream; `is_primed` has a first one that
    /// says nothing.
    Resumable { stream: u64, is_primed: bool },
    /// After one that names the place to post to.
    Older { endpoint: String },
}

impl Reply {
    /// No more than a status and, in words, why.
    pub(crate) fn refusal(status: u16, why: &str) -> Self {
        let error = format!(r#"{{"code":-32600,"message":{}}}"#, xy_testkit::json::quoted(why));
        let body = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#);
        Self { status, headers: Vec::new(), body: Body::Json(body) }
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Empty }
    }

    pub(crate) fn ok(body: Body) -> Self {
        Self { status: 200, headers: Vec::new(), body }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Writes an answer; whether the connection can be used again.
pub(crate) fn write(writer: &mut TcpStream, reply: Reply) -> io::Result<bool> {
    let head = head(reply.status, &reply.headers);
    match reply.body {
        Body::Empty => {
            writer.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes())?;
            Ok(true)
        }
        Body::Json(json) => write_json(writer, &head, &json),
        Body::Events { reader, style } => {
            begin_events(writer, &head)?;
            write_events(writer, reader, &style)?;
            Ok(false)
        }
        Body::Answer(answer) => answer.write(writer),
    }
}

/// The head of an answer, as far as it is the same for all.
pub(crate) fn head(status: u16, headers: &[(&'static str, String)]) -> String {
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n"); // A string takes everything.
    }
    head
}

/// Writes JSON after this head; the connection can be used again.
pub(crate) fn write_json(writer: &mut TcpStream, head: &str, json: &str) -> io::Result<bool> {
    let length = json.len();
    let type_ = "Content-Type: application/json";
    let whole = format!("{head}{type_}\r\nContent-Length: {length}\r\n\r\n{json}");
    writer.write_all(whole.as_bytes())?;
    Ok(true)
}

/// Writes what comes before a stream of events.
pub(crate) fn begin_events(writer: &mut TcpStream, head: &str) -> io::Result<()> {
    let more = "Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n\
                X-Accel-Buffering: no\r\nConnection: close\r\n\r\n";
    writer.write_all(format!("{head}{more}").as_bytes())
}

fn write_events(writer: &mut TcpStream, mut reader: Reader, style: &Style) -> io::Result<()> {
    match style {
        Style::Resumable { stream, is_primed: true } => {
            let at = reader.at();
            writer
                .write_all(format!("id: {stream}-{at}\nretry: {RETRY}\ndata: \n\n").as_bytes())?;
        }
        Style::Resumable { is_primed: false, .. } => {}
        Style::Older { endpoint } => {
            writer.write_all(format!("event: endpoint\ndata: {endpoint}\n\n").as_bytes())?;
        }
    }
    loop {
        let text = match (reader.next(SIGN_OF_LIFE), style) {
            (Next::Event(number, data), Style::Resumable { stream, .. }) => {
                format!("event: message\nid: {stream}-{number}\ndata: {data}\n\n")
            }
            (Next::Event(_, data), Style::Older { .. }) => {
                format!("event: message\ndata: {data}\n\n")
            }
            (Next::Silence, _) => ": nothing new\n\n".to_owned(),
            (Next::End, _) => return Ok(()),
        };
        writer.write_all(text.as_bytes())?;
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}
