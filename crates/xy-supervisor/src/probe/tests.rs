//! Servers that answer as they should, and others.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

const LONG: Duration = Duration::from_secs(30);

/// A server that says these bytes to each that comes, and hangs up if it is told to.
async fn server(says: &'static [u8], hangs_up: bool) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(says).await;
            if !hangs_up {
                held.push(stream);
            }
        }
    });
    port
}

async fn get(says: &'static [u8]) -> Result<(), String> {
    let port = server(says, true).await;
    let tried = Target::http(port, None).attempt(LONG).await;
    tried.map_err(|why| why.replace(&port.to_string(), "1"))
}

/// A server that answers each GET with this status; the first lines of what it is asked.
async fn page(status: &'static str) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (lines, asked) = mpsc::channel(8);
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
    (port, asked)
}

#[tokio::test]
async fn success_is_any_status_from_200_to_299_at_any_path() {
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
        for (path, asked_for) in paths {
            let (port, mut asked) = page(status).await;
            let tried = Target::http(port, path).attempt(LONG).await;
            let code = &status[..3];
            let why =
                format!("GET http://127.0.0.1:{port}{asked_for} was answered with status {code}");
            assert_eq!(tried, if is_good { Ok(()) } else { Err(why) }, "{status}");
            assert_eq!(asked.recv().await.unwrap(), format!("GET {asked_for} HTTP/1.1"));
            assert!(asked.try_recv().is_err(), "a redirect is not followed");
        }
    }
    assert_eq!(get(b"HTTP/1.1 299 Odd\r\nX: y").await, Ok(()), "its head need not end");
}

#[tokio::test]
async fn what_is_no_http_is_no_success() {
    let wrong = "GET http://127.0.0.1:1/mcp/health was answered with what is no HTTP";
    assert_eq!(get(b"hello\r\n").await.unwrap_err(), wrong);
    assert_eq!(get(b"").await.unwrap_err(), wrong);
}

#[tokio::test]
async fn a_head_without_an_end_is_not_read_for_ever() {
    let long: &'static [u8] = Box::leak(vec![b'x'; 1 << 20].into_boxed_slice());
    assert!(get(long).await.is_err());
    let interim: &'static [u8] =
        Box::leak([b"HTTP/1.1 100 Go\r\nX: ".as_slice(), long].concat().into_boxed_slice());
    assert!(get(interim).await.is_err());
}

#[tokio::test]
async fn one_that_says_nothing_is_waited_for_as_long_as_it_may_take() {
    let port = server(b"", false).await;
    let short = Duration::from_millis(50);
    let late = Target::http(port, Some("/up")).attempt(short).await.unwrap_err();
    assert_eq!(late, format!("GET http://127.0.0.1:{port}/up gave no answer within 50ms"));
    assert_eq!(Target::tcp(port).attempt(LONG).await, Ok(()), "but it takes connections");
}

#[tokio::test]
async fn where_nobody_listens_there_is_no_success_until_somebody_does() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = Target::tcp(port).attempt(LONG).await.unwrap_err();
    assert!(refused.starts_with(&format!("port {port}: ")), "{refused}");

    let target = Target::tcp(port);
    let waiting = tokio::spawn(async move { target.until_good(LONG).await });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    timeout(LONG, waiting).await.unwrap().unwrap();
    drop(listener);
}
