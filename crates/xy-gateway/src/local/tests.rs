//! The local listener over real sockets, with a fake gateway.

use std::future::Future;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::{LocalSet, yield_now};
use xy_http::fake::FakeFrontend;

use super::*;

/// The limits that were hit, and by which token.
type LimitHits = Rc<RefCell<Vec<(&'static str, Option<u64>)>>>;

/// Records the limits that were hit.
struct FakeStatus(LimitHits);

impl HttpStatus for FakeStatus {
    fn is_ready(&self) -> bool {
        true
    }

    fn metrics(&self, _: &mut String) {}

    fn limit_hit(&self, limit: &'static str, token: Option<u64>) {
        self.0.borrow_mut().push((limit, token));
    }
}

/// A generous limit for anything that should happen at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

const MEGABYTE: usize = 1024 * 1024;

/// A local listener with a fake gateway behind it.
struct TestServer {
    home: tempfile::TempDir,
    frontend: Rc<FakeFrontend>,
    limit_hits: LimitHits,
    leave: watch::Sender<bool>,
    renew: mpsc::Sender<std::os::unix::net::UnixListener>,
}

/// Leaves the listener's settings unchanged.
fn default_settings(_: &mut LocalListener) {}

/// Runs a test against a listener, and checks that no session is left open at its end.
async fn with_listener(
    change: impl FnOnce(&mut LocalListener),
    test: impl AsyncFnOnce(&TestServer),
) {
    let run = async {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("s")).unwrap();
        let frontend = Rc::new(FakeFrontend::default());
        let own_uid = rustix::process::geteuid().as_raw();
        let limit_hits = LimitHits::default();
        let mut local = LocalListener {
            frontend: Rc::clone(&frontend) as _,
            status: Rc::new(FakeStatus(Rc::clone(&limit_hits))),
            own_uid,
            max_clients: 8,
            large: LargeReader::default(),
        };
        change(&mut local);
        let (leave, leaving) = watch::channel(false);
        let (renew, again) = mpsc::channel(1);
        let serving =
            tokio::task::spawn_local(async move { local.serve(listener, again, leaving).await });
        let server = TestServer { home, frontend, limit_hits, leave, renew };
        test(&server).await;
        server.leave.send_replace(true);
        within(serving).await.unwrap();
        assert!(server.frontend.sessions().iter().all(|client_session| client_session.is_closed()));
    };
    LocalSet::new().run_until(run).await;
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("it happens soon")
}

