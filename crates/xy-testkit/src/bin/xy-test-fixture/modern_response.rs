//! The HTTP response to a request of the modern era.
//!
//! The response is JSON if no notification precedes it, otherwise a stream that ends with it. A
//! client that disconnects early cancels the request.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::reply::{KEEP_ALIVE_INTERVAL, head, write_event_stream_head, write_json};
use crate::session::Session;
use crate::stream::{Next, Reader};
use xy_testkit::json::Members;

/// Interval between checks for a disconnected client.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The response to one request, which may still be in progress.
#[derive(Debug)]
pub(crate) struct ModernResponse {
    reader: Reader,
    session: Arc<Session>,
    key: String,
}

impl ModernResponse {
    /// Creates the response to the request with this key.
    pub(crate) fn new(reader: Reader, session: &Arc<Session>, key: &str) -> Self {
        Self { reader, session: Arc::clone(session), key: key.to_owned() }
    }

    /// Writes messages as they arrive. Returns true if the connection can be reused.
    pub(crate) fn write(mut self, writer: &mut TcpStream) -> io::Result<bool> {
        let written = self.write_all(writer);
        if !matches!(written, Ok(true)) {
            // Has no effect if the request has been answered already.
            self.session.cancel(&self.key, &Members::default());
        }
        written
    }

    fn write_all(&mut self, writer: &mut TcpStream) -> io::Result<bool> {
        let Some(first) = self.next(writer, &[])? else {
            return Ok(false);
        };
        let message = Members::of(&first).unwrap_or_default();
        if !message.has("method") {
            return write_json(writer, &head(status(&message), &[]), &first);
        }
        write_event_stream_head(writer, &head(200, &[]))?;
        let mut next = Some(first);
        while let Some(data) = next {
            writer.write_all(format!("event: message\ndata: {data}\n\n").as_bytes())?;
            next = self.next(writer, b": nothing new\n\n")?;
        }
        Ok(false)
    }

    /// Waits for the next message. Returns `None` at the end of the stream.
    ///
    /// Writes `sign` during long silences. Fails if the client disconnects.
    fn next(&mut self, writer: &mut TcpStream, sign: &[u8]) -> io::Result<Option<String>> {
        let mut silence = Duration::ZERO;
        loop {
            match self.reader.next(CHECK_INTERVAL) {
                Next::Event(_, data) => return Ok(Some(data)),
                Next::End => return Ok(None),
                Next::Timeout if has_left(writer)? => {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Next::Timeout => silence += CHECK_INTERVAL,
            }
            if silence >= KEEP_ALIVE_INTERVAL {
                silence = Duration::ZERO;
                writer.write_all(sign)?;
            }
        }
    }
}

/// Returns true if the client has closed the connection.
fn has_left(client: &TcpStream) -> io::Result<bool> {
    client.set_nonblocking(true)?;
    let peeked = client.peek(&mut [0]);
    client.set_nonblocking(false)?;
    Ok(match peeked {
        Ok(length) => length == 0,
        Err(cause) => cause.kind() != io::ErrorKind::WouldBlock,
    })
}

/// Returns the HTTP status of a JSON-RPC response.
fn status(message: &Members) -> u16 {
    match message.members("error").raw("code") {
        Some("-32601") => 404,
        Some("-32020" | "-32021" | "-32022") => 400,
        _ => 200,
    }
}
