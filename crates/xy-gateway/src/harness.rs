//! A gateway without a daemon around it: clients that say what the story says, and one server
//! whose words and whose ears are the story's. On paused time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::advance;
use xy_config::settings::{
    CallRules, Isolation, Limits, ParkSettings, ProcessSettings, Rules, ServerKind, ServerSettings,
    Source,
};
use xy_protocol::control;
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerName, Transport};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::speak::Said;

use crate::admin::GatewayStatus;
use crate::backend::Backend;
use crate::bridge::Key;
use crate::bridge::pending_input::Parked;
use crate::chunks::Chunks;
use crate::control::{Control, Later};
use crate::era::Introduction;
use crate::frontend::{ClientSession, Entry, Frontend, Lifetime, Responder, Route, View};
use crate::manifest::Manifests;
use crate::router::Router;
use crate::upstream::Upstream;
use crate::upstream::wire::Wire;

mod attribution;
mod changes;
mod eras;
mod error_log;
mod event_subscription;
mod exclusive;
mod finding;
mod garbled;
mod handshake;
mod idle;
mod isolated;
mod large;
mod loops;
mod members;
mod queue;
mod retained;
mod round_trip;
mod scopes;
mod shares;
mod sharing;
mod tasks;
mod timeout;
mod transparent;
mod unknown;

const SECOND: Duration = Duration::from_secs(1);

/// A daemon that is not there.
pub(crate) struct Nobody;

impl Control for Nobody {
    fn call(&self, _: control::Request) -> Later<Result<Value, CallError>> {
        Box::pin(std::future::pending())
    }

    fn hold(&self, _: &ServerName, _: Holder) -> Later<Result<(), CallError>> {
        Box::pin(std::future::pending())
    }

    fn release(&self, _: &ServerName, _: u64) -> Later<()> {
        Box::pin(std::future::pending())
    }
}

/// A gateway with the server `s`.
struct Harness {
    router: Rc<Router>,
    server: Rc<Backend>,
    upstream: Rc<Upstream>,
    sent: Rc<Sent>,
    said: mpsc::Receiver<Said>,
}

/// What the server is to be sent; written once somebody has looked.
#[derive(Default)]
struct Sent {
    messages: RefCell<Vec<Vec<u8>>>,
    written: Cell<usize>,
    /// From this one on nobody has read them.
    unread_from: Cell<Option<u64>>,
    /// The server has read those before this one.
    read_up_to: Cell<Option<u64>>,
}

impl Wire for Sent {
    fn put(&self, _call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        let mut message = Chunks::default();
        write(&mut message);
        let mut messages = self.messages.borrow_mut();
        messages.push(message.into_bytes().into());
        (self.written.get() + messages.len() - 1) as u64
    }

    fn flush(&self, _is_alone: bool) {}

    fn is_written(&self, place: u64) -> bool {
        place < self.written.get() as u64
    }

    fn unread_from(&self) -> Option<u64> {
        self.unread_from.get()
    }

    fn read_up_to(&self) -> Option<u64> {
        self.read_up_to.get()
    }

    fn waiting(&self) -> usize {
        0
    }

    fn close(&self) {}
}

impl Harness {
    async fn begin() -> Self {
        Self::with(CallRules::default(), false).await
    }

    async fn with(calls: CallRules, is_adopted: bool) -> Self {
        Self::of(calls, is_adopted, &legacy()).await
    }

    async fn of(calls: CallRules, is_adopted: bool, introduction: &Introduction) -> Self {
        Self::where_may_wait(ParkSettings::default(), calls, is_adopted, introduction).await
    }

    async fn where_may_wait(
        park: ParkSettings,
        calls: CallRules,
        is_adopted: bool,
        introduction: &Introduction,
    ) -> Self {
        Self::under(Arc::new(Nobody), settings(calls), park, is_adopted, introduction).await
    }

    /// The same of any server, under any daemon.
    async fn under(
        control: Arc<dyn Control>,
        settings: ServerSettings,
        park: ParkSettings,
        is_adopted: bool,
        introduction: &Introduction,
    ) -> Self {
        let router = empty(control, park);
        let server = router.server_of(&Arc::new(settings));
        let (said, heard) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        let upstream = life(&router, &server, said, sent.clone(), is_adopted, introduction).await;
        Self { router, server, upstream, sent, said: heard }
    }

    /// The server's life is over, and another begins.
    async fn live_again(&mut self) {
        self.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        self.router.over(&self.server, &self.upstream, "`s` has ended");
        let (said, heard) = mpsc::channel(64);
        self.said = heard;
        self.sent = Rc::default();
        let sent = self.sent.clone();
        self.upstream = life(&self.router, &self.server, said, sent, false, &legacy()).await;
    }

    /// The server says something.
    fn say(&self, message: &Value) {
        self.upstream.handle(message.to_string().as_bytes(), None);
    }

