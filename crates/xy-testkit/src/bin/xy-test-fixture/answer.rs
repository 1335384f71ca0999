//! The answer to a request of the modern era: JSON if nothing comes before it, else a stream
//! that ends with it. A client that hangs up meanwhile has cancelled.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::reply::{SIGN_OF_LIFE, begin_events, head, write_json};
use crate::session::Session;
use crate::stream::{Next, Reader};
use xy_testkit::json::Members;

/// How often a client that waits is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// What will be said to one request.
#[derive(Debug)]
pub(crate) struct Answer {
    reader: Reader,
    session: Arc<Session>,
    key: String,
}

impl Answer {
    /// Of the request with this key.
    pub(crate) fn new(reader: Reader, session: &Arc<Session>, key: &str) -> Self {
        Self { reader, session: Arc::clone(session), key: key.to_owned() }
    }

    /// Writes it as it comes; whether the connection can be used again.
    pub(crate) fn write(mut self, writer: &mut TcpStream) -> io::Result<bool> {
        let written = self.write_all(writer);
        if !matches!(written, Ok(true)) {
            self.session.cancel(&self.key, &Members::default()); // It may be answered already.
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
        begin_events(writer, &head(200, &[]))?;
        let mut next = Some(first);
        while let Some(data) = next {
            writer.write_all(format!("event: message\ndata: {data}\n\n").as_bytes())?;
            next = self.next(writer, b": nothing new\n\n")?;
        }
        Ok(false)
    }

    /// The next message, while the client waits for it; `None` if there is none any more.
    fn next(&mut self, writer: &mut TcpStream, sign: &[u8]) -> io::Result<Option<String>> {
        let mut silence = Duration::ZERO;
        loop {
            match self.reader.next(GLANCE) {
                Next::Event(_, data) => return Ok(Some(data)),
                Next::End => return Ok(None),
                Next::Silence if has_left(writer)? => {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Next::Silence => silence += GLANCE,
            }
            if silence >= SIGN_OF_LIFE {
                silence = Duration::ZERO;
                writer.write_all(sign)?;
            }
        }
    }
}

/// Whether the other end is closed.
fn has_left(client: &TcpStream) -> io::Result<bool> {
    client.set_nonblocking(true)?;
    let peeked = client.peek(&mut [0]);
    client.set_nonblocking(false)?;
    Ok(match peeked {
        Ok(length) => length == 0,
        Err(cause) => cause.kind() != io::ErrorKind::WouldBlock,
    })
}

/// The status that goes with an answer.
fn status(message: &Members) -> u16 {
    match message.members("error").raw("code") {
        Some("-32601") => 404,
        Some("-32020" | "-32021" | "-32022") => 400,
        _ => 200,
    }
}
