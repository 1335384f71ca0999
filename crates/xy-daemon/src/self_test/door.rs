//! The HTTP door: a real connection, a real request, a real answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use xy_gateway::Admin;
use xy_gateway::http::ListenState;
use xy_protocol::control::{DoorVerdict, WebServerHealth};

use crate::daemon::Daemon;

/// How long an answer may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The longest answer that is read.
const MOST_ANSWER: u64 = 4 << 20;

/// Looks whether clients can come in.
pub(super) async fn test(daemon: &Daemon) -> WebServerHealth {
    let closed = |status, port, note| WebServerHealth { status, port, active_connections: 0, note };
    let listening = daemon.admin().ok().and_then(Admin::listening);
    let (url, problem) = daemon.gateway_url();
    let Some(ListenState::Listening { addr }) = listening else {
        let status = if problem.is_some() { DoorVerdict::Error } else { DoorVerdict::NotRunning };
        return closed(status, None, problem);
    };
    let port = Some(addr.port());
    if url.is_none() {
        return closed(DoorVerdict::Error, port, problem);
    }
    match get(addr, "/healthz", None).await {
        Ok(_) => WebServerHealth {
            status: DoorVerdict::Ok,
            port,
            active_connections: connections(daemon, addr).await,
            note: None,
        },
        Err(cause) => closed(DoorVerdict::Error, port, Some(cause.to_string())),
    }
}

/// How many clients are connected, without us; none if nobody tells.
async fn connections(daemon: &Daemon, addr: SocketAddr) -> u64 {
    let file = daemon.paths.token_file.clone();
    // Without a token, or if none is needed, it is asked without one.
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
    let token = read.ok().and_then(Result::ok);
    let metrics = get(addr, "/metrics", token.as_deref()).await.unwrap_or_default();
    let count = metrics.lines().find_map(|line| line.strip_prefix("xy_http_connections "));
    let count: u64 = count.and_then(|count| count.trim().parse().ok()).unwrap_or_default();
    count.saturating_sub(1)
}

/// Asks for a page of our own; its text, if it is there.
async fn get(addr: SocketAddr, page: &str, token: Option<&str>) -> io::Result<String> {
    let here = reached_at(addr);
    let auth = token.map(|it| format!("Authorization: Bearer {}\r\n", it.trim()));
    let auth = auth.unwrap_or_default();
    let head = format!("GET {page} HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n{auth}\r\n");
    let asking = async {
        let mut stream = TcpStream::connect(here).await?;
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MOST_ANSWER).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(ANSWERS_WITHIN, asking).await.unwrap_or_else(|late| Err(late.into()))?;
    body_of(&String::from_utf8_lossy(&answer)).map(ToOwned::to_owned)
}

/// The address at which this machine finds itself.
fn reached_at(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// The body of an answer that says that all is well.
fn body_of(answer: &str) -> io::Result<&str> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let line = head.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some("200") => Ok(body),
        Some(status) => Err(io::Error::other(format!("it answered with status {status}"))),
        None => Err(io::Error::other("it did not answer in HTTP")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_answer_has_a_body() {
        assert_eq!(body_of("HTTP/1.1 200 OK\r\nA: b\r\n\r\nok\n").unwrap(), "ok\n");
        let told = |answer| body_of(answer).unwrap_err().to_string();
        assert_eq!(told("HTTP/1.1 503 No\r\n\r\nok"), "it answered with status 503");
        assert_eq!(told("SSH-2.0"), "it did not answer in HTTP");
        assert_eq!(told(""), "it did not answer in HTTP");
    }

    #[test]
    fn every_address_is_found_from_here() {
        for (addr, here) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.1:1", "192.0.2.1:1"),
        ] {
            assert_eq!(reached_at(addr.parse().unwrap()).to_string(), here);
        }
    }
}