async fn wait_until(is_so: impl Fn() -> bool) {
    within(async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

impl TestServer {
    async fn connect(&self) -> Client {
        let stream = UnixStream::connect(self.home.path().join("s")).await.unwrap();
        Client(BufReader::new(stream))
    }

    async fn client(&self) -> Client {
        let mut client = self.connect().await;
        client.send(HELLO).await;
        assert_eq!(client.line().await, r#"{"xy":"welcome","protocol":1}"#);
        client
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    async fn send(&mut self, line: &str) {
        within(self.0.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    async fn call(&mut self, id: u64, method: &str) {
        self.send(&call(id, method)).await;
    }

    /// Returns the next line, or an empty one at the end.
    async fn line(&mut self) -> String {
        let mut line = String::new();
        within(self.0.read_line(&mut line)).await.unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Returns why the client is refused, and checks that the listener closes the connection.
    async fn refusal(&mut self) -> String {
        let line = self.line().await;
        let Ok(Answer::Refused { message, .. }) = serde_json::from_str(&line) else {
            panic!("the client was welcomed: {line}");
        };
        assert!(self.is_closed().await);
        message
    }

    /// Returns true if there is nothing more to read.
    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // Data that the peer has not read turns the close into a reset.
        let _ = within(self.0.read_to_end(&mut rest)).await;
        rest.is_empty()
    }
}

fn call(id: u64, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[1]}}"#)
}

#[tokio::test]
async fn lost_socket_is_replaced_and_open_connections_stay() {
    with_listener(default_settings, async |server| {
        let mut before = server.client().await;
        let path = server.home.path().join("s");
        std::fs::remove_file(&path).unwrap();
        let another = std::os::unix::net::UnixListener::bind(&path).unwrap();
        server.renew.send(another).await.unwrap();
        let mut after = server.client().await;
        for client in [&mut before, &mut after] {
            client.call(1, "m").await;
        }
        wait_until(|| server.frontend.sessions().len() == 2).await;
    })
    .await;
}

#[tokio::test]
async fn requests_are_answered_line_by_line() {
    with_listener(default_settings, async |server| {
        let mut client = server.client().await;
        client.call(1, "tell").await;
        assert!(client.line().await.contains("told"));
        assert!(client.line().await.contains(r#""id":1"#));
        client.send("nonsense").await;
        assert_eq!(client.line().await, r#"{"no":-32700}"#);
        client.call(2, "cancelled").await;
        client.call(3, "echo").await;
        assert!(client.line().await.contains(r#""id":3"#));
    })
    .await;
}

#[tokio::test]
async fn message_with_line_breaks_becomes_one_line() {
    with_listener(default_settings, async |server| {
        let mut client = server.client().await;
        server.frontend.newest().send("{\r\n\"a\":\n1}", Route::Broadcast);
        assert_eq!(client.line().await, r#"{  "a": 1}"#);
    })
    .await;
}

#[tokio::test]
async fn client_need_not_wait_for_the_welcome() {
    with_listener(default_settings, async |server| {
        let mut client = server.connect().await;
        client.send(&format!("{HELLO}\n{}", call(1, "echo"))).await;
        assert!(client.line().await.contains("welcome"));
        assert!(client.line().await.contains(r#""id":1"#));
    })
    .await;
}

#[tokio::test]
async fn messages_keep_their_order_behind_a_large_one() {
    with_listener(default_settings, async |server| {
        let (mut client, mut other) = (server.client().await, server.client().await);
        let client_session = server.frontend.sessions()[0].clone();
        let keys: Vec<String> =
            (0..LARGE_THRESHOLD / 8).map(|key| format!("\"k{key}\":1")).collect();
        let keys = keys.join(",");
        let large = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"large","params":{{{keys}}}}}"#);
        // In one write, so that the small messages have arrived when the large one is read.
        let (next, broken) = (call(2, "next"), format!("{{{keys}"));
        client.send(&[&large, &next, &broken, &next].map(String::as_str).join("\n")).await;
        other.call(7, "echo").await;
        assert!(other.line().await.contains("\"id\":7"), "others are served meanwhile");
        assert!(client.line().await.starts_with(r#"{"jsonrpc":"2.0","id":1,"result""#));
        assert!(client.line().await.starts_with(r#"{"jsonrpc":"2.0","id":2,"result""#));
        assert_eq!(client.line().await, r#"{"no":-32700}"#);
        client.line().await;
        assert_eq!(client_session.methods(), ["large", "next", "next"]);
    })
    .await;
}

#[tokio::test]
async fn half_closed_client_still_gets_a_large_answer() {
    with_listener(default_settings, async |server| {
        let mut client = server.client().await;
        let large = format!("\"{}\"", "1".repeat(8 * MEGABYTE));
        server.frontend.newest().send(&large, Route::Response(0));
        let mut begins = [0; 9];
        within(client.0.read_exact(&mut begins)).await.unwrap();
        client.0.get_mut().shutdown().await.unwrap();
        for _ in 0..1000 {
            yield_now().await; // Lets the listener notice that no more requests follow.
        }
        let rest = client.line().await;
        assert_eq!(begins.len() + rest.len(), large.len());
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn half_closed_client_is_served_while_requests_are_open() {
    with_listener(default_settings, async |server| {
        let mut client = server.client().await;
        let client_session = server.frontend.newest();
        client_session.is_busy.set(true);
        client.0.get_mut().shutdown().await.unwrap();
        client_session.send("1", Route::Response(0));
        assert_eq!(client.line().await, "1");
        client_session.send("2", Route::Response(0));
        assert_eq!(client.line().await, "2");
        client_session.is_busy.set(false);
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn interrupted_write_continues_where_it_stopped() {
    let (own_end, mut peer) = UnixStream::pair().unwrap();
    let own_end = Socket::new(own_end).unwrap();
    let lines = OutputQueue::default();
    lines.push(&vec![b'1'; 4 * MEGABYTE]);
    while lines.buffer.borrow().written == 0 {
        tokio::select! {
            biased;
            _ = lines.write(&own_end) => panic!("so much cannot be written at once"),
            () = yield_now() => {}
        }
    }
    lines.push(b"2");
    let mut all = vec![0; 4 * MEGABYTE + 3];
    let (written, read) =
        within(async { tokio::join!(lines.write(&own_end), peer.read_exact(&mut all)) }).await;
    assert!(written.is_ok() && read.is_ok());
    assert!(all.ends_with(b"11\n2\n"));
    let out = lines.buffer.borrow();
    assert_eq!(out.unread(), 0);
    assert!(out.writing.capacity() <= READ_BYTES, "no buffer is kept for written data");
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    with_listener(default_settings, async |server| {
        let mut other = server.client().await;
        let _client = server.client().await;
        let client_session = server.frontend.newest();
        let message = "1".repeat(MEGABYTE);
        let most = MAX_UNREAD_BYTES / MEGABYTE + 8; // Data in system buffers is unread too.
        for _ in 0..most {
            if !client_session.is_closed() {
                client_session.send(&message, Route::Broadcast);
            }
            yield_now().await;
        }
        wait_until(|| client_session.is_closed()).await;
        let unread = ("bytes that one local client has not read", Some(LOCAL));
        assert_eq!(*server.limit_hits.borrow(), [unread]);
        other.call(1, "echo").await;
        assert!(other.line().await.contains(r#""id":1"#));
    })
    .await;
}

#[tokio::test]
async fn stopping_daemon_says_goodbye() {
    with_listener(default_settings, async |server| {
        let mut client = server.client().await;
        server.leave.send_replace(true);
        assert_eq!(client.line().await, r#"{"xy":"goodbye"}"#);
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn client_of_another_user_is_refused_at_once() {
    with_listener(
        |local| local.own_uid += 1,
        async |server| {
            let mut client = server.connect().await;
            assert!(client.refusal().await.contains("another user"));
            assert!(server.frontend.sessions().is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn clients_are_limited_and_a_leaving_one_makes_room() {
    with_listener(
        |local| local.max_clients = 2,
        async |server| {
            let (first, _second) = (server.client().await, server.connect().await);
            let refusal = server.connect().await.refusal().await;
            assert!(refusal.starts_with("2 clients are connected"), "{refusal}");
            let full = ("clients of the local socket", Some(LOCAL));
            assert_eq!(*server.limit_hits.borrow(), [full]);
            drop(first);
            let has_left = || server.frontend.newest().is_closed();
            wait_until(has_left).await;
            server.client().await;
        },
    )
    .await;
}

#[tokio::test]
async fn client_beyond_the_maximum_of_all_listeners_is_recorded() {
    with_listener(default_settings, async |server| {
        let mut client = server.connect().await;
        client.send(&HELLO.replace("default", "full")).await;
        assert!(client.refusal().await.starts_with("3 clients are connected"));
        assert_eq!(*server.limit_hits.borrow(), [("clients", Some(LOCAL))]);
    })
    .await;
}

#[tokio::test]
async fn first_line_must_be_a_hello() {
    with_listener(default_settings, async |server| {
        for (line, why) in [
            ("{}", "not a hello"),
            (HELLO.replace(":1", ":2").as_str(), "revision"),
            (HELLO.replace("default", "none").as_str(), "`none`"),
            (&"x".repeat(MAX_HELLO_BYTES + 1), "longer than 64 KiB"),
        ] {
            let mut client = server.connect().await;
            client.send(line).await;
            let refusal = client.refusal().await;
            assert!(refusal.contains(why), "{refusal}");
        }
    })
    .await;
}

#[test]
fn unknown_profile_error_lists_profiles() {
    let named = |count: usize| -> Vec<String> {
        (0..count).map(|number| format!("profile-{number:02}")).collect()
    };
    let all = ["default".to_owned(), "work".to_owned()];
    assert_eq!(profile_hint("wrok", &all), "did you mean `work`?");
    let hint = profile_hint("zz", &all);
    assert!(hint.starts_with("there are `default`, `work`; "), "{hint}");
    let hint = profile_hint("zz", &named(MAX_LISTED_PROFILES + 5));
    assert!(hint.contains("`profile-09` and 5 more; "), "{hint}");
    assert!(profile_hint("zz", &[]).contains("`profiles`"));
}

#[tokio::test]
async fn silent_client_is_refused_after_a_timeout() {
    with_listener(default_settings, async |server| {
        let mut client = server.connect().await;
        let mut refusal = std::pin::pin!(client.refusal());
        let refusal = loop {
            tokio::select! {
                refusal = &mut refusal => break refusal,
                () = yield_now() => {}
            }
            tokio::time::pause();
            tokio::time::advance(Duration::from_millis(100)).await;
            tokio::time::resume();
        };
        assert!(refusal.contains("no first line arrived"), "{refusal}");
    })
    .await;
}
