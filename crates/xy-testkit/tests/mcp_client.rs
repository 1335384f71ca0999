//! Tests of the MCP clients over a socket and over HTTP, including how they report failures.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{McpHttp, McpSocket};

const MCP: &str = env!("CARGO_BIN_EXE_xy-test-mcp");

/// The test server over HTTP, and its address.
struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let mut command = Command::new(MCP);
        command.args(["--http", "0"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
        Self(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait(); // The server exits at the end of its stdin.
    }
}

/// Starts a server that gives one scripted answer per connection, and returns the requests.
fn scripted(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = thread::spawn(move || {
        answers.iter().map(|answer| serve_one(listener.accept().unwrap().0, answer)).collect()
    });
    (address, asked)
}

/// Reads a request, head and body, answers it, and returns it.
fn serve_one(stream: TcpStream, answer: &str) -> String {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut request).unwrap(), 0);
    }
    let length = request.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    reader.get_mut().write_all(answer.as_bytes()).unwrap();
    request + std::str::from_utf8(&body).unwrap()
}

fn http(head: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn chunked(head: &str, chunks: &[&str]) -> String {
    let chunks: Vec<_> = chunks.iter().map(|it| format!("{:x}\r\n{it}\r\n", it.len())).collect();
    let chunks = chunks.concat();
    format!(
        "HTTP/1.1 {head}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}

#[test]
fn client_calls_server_over_http() {
    let server = Server::start();
    let client = McpHttp::new(&server.1, "/mcp", "");
    assert_eq!(client.initialize()["serverInfo"]["name"], "xy-test-mcp");
    let slow: Vec<u64> = (0..20)
        .map(|n| client.start_call("slow_echo", json!({ "message": n.to_string(), "ms": 50 })))
        .collect();
    assert_eq!(client.call_text("echo", json!({ "message": "quick" })), "quick");
    for (n, id) in slow.into_iter().enumerate() {
        assert_eq!(client.wait_answer(id)["result"]["structuredContent"]["message"], n.to_string());
    }
    assert_eq!(client.strays(), [""; 0]);
}

#[test]
fn client_sends_session_token_and_revision() {
    let introduced = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}"#;
    let (address, asked) = scripted(vec![
        http("200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1", introduced),
        http("202 Accepted", ""),
        http("200 OK", ""),
    ]);
    let client = McpHttp::new(&address, "/mcp", "secret").with_header("Origin", "http://x");
    client.initialize();
    assert_eq!(client.session().as_deref(), Some("s1"));
    client.close();
    let asked = asked.join().unwrap();
    assert!(asked[0].starts_with("POST /mcp HTTP/1.1\r\n"), "{}", asked[0]);
    assert!(!asked[0].contains("Mcp-Session-Id"));
    let along = [
        "Bearer secret",
        "Mcp-Session-Id: s1",
        "MCP-Protocol-Version: 2025-06-18",
        "Origin: http://x",
    ];
    for header in along {
        assert!(asked[1].contains(header), "no {header}: {}", asked[1]);
    }
    assert!(asked[1].ends_with(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#));
    assert!(asked[2].starts_with("DELETE /mcp HTTP/1.1\r\n") && asked[2].contains("s1"));
}

#[test]
fn client_reads_whole_event_stream() {
    let (address, asked) = scripted(vec![chunked(
        "200 OK\r\nContent-Type: text/event-stream",
        &[
            ": hello\n\nid: 7\ndata:\n\nevent: message\nda",
            "ta: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"n\"}\n\n",
            "id: 8\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\r\n\r\n",
        ],
    )]);
    let client = McpHttp::new(&address, "/mcp", "");
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    assert_eq!(client.wait_notification("n")["method"], "n");
    assert_eq!(client.last_event_id().as_deref(), Some("8"));
    asked.join().unwrap();
}

#[test]
fn client_answers_streamed_request_by_post() {
    let question = "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}\n\n";
    let head = "200 OK\r\nContent-Type: text/event-stream";
    let (address, asked) = scripted(vec![chunked(head, &[question]), http("202 Accepted", "")]);
    let client = McpHttp::new(&address, "/mcp", "");
    client.answer_with(|_| Some(Ok(json!({ "roots": [] }))));
    assert_eq!(client.open_stream_after(Some("5")), 200);
    let asked = asked.join().unwrap();
    assert!(asked[0].starts_with("GET /mcp ") && asked[0].contains("Last-Event-ID: 5\r\n"));
    assert!(
        asked[1].ends_with(r#"{"id":"q","jsonrpc":"2.0","result":{"roots":[]}}"#),
        "{}",
        asked[1]
    );
}

#[test]
fn raw_post_returns_bare_answer() {
    let (address, asked) = scripted(vec![http("403 Forbidden\r\nX-Why: host", "{\"no\":1}")]);
    let client = McpHttp::new(&address, "/mcp", "secret");
    let headers = [("Host", "evil.example"), ("Authorization", "")];
    let answer = client.exchange("PUT", &headers, "x");
    assert_eq!(
        (answer.status, answer.header("x-why"), answer.json()),
        (403, Some("host"), json!({ "no": 1 }))
    );
    let asked = asked.join().unwrap();
    assert!(asked[0].contains("Host: evil.example\r\n") && !asked[0].contains("secret"));
    assert!(asked[0].ends_with("\r\n\r\nx"));
}

#[test]
#[should_panic(expected = "status 404: gone")]
fn error_status_fails_waiting_call() {
    let (address, _asked) = scripted(vec![http("404 Not Found", "gone")]);
    McpHttp::new(&address, "/mcp", "").request("ping", Value::Null);
}

#[test]
#[should_panic(expected = "request 1 has no answer: the exchange broke")]
fn broken_connection_fails_waiting_call() {
    let server = Server::start();
    let client = McpHttp::new(&server.1, "/mcp", "");
    let id = client.start_call("never", json!({}));
    assert_eq!(client.answer_within(id, Duration::from_millis(50)), None);
    client.break_connections();
    client.wait_answer(id);
}

#[test]
fn socket_carries_messages_after_handshake() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let heard = thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut heard = String::new();
        stream.read_line(&mut heard).unwrap();
        stream.read_line(&mut heard).unwrap();
        let answers = "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\n\
                       {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1.50}\n";
        stream.get_mut().write_all(answers.as_bytes()).unwrap();
        stream.read_to_string(&mut heard).unwrap();
        heard
    });
    let client = McpSocket::connect(&path, "{\"hello\":1}");
    let id = client.start_request("x", Value::Null);
    assert!(client.wait_answer_text(id).ends_with("1.50}"));
    client.close();
    let expected = "{\"hello\":1}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n\
                    {\"id\":9,\"jsonrpc\":\"2.0\",\"result\":{}}\n";
    assert_eq!(heard.join().unwrap(), expected);
}

#[test]
#[should_panic(expected = "request 1 has no answer")]
fn closed_socket_fails_waiting_call() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let client = McpSocket::connect(&path, "");
    drop(listener.accept());
    client.request("ping", Value::Null);
}
