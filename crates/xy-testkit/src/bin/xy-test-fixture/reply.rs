//! HTTP responses and their serialization.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::modern_response::ModernResponse;
use crate::stream::{Next, Reader};

/// Interval of comments on a silent stream. Writing them detects a disconnected client.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The `retry` field of a resumable stream: the client's reconnect delay in milliseconds.
const RETRY: u32 = 100;

/// An HTTP response.
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
        event_format: EventFormat,
    },
    /// The response to a request of the modern era.
    ModernResponse(ModernResponse),
}

/// The format of SSE events.
#[derive(Debug, Clone)]
pub(crate) enum EventFormat {
    /// Events have ids, which start with the number of the stream. `has_priming_event` adds a
    /// first event without data.
    Resumable { stream: u64, has_priming_event: bool },
    /// Events have no ids. The first one names the endpoint for POST requests.
    LegacySse { endpoint: String },
}

impl Reply {
    /// Returns an error response with a status and a reason.
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

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Writes a response. Returns true if the connection can be reused.
pub(crate) fn write(writer: &mut TcpStream, reply: Reply) -> io::Result<bool> {
    let head = head(reply.status, &reply.headers);
    match reply.body {
        Body::Empty => {
            writer.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes())?;
            Ok(true)
        }
        Body::Json(json) => write_json(writer, &head, &json),
        Body::Events { reader, event_format } => {
            write_event_stream_head(writer, &head)?;
            write_events(writer, reader, &event_format)?;
            Ok(false)
        }
        Body::ModernResponse(answer) => answer.write(writer),
    }
}

/// Returns the status line and the given headers, without the final empty line.
pub(crate) fn head(status: u16, headers: &[(&'static str, String)]) -> String {
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n"); // Writing to a string never fails.
    }
    head
}

/// Writes a JSON response that starts with `head`. Returns true: the connection can be reused.
pub(crate) fn write_json(writer: &mut TcpStream, head: &str, json: &str) -> io::Result<bool> {
    let length = json.len();
    let type_ = "Content-Type: application/json";
    let whole = format!("{head}{type_}\r\nContent-Length: {length}\r\n\r\n{json}");
    writer.write_all(whole.as_bytes())?;
    Ok(true)
}

/// Writes the head of an SSE stream.
pub(crate) fn write_event_stream_head(writer: &mut TcpStream, head: &str) -> io::Result<()> {
    let more = "Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n\
                X-Accel-Buffering: no\r\nConnection: close\r\n\r\n";
    writer.write_all(format!("{head}{more}").as_bytes())
}

fn write_events(
    writer: &mut TcpStream,
    mut reader: Reader,
    event_format: &EventFormat,
) -> io::Result<()> {
    match event_format {
        EventFormat::Resumable { stream, has_priming_event: true } => {
            let at = reader.position();
            writer
                .write_all(format!("id: {stream}-{at}\nretry: {RETRY}\ndata: \n\n").as_bytes())?;
        }
        EventFormat::Resumable { has_priming_event: false, .. } => {}
        EventFormat::LegacySse { endpoint } => {
            writer.write_all(format!("event: endpoint\ndata: {endpoint}\n\n").as_bytes())?;
        }
    }
    loop {
        let text = match (reader.next(KEEP_ALIVE_INTERVAL), event_format) {
            (Next::Event(number, data), EventFormat::Resumable { stream, .. }) => {
                format!("event: message\nid: {stream}-{number}\ndata: {data}\n\n")
            }
            (Next::Event(_, data), EventFormat::LegacySse { .. }) => {
                format!("event: message\ndata: {data}\n\n")
            }
            (Next::Timeout, _) => ": nothing new\n\n".to_owned(),
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
