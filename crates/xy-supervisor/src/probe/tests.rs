//! Servers that answer as they should, and others.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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

#[tokio::test]
async fn success_is_any_status_from_200_to_299() {
    assert_eq!(get(b"HTTP/1.1 200 OK\r\n\r\n").await, Ok(()));
    assert_eq!(get(b"HTTP/1.1 299 Odd\r\nX: y").await, Ok(()));
    let refused = get(b"HTTP/1.1 503 No\r\n\r\n").await.unwrap_err();
    assert_eq!(refused, "GET http://127.0.0.1:1/mcp/health was answered with status 503");
    assert!(get(b"HTTP/1.1 301 Moved\r\n\r\n").await.is_err());
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