    /// The server asks something.
    fn ask(&self, id: &str, method: &str) {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} }));
    }

    /// The server answers a call.
    fn answer(&self, ours: u64) {
        self.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": { "ok": ours } }));
    }

    /// What the server has been sent since, but for the first words with it.
    fn sent(&self) -> Vec<Value> {
        let lines = self.sent.messages.take();
        self.sent.written.set(self.sent.written.get() + lines.len());
        lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// The calls that the server has been sent since: our ids, and what they say.
    fn calls(&self) -> Vec<(u64, String)> {
        let calls = self.sent().into_iter().filter(|it| it["method"] == "tools/call");
        calls.map(|it| (it["id"].as_u64().unwrap(), text(&it["params"]["arguments"]))).collect()
    }

    /// What the server's log has got since.
    async fn logged(&mut self) -> String {
        self.upstream.log_unparsed().await;
        let mut all = String::new();
        while let Ok(said) = self.said.try_recv() {
            if let Said::Stray(lines) = said {
                all.push_str(&String::from_utf8_lossy(&lines));
            }
        }
        all
    }

    /// Connects a client that has these capabilities.
    fn client(&self, capabilities: &Value) -> Visitor {
        self.client_of("2025-11-25", capabilities)
    }

    /// Connects a client of this revision.
    fn client_of(&self, version: &str, capabilities: &Value) -> Visitor {
        let entry = Entry {
            view: View::Profile("default".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Session,
            who: 0,
            bound: None,
        };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, heard.clone()).unwrap();
        let visitor = Visitor { client_session, heard };
        let params = json!({ "protocolVersion": version, "capabilities": capabilities });
        visitor.ask(&json!("hello"), "initialize", &params);
        visitor.heard();
        visitor
    }
}

/// A gateway without any server.
pub(crate) fn empty(control: Arc<dyn Control>, park: ParkSettings) -> Rc<Router> {
    let (seen, _) = watch::channel(GatewayStatus::default());
    // Nobody can make a folder there, not even root: no play remembers anything of another.
    let manifests = Manifests::in_folder(PathBuf::from("/dev/null/nowhere"));
    let parked = (Parked::new(Key::of(b"secret"), 1, &park), park);
    Router::new(manifests, control, 1, seen, parked)
}

pub(crate) fn settings(calls: CallRules) -> ServerSettings {
    let name = ServerName::new("s").unwrap();
    let file = PathBuf::from("s.kdl");
    let source = Source { file, command_line: 1, is_outdated: false, added: false };
    let process = ProcessSettings {
        command: "s".to_owned(),
        args: Vec::new(),
        env: BTreeMap::new(),
        working_dir: None,
        transport: Transport::Stdio,
        port: None,
        path: None,
        limits: Limits::default(),
    };
    let rules = Rules { calls, ..Rules::default() };
    let kind = ServerKind::Process(process);
    ServerSettings {
        name,
        source,
        kind,
        rules,
        isolation: Isolation::Shared,
        share_key: None,
        era: None,
    }
}

async fn life(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    said: mpsc::Sender<Said>,
    sent: Rc<Sent>,
    is_adopted: bool,
    introduction: &Introduction,
) -> Rc<Upstream> {
    let key = InstanceKey::shared(server.name.clone());
    let upstream = Upstream::new(key, said, 1, is_adopted, sent, router.clone());
    server.add(&upstream);
    upstream.resume(introduction.clone(), false).await;
    router.opened(&upstream);
    upstream
}

fn legacy() -> Introduction {
    let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"tools":{}},"serverInfo":{"name":"old"}}"#;
    Introduction::read(said).unwrap()
}

#[derive(Default)]
struct RecordedMessages(RefCell<Vec<Value>>);

impl Responder for RecordedMessages {
    fn put(&self, message: &[u8], to: Route) {
        if !matches!(to, Route::Cancelled(_)) {
            self.0.borrow_mut().push(serde_json::from_slice(message).unwrap());
        }
    }
}

/// A client.
struct Visitor {
    client_session: Rc<dyn ClientSession>,
    heard: Rc<RecordedMessages>,
}

impl Visitor {
    fn ask(&self, id: &Value, method: &str, params: &Value) {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
    }

    /// Calls the server's only tool.
    fn call(&self, id: &str) {
        let meta = json!({ "progressToken": format!("token of {id}") });
        let params = json!({ "name": "s__x", "arguments": id, "_meta": meta });
        self.ask(&json!(id), "tools/call", &params);
    }

    fn cancel(&self, id: &str) {
        let params = json!({ "requestId": id, "reason": "so" });
        let method = "notifications/cancelled";
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn say(&self, message: &Value) {
        self.client_session.handle(message.to_string().as_bytes(), 0);
    }

    /// What it has heard since.
    fn heard(&self) -> Vec<Value> {
        std::mem::take(&mut *self.heard.0.borrow_mut())
    }

    /// The words of the only error that it has heard since.
    #[track_caller]
    fn error(&self) -> String {
        let heard = self.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        heard[0]["error"]["message"].as_str().unwrap_or_else(|| panic!("{heard:?}")).to_owned()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Lets everything happen that is due after this time.
async fn later(time: Duration) {
    tokio::task::yield_now().await;
    advance(time).await;
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

async fn here(play: impl Future<Output = ()>) {
    LocalSet::new().run_until(play).await;
}
