//! Probes of well-behaved and of hostile servers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

const LONG: Duration = Duration::from_secs(30);

/// Starts a server that sends `response` on each connection, then closes it if `closes`.
async fn server(response: &'static [u8], closes: bool) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response).await;
            if !closes {
                open.push(stream);
            }
        }
    });
    port
}

async fn get(response: &'static [u8]) -> Result<(), String> {
    let port = server(response, true).await;
    let result = Target::http(port, None).attempt(LONG).await;
    result.map_err(|why| why.replace(&port.to_string(), "1"))
}

/// Starts a server that answers each GET with `status`. Returns its port and the request lines.
async fn page(status: &'static str) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (lines, requests) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let count = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..count]);
            lines.send(head.lines().next().unwrap_or_default().to_owned()).await.unwrap();
            let answer = format!("HTTP/1.1 {status}\r\nLocation: /up\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, requests)
}

#[tokio::test]
async fn status_200_to_299_is_success_at_any_path() {
    let paths = [(None, "/mcp/health"), (Some("/"), "/"), (Some("/a/b?c=d&e"), "/a/b?c=d&e")];
    for (status, is_good) in [
        ("200 OK", true),
        ("204 No Content", true),
        ("299 Odd", true),
        ("300 Choose", false),
        ("301 Moved Permanently", false),
        ("302 Found", false),
        ("304 Not Modified", false),
        ("308 Permanent Redirect", false),
        ("400 Bad Request", false),
        ("401 Unauthorized", false),
        ("404 Not Found", false),
        ("500 Internal Server Error", false),
        ("503 Service Unavailable", false),
    ] {
        for (path, path_sent) in paths {
            let (port, mut requests) = page(status).await;
            let result = Target::http(port, path).attempt(LONG).await;
            let code = &status[..3];
            let why =
                format!("GET http://127.0.0.1:{port}{path_sent} was answered with status {code}");
            assert_eq!(result, if is_good { Ok(()) } else { Err(why) }, "{status}");
            assert_eq!(requests.recv().await.unwrap(), format!("GET {path_sent} HTTP/1.1"));
            assert!(requests.try_recv().is_err(), "a redirect is not followed");
        }
    }
    assert_eq!(get(b"HTTP/1.1 299 Odd\r\nX: y").await, Ok(()), "the head may be incomplete");
}

#[tokio::test]
async fn other_protocol_is_failure() {
    let wrong = "GET http://127.0.0.1:1/mcp/health was answered with something other than HTTP";
    assert_eq!(get(b"hello\r\n").await.unwrap_err(), wrong);
    assert_eq!(get(b"").await.unwrap_err(), wrong);
}

#[tokio::test]
async fn endless_head_is_not_read_forever() {
    let long: &'static [u8] = Box::leak(vec![b'x'; 1 << 20].into_boxed_slice());
    assert!(get(long).await.is_err());
    let interim: &'static [u8] =
        Box::leak([b"HTTP/1.1 100 Go\r\nX: ".as_slice(), long].concat().into_boxed_slice());
    assert!(get(interim).await.is_err());
}

#[tokio::test]
async fn silent_server_times_out() {
    let port = server(b"", false).await;
    let short = Duration::from_millis(50);
    let late = Target::http(port, Some("/up")).attempt(short).await.unwrap_err();
    assert_eq!(late, format!("GET http://127.0.0.1:{port}/up gave no answer within 50ms"));
    assert_eq!(Target::tcp(port).attempt(LONG).await, Ok(()), "it accepts connections");
}

#[tokio::test]
async fn closed_port_fails_until_opened() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = Target::tcp(port).attempt(LONG).await.unwrap_err();
    assert!(refused.starts_with(&format!("port {port}: ")), "{refused}");

    let target = Target::tcp(port);
    let waiting = tokio::spawn(async move { target.until_ready(LONG).await });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    timeout(LONG, waiting).await.unwrap().unwrap();
    drop(listener);
}
