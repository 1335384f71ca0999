//! Measures the cost of a POST at the HTTP gateway, with an immediate backend behind it. A bare
//! socket in the same runtime shows the lower bound.
//!
//! `cargo run --release -p xy-http --example post_cost -- [calls]`; run it under `strace -f -c`
//! to count its system calls.
#![expect(clippy::print_stdout, reason = "this is a program, and prints what it found")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::Instant;
use xy_http::frontend::{
    ClientSession, Disposition, Entry, Frontend, Refusal, Responder, Route, StreamNo,
};
use xy_http::{Auth, Hosts, HttpRules, HttpStatus, Secret, Token, serve};

const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ANSWER: &[u8] =
    br#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}]}}"#;
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__b","arguments":{}}}"#;
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;

struct ImmediateFrontend;

impl Frontend for ImmediateFrontend {
    fn open(
        &self,
        _: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal> {
        Ok(Rc::new(FixedSession { responder }))
    }
}

struct FixedSession {
    responder: Rc<dyn Responder>,
}

impl ClientSession for FixedSession {
    fn handle(&self, _: &[u8], stream: StreamNo) -> Disposition {
        self.responder.put(ANSWER, Route::Response(stream));
        Disposition::ResponsePending
    }

    fn version(&self) -> Option<&'static str> {
        None
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn close(&self) {}
}

impl HttpStatus for ImmediateFrontend {
    fn is_ready(&self) -> bool {
        true
    }

    fn metrics(&self, _: &mut String) {}

    fn limit_hit(&self, _: &'static str, _: Option<u64>) {}
}

fn main() {
    let calls = std::env::args().nth(1).and_then(|calls| calls.parse().ok()).unwrap_or(50_000);
    let (addrs, known) = mpsc::channel();
    std::thread::spawn(move || run_listeners(&addrs));
    let (bare, gateway) = known.recv().expect("both listeners are bound");
    let session = begin(gateway);
    let request = request(CALL, &format!("mcp-session-id: {session}\r\n"));
    for _ in 0..3 {
        report("bare socket", &measure(bare, &request, calls));
        report("gateway", &measure(gateway, &request, calls));
    }
}

/// Serves a bare socket and the HTTP gateway on one thread.
fn run_listeners(addrs: &mpsc::Sender<(SocketAddr, SocketAddr)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let both = async {
        let bare = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let gateway = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        addrs.send((addr(&bare), addr(&gateway))).expect("somebody waits");
        tokio::task::spawn_local(answer_bare(bare));
        let secret = Secret::Plain(TOKEN.to_owned());
        let token = Token { id: 1, name: String::new(), secret, may_manage: false, profile: None };
        let rules = HttpRules {
            auth: Auth::Tokens(vec![token]),
            sessions_max: 8,
            streams_per_session_max: 64,
            body_max_bytes: 1024 * 1024,
            idle: Duration::from_secs(600),
            hosts: Hosts::default(),
        };
        let (_, made) = tokio::sync::watch::channel(std::sync::Arc::default());
        let pending = std::future::pending();
        serve(
            gateway,
            Rc::new(ImmediateFrontend),
            (rules, made),
            None,
            Rc::new(ImmediateFrontend),
            pending,
        )
        .await;
    };
    LocalSet::new().block_on(&runtime.expect("there is a runtime"), both);
}

/// Answers every request with the same bytes, as the lower bound.
async fn answer_bare(listener: TcpListener) {
    let length = ANSWER.len();
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
    answer.extend_from_slice(ANSWER);
    let mut buffer = [0; 4096];
    loop {
        let (mut stream, _) = listener.accept().await.expect("somebody comes");
        stream.set_nodelay(true).expect("it is a socket");
        while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
            stream.write_all(&answer).await.expect("somebody reads");
        }
    }
}

fn request(body: &str, headers: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:7777\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         user-agent: post-cost\r\nmcp-protocol-version: 2025-11-25\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn begin(gateway: SocketAddr) -> String {
    let mut stream = TcpStream::connect(gateway).expect("the gateway listens");
    stream.write_all(&request(INITIALIZE, "")).expect("the gateway reads");
    let mut buffer = [0; 4096];
    let read = stream.read(&mut buffer).expect("the gateway answers");
    let head = String::from_utf8_lossy(&buffer[..read]).into_owned();
    let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    id.expect("there is a session").to_owned()
}

/// Returns the sorted latencies of `calls` requests.
fn measure(addr: SocketAddr, request: &[u8], calls: usize) -> Vec<Duration> {
    let mut stream = TcpStream::connect(addr).expect("it is open");
    stream.set_nodelay(true).expect("it is a socket");
    let mut buffer = [0; 4096];
    let mut took = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        stream.write_all(request).expect("it reads");
        let read = stream.read(&mut buffer).expect("it answers");
        took.push(began.elapsed());
        assert!(buffer[..read].ends_with(ANSWER), "each answer comes whole, in one piece");
    }
    took.sort_unstable();
    took
}

fn report(what: &str, took: &[Duration]) {
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    let all: Duration = took.iter().sum();
    let mean = all / u32::try_from(took.len()).unwrap_or(u32::MAX);
    println!("{what:12} p50 {:?}, p99 {:?}, mean {mean:?}", at(50), at(99));
}
