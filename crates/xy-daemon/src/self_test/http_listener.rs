//! The test of the HTTP listener: connects, sends a request, and checks the response.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use xy_gateway::Admin;
use xy_http::ListenState;
use xy_protocol::control::{WebServerHealth, WebServerStatus};

use crate::daemon::Daemon;

/// Maximum time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of bytes that are read of a response.
const MAX_RESPONSE_BYTES: u64 = 4 << 20;

/// Tests whether HTTP clients can connect.
pub(super) async fn test(daemon: &Daemon) -> WebServerHealth {
    let closed = |status, port, note| WebServerHealth { status, port, active_connections: 0, note };
    let listening = daemon.admin().ok().and_then(Admin::listening);
    let (url, problem) = daemon.gateway_url();
    let Some(ListenState::Listening { addr }) = listening else {
        let status =
            if problem.is_some() { WebServerStatus::Error } else { WebServerStatus::NotRunning };
        return closed(status, None, problem);
    };
    let port = Some(addr.port());
    if url.is_none() {
        return closed(WebServerStatus::Error, port, problem);
    }
    match get(addr, "/healthz", None).await {
        Ok(_) => WebServerHealth {
            status: WebServerStatus::Ok,
            port,
            active_connections: connections(daemon, addr).await,
            note: None,
        },
        Err(cause) => closed(WebServerStatus::Error, port, Some(cause.to_string())),
    }
}

/// Returns the number of connected clients without this test, or 0 if it is unknown.
async fn connections(daemon: &Daemon, addr: SocketAddr) -> u64 {
    let file = daemon.paths.token_file.clone();
    // If there is no token, or none is needed, the request is sent without one.
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
    let token = read.ok().and_then(Result::ok);
    let metrics = get(addr, "/metrics", token.as_deref()).await.unwrap_or_default();
    let count = metrics.lines().find_map(|line| line.strip_prefix("xy_http_connections "));
    let count: u64 = count.and_then(|count| count.trim().parse().ok()).unwrap_or_default();
    count.saturating_sub(1)
}

/// Requests a page of this daemon's gateway. Returns the body of a successful response.
async fn get(addr: SocketAddr, page: &str, token: Option<&str>) -> io::Result<String> {
    let local = local_address(addr);
    let auth = token.map(|it| format!("Authorization: Bearer {}\r\n", it.trim()));
    let auth = auth.unwrap_or_default();
    let head = format!("GET {page} HTTP/1.1\r\nHost: {local}\r\nConnection: close\r\n{auth}\r\n");
    let asking = async {
        let mut stream = TcpStream::connect(local).await?;
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(RESPONSE_TIMEOUT, asking).await.unwrap_or_else(|late| Err(late.into()))?;
    successful_body(&String::from_utf8_lossy(&answer)).map(ToOwned::to_owned)
}

/// Returns the address at which this machine reaches a listener of its own.
fn local_address(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Returns the body of a response with status 200, or an error.
fn successful_body(answer: &str) -> io::Result<&str> {
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
    fn only_a_successful_response_has_a_body() {
        assert_eq!(successful_body("HTTP/1.1 200 OK\r\nA: b\r\n\r\nok\n").unwrap(), "ok\n");
        let error = |answer| successful_body(answer).unwrap_err().to_string();
        assert_eq!(error("HTTP/1.1 503 No\r\n\r\nok"), "it answered with status 503");
        assert_eq!(error("SSH-2.0"), "it did not answer in HTTP");
        assert_eq!(error(""), "it did not answer in HTTP");
    }

    #[test]
    fn unspecified_addresses_become_loopback() {
        for (addr, local) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.1:1", "192.0.2.1:1"),
        ] {
            assert_eq!(local_address(addr.parse().unwrap()).to_string(), local);
        }
    }
}
