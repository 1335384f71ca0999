//! The same server over HTTP, as plain as can be: something to compare with.
//!
//! Each POST is answered with JSON on a connection that stays open. No sessions, no streams:
//! what is said besides the answer is lost.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;

use xy_testkit::standin::{self, Output};

use crate::dull;
use crate::outlet::{Out, Outlet};
use crate::server::Server;

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
    while let Some((is_about_health, body)) = read_body(&mut reader)? {
        out.clear();
        if is_about_health {
            let status = dull::status(server);
            write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")?;
            writer.write_all(&out)?;
            continue;
        }
        let answer = if server.hear(&body, &outlet) { answer(&answered) } else { None };
        match answer {
            Some(json) => {
                let length = json.len();
                write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")?;
                write!(out, "Content-Length: {length}\r\n\r\n")?;
                out.extend_from_slice(&json);
            }
            None => write!(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")?,
        }
        writer.write_all(&out)?;
    }
    Ok(())
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

/// The body of the next request, and whether it is a GET of something else than messages;
/// `None` if there is none any more.
fn read_body(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(bool, Vec<u8>)>> {
    let (mut length, mut is_about_health) = (0, false);
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
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    if length > LONGEST_BODY {
        return Ok(None);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((is_about_health, body)))
}
