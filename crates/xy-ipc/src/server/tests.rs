//! Tests with a scripted service and clients over real sockets, in paused time.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use xy_protocol::control::{ByName, Logs};

use super::*;

mod descriptors;
mod limits;
mod shutdown;
mod streams;

/// A service for tests: `status` sleeps as many seconds as its name says; `logs` runs the script of
/// that name.
#[derive(Default)]
struct Scripted {
    /// Number of requests being executed; a dropped one is not counted any more.
    open_requests: Arc<AtomicUsize>,
    next_id: AtomicUsize,
}

struct OpenRequest(Arc<AtomicUsize>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service for Scripted {
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        self.open_requests.fetch_add(1, Ordering::SeqCst);
        let _open_request = OpenRequest(Arc::clone(&self.open_requests));
        match request {
            Request::List => Answer::of(&json!([])),
            Request::Version => {
                let file = tempfile::tempfile().map_err(|_| CallError::invalid_params(""))?;
                let _ = (&file).write_all(b"passed");
                let answer = serde_json::value::to_raw_value("with it").unwrap();
                Ok(Answer::WithDescriptor(answer, file.into()))
            }
            Request::Status(ByName { name }) => {
                let seconds = name.parse().map_err(|_| CallError::invalid_params("no number"))?;
                sleep(Duration::from_secs(seconds)).await;
                Answer::of(&name)
            }
            Request::Logs(Logs { name, .. }) => {
                let id = self.next_id.fetch_add(1, Ordering::SeqCst) as u64;
                Ok(Answer::Stream(Box::new(Script { id, name })))
            }
            other => Err(CallError::new(ErrorKind::Internal, other.method())),
        }
    }
}

struct Script {
    id: u64,
    name: String,
}

impl Feed for Script {
    fn id(&self) -> u64 {
        self.id
    }

    fn end_method(&self) -> &'static str {
        "log_end"
    }

    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            match self.name.as_str() {
                "three" => {
                    for number in 0..3 {
                        outbox.notify("log", json!({"line": number})).await.unwrap();
                    }
                }
                "flood" => while outbox.notify("log", "x".repeat(1000)).await.is_ok() {},
                "silent" => std::future::pending().await,
                other => panic!("no script `{other}`"),
            }
        })
    }
}

