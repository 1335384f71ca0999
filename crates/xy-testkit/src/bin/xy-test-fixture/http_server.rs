//! A minimal HTTP/1.1 server, with one thread per connection.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use xy_testkit::standin::{self, Output};

use crate::reply::{Reply, write};

/// Maximum size of a request body, in bytes.
const MAX_BODY_LEN: u64 = 64 << 20;

/// Maximum size of a request head, in bytes.
const MAX_HEAD_LEN: u64 = 64 << 10;

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 1024;

static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// A handler of HTTP requests.
pub(crate) trait HttpHandler: Send + Sync + 'static {
    /// Handles one request.
    fn handle(&self, request: &HttpRequest) -> Reply;
}

/// An HTTP request.
#[derive(Debug, Default)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpRequest {
    /// Returns the value of a header. `name` is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if `Host` and `Origin` name the loopback. This rejects DNS rebinding.
    fn is_local(&self) -> bool {
        let origin = self.header("origin").map(|it| it.split_once("://").unwrap_or(("", "")).1);
        self.header("host").is_some_and(is_local) && origin.is_none_or(is_local)
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    matches!(name, "localhost" | "127.0.0.1" | "::1")
}

/// Serves on `port` of the loopback until stdin ends or TERM arrives.
pub(crate) fn serve(port: u16, handler: impl HttpHandler) -> ExitCode {
    let listener =
        TcpListener::bind((xy_testkit::standin::listen_address(), port)).expect("the port is free");
    let address = listener.local_addr().expect("it listens");
    let handler = Arc::new(handler);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if CONNECTIONS.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
                continue; // Dropping `client` closes the connection.
            }
            CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            let handler = Arc::clone(&handler);
            thread::spawn(move || {
                // A client may disconnect at any time.
                let _ = handle_connection(&*handler, client);
                CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    Output::Stderr.say(&format!("listening on {address}"));
    standin::sleep(Output::Stderr)
}

/// Handles the requests of one connection until the client disconnects or sends invalid HTTP.
fn handle_connection(handler: &impl HttpHandler, client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut writer = client.try_clone()?;
    let mut reader = BufReader::new(client);
    while let Some(request) = read_request(&mut reader)? {
        let reply = if request.is_local() {
            handler.handle(&request)
        } else {
            Reply::refusal(403, "this host or origin is not let in")
        };
        if !write(&mut writer, reply)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads the next request. Returns `None` at the end of the connection.
fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<HttpRequest>> {
    let mut head = reader.by_ref().take(MAX_HEAD_LEN);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = HttpRequest { method, path, ..HttpRequest::default() };
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => break,
        }
    }
    let length = request.header("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    if length > MAX_BODY_LEN || request.header("transfer-encoding").is_some() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    reader.by_ref().take(length).read_to_end(&mut body)?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    Ok(Some(request))
}
