//! The HTTP service over real connections, with a fake gateway.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, Request};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};

use super::counters::{Gauges, StorageUse};
use super::persistence::Persistence;
use super::record::Record;
use super::service::HttpService;
use super::{Auth, Hosts, HttpRules, HttpStatus, Secret, Token, serve_with};
use crate::fake::FakeFrontend;

mod client;
mod error_log;
mod large;
mod legacy_sse;
mod lifetimes;
mod limits;
mod restore;
mod resume;
mod stateless;
mod statuses;
mod streams;

/// A generous limit for anything that should happen at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;

/// An HTTP service with a fake gateway behind it.
struct TestServer {
    addr: SocketAddr,
    frontend: Rc<FakeFrontend>,
    service: Rc<HttpService>,
    is_ready: Rc<Cell<bool>>,
    limit_hits: LimitHits,
    spawn: RefCell<Vec<JoinHandle<()>>>,
}

struct FakeStatus(Rc<Cell<bool>>, LimitHits);

/// The reported limit hits: limits and tokens.
type LimitHits = Rc<RefCell<Vec<(&'static str, Option<u64>)>>>;

impl HttpStatus for FakeStatus {
    fn is_ready(&self) -> bool {
        self.0.get()
    }

    fn metrics(&self, out: &mut String) {
        out.push_str("xy_core 1\n");
    }

    fn limit_hit(&self, limit: &'static str, token: Option<u64>) {
        self.1.borrow_mut().push((limit, token));
    }
}

fn rules() -> HttpRules {
    HttpRules {
        auth: Auth::None,
        sessions_max: 8,
        streams_per_session_max: 4,
        body_max_bytes: 1024 * 1024,
        idle: Duration::from_secs(600),
        hosts: Hosts::default(),
    }
}

fn token(secret: &str, may_manage: bool) -> Token {
    let id = secret.bytes().fold(2, |id, byte| id * 31 + u64::from(byte));
    let (name, secret) = (secret.to_owned(), Secret::Plain(secret.to_owned()));
    Token { id, name, secret, may_manage, profile: None }
}

/// Runs a test against a listening service, and checks that everything is released at its end.
async fn with_service(rules: HttpRules, test: impl AsyncFnOnce(&TestServer)) {
    with_restored_service((Persistence::none(), Vec::new()), rules, test).await;
}

/// Runs a test against a service with these persistent sessions.
async fn with_restored_service(
    sessions: (Persistence, Vec<Record>),
    rules: HttpRules,
    test: impl AsyncFnOnce(&TestServer),
) {
    let run = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let is_ready = Rc::new(Cell::new(true));
        let frontend = Rc::new(FakeFrontend::default());
        let limit_hits = LimitHits::default();
        let status = Rc::new(FakeStatus(Rc::clone(&is_ready), Rc::clone(&limit_hits)));
        let service = HttpService::new(Rc::clone(&frontend) as _, rules, status, sessions);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::task::spawn_local({
            let service = Rc::clone(&service);
            async move { serve_with(listener, &service, async { drop(stopped.await) }).await }
        });
        let spawn = RefCell::default();
        let server = TestServer { addr, frontend, service, is_ready, limit_hits, spawn };
        test(&server).await;
        drop(stop);
        within(serving).await.unwrap();
        for spawn in server.spawn.take() {
            within(spawn).await.unwrap();
        }
        server.assert_all_released();
    };
    LocalSet::new().run_until(run).await;
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it happens soon")
}

/// Advances the clock at once, and lets every task run that is due.
async fn advance_time(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

impl TestServer {
    async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// Returns a client with a session at `path`.
    async fn session_at(&self, path: &str) -> (Client, String) {
        let mut client = self.client().await;
        let answer = client.ask(&Request::post(path, INITIALIZE)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let id = answer.header("mcp-session-id").expect("there is a session").to_owned();
        (client, id)
    }

    async fn session(&self) -> (Client, String) {
        self.session_at("/mcp").await
    }

    /// Runs a task beside the test, also during the shutdown of the service.
    fn spawn(&self, happens: impl Future<Output = ()> + 'static) {
        self.spawn.borrow_mut().push(tokio::task::spawn_local(happens));
    }

    fn gauges(&self) -> (usize, usize) {
        let Gauges { sessions, streams, .. } = self.service.sessions().gauges();
        (sessions, streams)
    }

    /// Waits until this many sessions and streams are open.
    async fn wait_for_gauges(&self, expected: (usize, usize)) {
        self.wait_until(|| self.gauges() == expected).await;
    }

    async fn wait_until(&self, is_so: impl Fn() -> bool) {
        within(async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Waits until this many stateless requests are open.
    async fn wait_for_stateless(&self, expected: usize) {
        self.wait_until(|| self.service.stateless_requests().count() == expected).await;
    }

    /// Returns the number of disconnected streams that can be resumed.
    fn disconnected(&self) -> usize {
        self.service.sessions().gauges().disconnected
    }

    /// Returns how much is stored for replay.
    fn stored(&self) -> StorageUse {
        self.service.sessions().gauges().stored
    }

    fn metrics(&self) -> String {
        let mut out = String::new();
        self.service.counters().write(&mut out, self.service.gauges());
        out
    }

    fn assert_all_released(&self) {
        assert_eq!(self.service.gauges(), Gauges::default());
        assert_eq!(self.service.sessions().pending(), 0);
        assert_eq!(Rc::strong_count(&self.service), 1);
        for client_session in self.frontend.sessions() {
            assert!(client_session.is_closed());
            // Held by the fake gateway and by this loop.
            assert_eq!(Rc::strong_count(&client_session), 2);
            assert_eq!(Rc::strong_count(&client_session.responder), 1);
        }
    }
}