/// A server in a temporary directory.
struct TestServer {
    folder: TempDir,
    service: Arc<Scripted>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl TestServer {
    fn new() -> Self {
        Self::with_uid(rustix::process::geteuid().as_raw())
    }

    fn with_uid(own_uid: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let service = Arc::new(Scripted::default());
        let (stop, stopped) = oneshot::channel();
        let acceptor = Acceptor { own_uid, service: Arc::clone(&service) };
        let serving = tokio::spawn(async move {
            acceptor.serve(listener, async { drop(stopped.await) }).await;
        });
        Self { folder, service, stop: Some(stop), serving }
    }

    async fn client(&self) -> Peer {
        let stream = UnixStream::connect(self.folder.path().join("s")).await.unwrap();
        Peer { stream: BufReader::new(stream) }
    }

    fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    fn open_requests(&self) -> usize {
        self.service.open_requests.load(Ordering::SeqCst)
    }

    async fn wait_for_open_requests(&self, count: usize) {
        let condition = async {
            while self.open_requests() != count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = timeout(Duration::from_secs(10), condition).await;
        assert!(waited.is_ok(), "{} under way, not {count}", self.open_requests());
    }
}

/// A client without protocol logic.
struct Peer {
    stream: BufReader<UnixStream>,
}

impl Peer {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn request(&mut self, id: u64, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(format!("{message}\n")).await;
    }

    /// Returns the next message, or null at the end.
    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        match timeout(Duration::from_secs(100), read).await.expect("no message in time") {
            Ok(0) => Value::Null,
            Ok(_) => serde_json::from_str(&line).unwrap(),
            // The server closed while some of this client's bytes were unread.
            Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => Value::Null,
            Err(cause) => panic!("{cause}"),
        }
    }

    /// Returns the next message in short form: `1 result`, `2 error -32600`, `log`.
    async fn next_short(&mut self) -> String {
        let message = self.next().await;
        match (&message["method"], &message["error"]["code"], &message["id"]) {
            (Value::String(method), _, _) => method.clone(),
            (_, Value::Number(code), id) => format!("{id} error {code}"),
            (_, _, Value::Null) => "end".to_owned(),
            (_, _, id) => format!("{id} result"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_answered_and_garbage_is_rejected() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.send(b"hello\n\r\n[]\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no\"}\r\n\xff\n").await;
    peer.request(2, "list", json!({})).await;
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(peer.next_short().await);
    }
    answers.sort();
    let expected = [
        "1 error -32601",
        "2 result",
        "null error -32600",
        "null error -32700",
        "null error -32700",
    ];
    assert_eq!(answers, expected);
}

#[tokio::test(start_paused = true)]
async fn slow_request_delays_no_other() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    let start = Instant::now();
    peer.request(1, "status", json!({"name": "20"})).await;
    peer.request(2, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "2 result");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(peer.next_short().await, "1 result");
    assert!(start.elapsed() >= Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn notification_is_executed_without_an_answer() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.send("{\"jsonrpc\":\"2.0\",\"method\":\"status\",\"params\":{\"name\":\"1\"}}\n").await;
    peer.send("{\"jsonrpc\":\"2.0\",\"method\":\"nonsense\"}\n").await;
    server.wait_for_open_requests(1).await;
    server.wait_for_open_requests(0).await;
    peer.request(1, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "1 result");
}

#[tokio::test(start_paused = true)]
async fn partial_line_waits_for_its_newline() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.send("{\"jsonrpc\":\"2.0\",\"id\":1,").await;
    sleep(Duration::from_secs(29)).await;
    peer.send("\"method\":\"list\"}\n").await;
    assert_eq!(peer.next_short().await, "1 result");
    sleep(Duration::from_secs(100)).await; // A client may be silent between its lines.
    peer.request(2, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "2 result");
}

#[tokio::test(start_paused = true)]
async fn requests_end_after_a_hang_up() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "status", json!({"name": "1000"})).await;
    server.wait_for_open_requests(1).await;
    drop(peer);
    server.wait_for_open_requests(0).await;
}

#[tokio::test(start_paused = true)]
async fn half_closed_client_gets_its_answers() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "status", json!({"name": "3"})).await;
    peer.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(peer.next_short().await, "1 result");
    assert_eq!(peer.next_short().await, "end");
}

#[tokio::test(start_paused = true)]
async fn another_user_is_rejected_with_the_reason() {
    let server = TestServer::with_uid(rustix::process::geteuid().as_raw() + 1);
    let mut peer = server.client().await;
    assert_eq!(peer.next_short().await, "null error -32009");
    assert_eq!(peer.next_short().await, "end");
}

/// Fails to accept three times, then blocks.
struct OutOfDescriptors(AtomicUsize);

impl Accept for &OutOfDescriptors {
    async fn next(&self) -> io::Result<UnixStream> {
        if self.0.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(rustix::io::Errno::MFILE.into());
        }
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn failed_accept_is_retried_after_a_delay() {
    let listener = OutOfDescriptors(AtomicUsize::new(0));
    let acceptor = Acceptor { own_uid: 0, service: Arc::new(Scripted::default()) };
    let start = Instant::now();
    acceptor.serve(&listener, sleep(Duration::from_millis(300))).await;
    assert_eq!(listener.0.load(Ordering::SeqCst), 2);
    assert_eq!(start.elapsed(), Duration::from_millis(300));
}

#[tokio::test]
async fn replaced_listener_accepts_connections() {
    let folder = TempDir::new().unwrap();
    let bound = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
    let (renew, replacements) = mpsc::channel(1);
    let listener = ReplaceableListener { state: Mutex::new((bound("first"), replacements)) };
    let accepting = tokio::spawn(async move {
        let early = listener.next().await.unwrap();
        (early, listener.next().await.unwrap())
    });
    let _early = UnixStream::connect(folder.path().join("first")).await.unwrap();
    renew.send(bound("second")).await.unwrap();
    let _late = UnixStream::connect(folder.path().join("second")).await.unwrap();
    accepting.await.unwrap();
}
