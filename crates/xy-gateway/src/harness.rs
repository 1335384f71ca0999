//! A test harness for the gateway: scripted clients and one scripted server, with no daemon, no I/O
//! and paused time.

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
use xy_http::frontend::{ClientSession, Entry, Frontend, Lifetime, Responder, Route, View};
use xy_mcp::era::Introduction;
use xy_protocol::control;
use xy_protocol::error::CallError;
use xy_protocol::server::{ServerName, Transport};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::protocol::DriverEvent;
use xy_transport::chunks::Chunks;
use xy_upstream::connection::wire::Wire;
use xy_upstream::fault::{Cause, LossReason, ServerFault};

use crate::backend::Backend;
use crate::bridge::Key;
use crate::bridge::pending_input::PendingInputs;
use crate::control::{BoxFuture, Control};
use crate::gateway_status::GatewayStatus;
use crate::manifest::Manifests;
use crate::router::Router;
use crate::upstream::Upstream;

mod attribution;
mod changes;
mod eras;
mod error_log;
mod event_subscription;
mod exclusive;
mod handshake;
mod idle;
mod isolated;
mod large;
mod limits;
mod loops;
mod malformed;
mod queue;
mod retained;
mod round_trip;
mod scopes;
mod search;
mod shares;
mod sharing;
mod tasks;
mod timeout;
mod transparent;
mod unannounced;
mod unknown;

const SECOND: Duration = Duration::from_secs(1);

/// A control plane that never answers.
pub(crate) struct NoDaemon;

impl Control for NoDaemon {
    fn call(&self, _: control::Request) -> BoxFuture<Result<Value, CallError>> {
        Box::pin(std::future::pending())
    }

    fn hold(&self, _: &ServerName, _: Holder) -> BoxFuture<Result<(), ServerFault>> {
        Box::pin(std::future::pending())
    }

    fn release(&self, _: &ServerName, _: u64) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }
}

/// A gateway with one server, `s`.
struct Harness {
    router: Rc<Router>,
    server: Rc<Backend>,
    upstream: Rc<Upstream>,
    sent: Rc<RecordedWire>,
    events: mpsc::Receiver<DriverEvent>,
}

/// The messages sent to the server. Calling [`Harness::sent`] marks them as written.
#[derive(Default)]
struct RecordedWire {
    messages: RefCell<Vec<Vec<u8>>>,
    written: Cell<usize>,
    /// The server has read no message from this number on, if this is known.
    unread_from: Cell<Option<u64>>,
    /// The server has read every message before this number, if this is known.
    read_up_to: Cell<Option<u64>>,
    /// The number of bytes that the server has not read.
    waiting: Cell<usize>,
}

impl Wire for RecordedWire {
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
        self.waiting.get()
    }

    fn close(&self) {}
}

impl Harness {
    async fn begin() -> Self {
        Self::with_rules(CallRules::default(), false).await
    }

    async fn with_rules(calls: CallRules, is_adopted: bool) -> Self {
        Self::with_introduction(calls, is_adopted, &legacy()).await
    }

    async fn with_introduction(
        calls: CallRules,
        is_adopted: bool,
        introduction: &Introduction,
    ) -> Self {
        Self::with_queue(ParkSettings::default(), calls, is_adopted, introduction).await
    }

    async fn with_queue(
        park: ParkSettings,
        calls: CallRules,
        is_adopted: bool,
        introduction: &Introduction,
    ) -> Self {
        Self::with_control(Arc::new(NoDaemon), settings(calls), park, is_adopted, introduction)
            .await
    }

    /// Creates a harness with any server settings and control plane.
    async fn with_control(
        control: Arc<dyn Control>,
        settings: ServerSettings,
        park: ParkSettings,
        is_adopted: bool,
        introduction: &Introduction,
    ) -> Self {
        let router = empty(control, park);
        let server = router.ensure_server(&Arc::new(settings));
        let (events, received) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        let upstream =
            start_upstream(&router, &server, events, sent.clone(), is_adopted, introduction).await;
        Self { router, server, upstream, sent, events: received }
    }

    /// Ends the server's process and starts its next one.
    async fn restart(&mut self) {
        self.upstream.close(&Cause::end(LossReason::server("has ended")));
        self.router.on_instance_end(&self.server, &self.upstream, &LossReason::server("has ended"));
        let (events, received) = mpsc::channel(64);
        self.events = received;
        self.sent = Rc::default();
        let sent = self.sent.clone();
        self.upstream =
            start_upstream(&self.router, &self.server, events, sent, false, &legacy()).await;
    }

