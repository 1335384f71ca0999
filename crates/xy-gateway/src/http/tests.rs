//! The door over real connections, with a gateway that is only played.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};

use super::counts::{Gauges, Stored};
use super::persistence::Persistence;
use super::record::Record;
use super::service::HttpService;
use super::{Auth, Hosts, HttpRules, HttpStatus, Secret, Token, serve_door};
use crate::fake::FakeFront;
use client::{Client, Request};

mod client;
mod error_log;
mod large;
mod lifetimes;
mod limits;
mod older;
mod restore;
mod resume;
mod statuses;
mod streams;
mod visits;

/// How long anything may take that should happen at once.
const SOON: Duration = Duration::from_secs(20);

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;

/// A door with a played gateway behind it.
struct World {
    addr: SocketAddr,
    front: Rc<FakeFront>,
    door: Rc<HttpService>,
    is_ready: Rc<Cell<bool>>,
    limit_hits: LimitHits,
    meanwhile: RefCell<Vec<JoinHandle<()>>>,
}

struct FakeStatus(Rc<Cell<bool>>, LimitHits);

/// Which limits kept out whom.
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

/// Plays a story at an open door. At its end nothing may be left of it.
async fn at_the_door(rules: HttpRules, story: impl AsyncFnOnce(&World)) {
    at_a_door_with((Persistence::none(), Vec::new()), rules, story).await;
}

/// Plays a story at a door whose sessions are kept, or were left by another.
async fn at_a_door_with(
    sessions: (Persistence, Vec<Record>),
    rules: HttpRules,
    story: impl AsyncFnOnce(&World),
) {
    let play = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let is_ready = Rc::new(Cell::new(true));
        let front = Rc::new(FakeFront::default());
        let limit_hits = LimitHits::default();
        let status = Rc::new(FakeStatus(Rc::clone(&is_ready), Rc::clone(&limit_hits)));
        let door = HttpService::new(Rc::clone(&front) as _, rules, status, sessions);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::task::spawn_local({
            let door = Rc::clone(&door);
            async move { serve_door(listener, &door, async { drop(stopped.await) }).await }
        });
        let meanwhile = RefCell::default();
        let world = World { addr, front, door, is_ready, limit_hits, meanwhile };
        story(&world).await;
        drop(stop);
        within(serving).await.unwrap();
        for meanwhile in world.meanwhile.take() {
            within(meanwhile).await.unwrap();
        }
        world.assert_nothing_is_left();
    };
    LocalSet::new().run_until(play).await;
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it happens soon")
}

/// Lets the clock jump, and everything that is due happen.
async fn jump(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

impl World {
    async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// A client with a session at `path`.
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

    /// Something that happens beside the story, also after its end while the door closes.
    fn meanwhile(&self, happens: impl Future<Output = ()> + 'static) {
        self.meanwhile.borrow_mut().push(tokio::task::spawn_local(happens));
    }

    fn gauges(&self) -> (usize, usize) {
        let Gauges { sessions, streams, .. } = self.door.sessions().gauges();
        (sessions, streams)
    }

    /// Waits until so many sessions and streams are open.
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

    /// Waits until so many clients without sessions wait for an answer.
    async fn wait_for_visits(&self, expected: usize) {
        self.wait_until(|| self.door.visits().count() == expected).await;
    }

    /// How many streams wait to be taken up again.
    fn apart(&self) -> usize {
        self.door.sessions().gauges().apart
    }

    /// How much is held for clients.
    fn stored(&self) -> Stored {
        self.door.sessions().gauges().stored
    }

    fn metrics(&self) -> String {
        let mut out = String::new();
        self.door.counts().write(&mut out, self.door.gauges());
        out
    }

    fn assert_nothing_is_left(&self) {
        assert_eq!(self.door.gauges(), Gauges::default());
        assert_eq!(self.door.sessions().opening(), 0);
        assert_eq!(Rc::strong_count(&self.door), 1);
        for client_session in self.front.conversations() {
            assert!(client_session.is_closed());
            // The front's list, and what is held right here.
            assert_eq!(Rc::strong_count(&client_session), 2);
            assert_eq!(Rc::strong_count(&client_session.responder), 1);
        }
    }
}
