//! As much HTTP/1.1 as the two doors need, a thread for each connection.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use xy_testkit::standin::{self, Output};

use crate::reply::{Reply, write};

/// No message of a test is longer.
const LONGEST_BODY: u64 = 64 << 20;

/// No head of a test is longer.
const LONGEST_HEAD: u64 = 64 << 10;

/// More connections than any test has.
const MOST_CONNECTIONS: usize = 1024;

static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// What answers requests.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Answers one request.
    fn serve(&self, ask: &Ask) -> Reply;
}

/// A request.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Ask {
    /// The value of a header, its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// Whether it comes from here. A page of the web that has a name for our address does not.
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

/// Listens on `port` of the loopback until it is told to end.
pub(crate) fn serve(port: u16, door: impl Serve) -> ExitCode {
    let listener =
        TcpListener::bind((xy_testkit::standin::listen_address(), port)).expect("the port is free");
    let address = listener.local_addr().expect("it listens");
    let door = Arc::new(door);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if CONNECTIONS.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                continue; // It is closed at once.
            }
            CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            let door = Arc::clone(&door);
            thread::spawn(move || {
                let _ = converse(&*door, client); // The client leaves as it likes.
                CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    Output::Stderr.say(&format!("listening on {address}"));
    standin::sleep(Output::Stderr)
}

/// Answers one client until it leaves or says what we do not understand.
fn converse(door: &impl Serve, client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut writer = client.try_clone()?;
    let mut reader = BufReader::new(client);
    while let Some(ask) = read(&mut reader)? {
        let reply = if ask.is_local() {
            door.serve(&ask)
        } else {
            Reply::refusal(403, "this host or origin is not let in")
        };
        if !write(&mut writer, reply)? {
            return Ok(());
        }
    }
    Ok(())
}

/// The next request; `None` if there is none any more.
fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Ask>> {
    let mut head = reader.by_ref().take(LONGEST_HEAD);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut ask = Ask { method, path, ..Ask::default() };
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                ask.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => break,
        }
    }
    let length = ask.header("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    if length > LONGEST_BODY || ask.header("transfer-encoding").is_some() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    reader.by_ref().take(length).read_to_end(&mut body)?;
    ask.body = String::from_utf8_lossy(&body).into_owned();
    Ok(Some(ask))
}
