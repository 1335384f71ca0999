//! A minimal HTTP/1.1 client for tests: one exchange with its head, body and events.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Maximum length of a head.
const MAX_HEAD_BYTES: u64 = 64 * 1024;

/// A connection, which can be reused if each body is read completely.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

/// The head of a response.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: String,
}

/// Maximum number of bytes per write.
const WRITE_BYTES: usize = 64 * 1024;

impl HttpAnswer {
    /// Returns the value of a header, whose name is case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Returns the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|cause| panic!("{cause}: {self:?}"))
    }

    /// Returns the data of each event in the body.
    pub fn events(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut body = self.body.as_bytes();
        while let Ok(Some(event)) = next_event(&mut body) {
            all.push(event.data);
        }
        all
    }
}

/// One event of a stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl Connection {
    /// Connects, with `limit` as the timeout of each operation.
    pub(crate) fn open(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Returns the socket, so that another thread can close it.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Returns true if the peer has neither closed the connection nor sent unexpected data.
    pub(crate) fn is_usable(&self) -> bool {
        let socket = self.socket();
        let peek = || {
            socket.set_nonblocking(true)?;
            let peeked = socket.peek(&mut [0]);
            socket.set_nonblocking(false)?;
            peeked
        };
        self.reader.buffer().is_empty()
            && peek().is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes a complete request.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Some kernels let no other process use the core while they take all of 30 MB.
        bytes.chunks(WRITE_BYTES).try_for_each(|chunk| self.reader.get_mut().write_all(chunk))
    }

    /// Reads the next head that is not provisional.
    pub(crate) fn head(&mut self) -> io::Result<Head> {
        loop {
            let head = read_head(&mut self.reader)?;
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    /// Reads the body that follows `head`.
    pub(crate) fn body(&mut self, head: &Head) -> Body<'_> {
        let length = head.header("content-length").and_then(|it| it.parse().ok());
        let is_chunked = head.header("transfer-encoding").is_some_and(|it| it == "chunked");
        let left = match (is_chunked, length, head.status) {
            (_, _, 204 | 304) => Left::Bytes(0),
            (true, _, _) => Left::Chunks { of_this: 0, is_first: true },
            (_, Some(length), _) => Left::Bytes(length),
            _ => Left::ToTheEnd,
        };
        Body { reader: &mut self.reader, left }
    }

    /// Head and body, to its end.
    pub(crate) fn answer(&mut self) -> io::Result<HttpAnswer> {
        let head = self.head()?;
        let mut body = Vec::new();
        self.body(&head).read_to_end(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(HttpAnswer { status: head.status, headers: head.headers, body })
    }
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Returns true if an event stream follows.
    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|it| it.starts_with("text/event-stream"))
    }

    /// Returns true if the connection can be reused.
    pub(crate) fn keeps_alive(&self) -> bool {
        let closes = self.header("connection").is_some_and(|it| it.eq_ignore_ascii_case("close"));
        let has_end = ["content-length", "transfer-encoding"].map(|it| self.header(it).is_some());
        !closes && has_end.contains(&true)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut found = headers.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.as_str())
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Head> {
    let mut reader = reader.take(MAX_HEAD_BYTES);
    let first = text_line(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = first.split(' ').nth(1).and_then(|it| it.parse().ok());
    let status = status.filter(|_| first.starts_with("HTTP/1.1 "));
    let status = status.ok_or_else(|| io::Error::other(format!("no HTTP: {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = text_line(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            return Ok(Head { status, headers });
        }
        let (name, value) =
            line.split_once(':').ok_or_else(|| io::Error::other(format!("no header: {line:?}")))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// Reads the next line without its newline; `None` at the end of input.
fn text_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

/// A body without its framing.
#[derive(Debug)]
pub(crate) struct Body<'a> {
    reader: &'a mut BufReader<TcpStream>,
    left: Left,
}

#[derive(Debug, Clone, Copy)]
enum Left {
    Bytes(u64),
    Chunks { of_this: u64, is_first: bool },
    ToTheEnd,
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunks { of_this: 0, is_first } = self.left {
            self.left = self.next_chunk(is_first)?;
        }
        let most = match self.left {
            Left::Bytes(left) | Left::Chunks { of_this: left, .. } => left,
            Left::ToTheEnd => u64::MAX,
        };
        if most == 0 {
            return Ok(0);
        }
        let count = self.reader.by_ref().take(most).read(buffer)?;
        match &mut self.left {
            Left::Bytes(left) | Left::Chunks { of_this: left, .. } => {
                if count == 0 && !buffer.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= count as u64;
            }
            Left::ToTheEnd => {}
        }
        Ok(count)
    }
}

impl Body<'_> {
    fn next_chunk(&mut self, is_first: bool) -> io::Result<Left> {
        let mut line =
            || text_line(self.reader)?.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof));
        if !is_first {
            line()?; // The end of the last chunk.
        }
        let size = line()?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
        if size > 0 {
            return Ok(Left::Chunks { of_this: size, is_first: false });
        }
        while !line()?.is_empty() {} // Trailers.
        Ok(Left::Bytes(0))
    }
}

/// Reads the next event with data or an id; `None` at the end of the stream.
pub(crate) fn next_event(body: &mut impl BufRead) -> io::Result<Option<Event>> {
    let mut event = Event::default();
    let mut has_data = false;
    while let Some(line) = text_line(body)? {
        if line.is_empty() && (has_data || event.id.is_some()) {
            return Ok(Some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.name),
            "id" => event.id = Some(value.to_owned()),
            "data" => {
                if has_data {
                    event.data.push('\n');
                }
                event.data.push_str(value);
                has_data = true;
            }
            _ => {} // A comment or an unknown field.
        }
    }
    Ok(None)
}