    /// Sends a message from the server.
    fn send(&self, message: &Value) {
        self.upstream.handle(message.to_string().as_bytes(), None);
    }

    /// Sends a request from the server.
    fn ask(&self, id: &str, method: &str) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} }));
    }

    /// Sends the server's response to a call.
    fn answer(&self, upstream_id: u64) {
        self.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": { "ok": upstream_id } }));
    }

    /// Returns the messages sent to the server since the last call, without the handshake.
    fn sent(&self) -> Vec<Value> {
        let lines = self.sent.messages.take();
        self.sent.written.set(self.sent.written.get() + lines.len());
        lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Returns the calls sent to the server since the last one: upstream ids and arguments.
    fn calls(&self) -> Vec<(u64, String)> {
        let calls = self.sent().into_iter().filter(|it| it["method"] == "tools/call");
        calls.map(|it| (it["id"].as_u64().unwrap(), text(&it["params"]["arguments"]))).collect()
    }

    /// Returns the text added to the server's log since the last call.
    async fn logged(&mut self) -> String {
        self.upstream.log_unparsed().await;
        let mut all = String::new();
        while let Ok(event) = self.events.try_recv() {
            if let DriverEvent::UnparsedOutput(lines) = event {
                all.push_str(&String::from_utf8_lossy(&lines));
            }
        }
        all
    }

    /// Connects a client with these capabilities.
    fn client(&self, capabilities: &Value) -> TestClient {
        self.client_of("2025-11-25", capabilities)
    }

    /// Connects a client that asks for this protocol revision.
    fn client_of(&self, version: &str, capabilities: &Value) -> TestClient {
        let entry = Entry {
            view: View::Profile("default".to_owned()),
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let params = json!({ "protocolVersion": version, "capabilities": capabilities });
        client.ask(&json!("hello"), "initialize", &params);
        client.received();
        client
    }
}

/// Creates a gateway without servers.
pub(crate) fn empty(control: Arc<dyn Control>, park: ParkSettings) -> Rc<Router> {
    // No user can create a folder there, not even root: no test sees the manifests of another.
    empty_with(control, park, Manifests::in_folder(PathBuf::from("/dev/null/nowhere")))
}

/// Creates a gateway without servers that has these manifests.
fn empty_with(control: Arc<dyn Control>, park: ParkSettings, manifests: Manifests) -> Rc<Router> {
    let (seen, _) = watch::channel(GatewayStatus::default());
    let pending_inputs = (PendingInputs::new(Key::of(b"secret"), 1, &park), park);
    Router::new(manifests, control, 1, seen, pending_inputs)
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

async fn start_upstream(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    events: mpsc::Sender<DriverEvent>,
    sent: Rc<RecordedWire>,
    is_adopted: bool,
    introduction: &Introduction,
) -> Rc<Upstream> {
    let key = InstanceKey::shared(server.name.clone());
    let upstream = Upstream::new(key, events, 1, is_adopted, sent, router.clone());
    server.add(&upstream);
    upstream.resume(introduction.clone(), false).await;
    router.on_instance_ready(&upstream);
    upstream
}

fn legacy() -> Introduction {
    let introduction_json = r#"{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"tools":{}},"serverInfo":{"name":"old"}}"#;
    Introduction::read(introduction_json).unwrap()
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
struct TestClient {
    client_session: Rc<dyn ClientSession>,
    received: Rc<RecordedMessages>,
}

impl TestClient {
    fn ask(&self, id: &Value, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
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
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn send(&self, message: &Value) {
        self.client_session.handle(message.to_string().as_bytes(), 0);
    }

    /// Returns the messages received since the last call.
    fn received(&self) -> Vec<Value> {
        std::mem::take(&mut *self.received.0.borrow_mut())
    }

    /// Returns the message of the only error received since the last call.
    #[track_caller]
    fn error(&self) -> String {
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        received[0]["error"]["message"]
            .as_str()
            .unwrap_or_else(|| panic!("{received:?}"))
            .to_owned()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Advances paused time, and lets every task run that is due.
async fn advance_time(time: Duration) {
    tokio::task::yield_now().await;
    advance(time).await;
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

async fn run_local(harness: impl Future<Output = ()>) {
    LocalSet::new().run_until(harness).await;
}
