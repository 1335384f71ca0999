//! Instances of one client: what only one instance offers belongs to its client, and what every new
//! instance offers is shown to all.

use xy_catalog::catalog::{Page, ServerCatalog};
use xy_mcp::kind::Kind;
use xy_upstream::fault::LossReason;

use super::search::{call_result, search};
use super::*;
use crate::router::FIRST_LISTS_TIMEOUT;

/// A gateway with the server `s`, of which each client has its own instance.
struct IsolatedServer {
    router: Rc<Router>,
    server: Rc<Backend>,
}

/// The instance of one client.
struct Instance {
    upstream: Rc<Upstream>,
    sent: Rc<RecordedWire>,
    _events: mpsc::Receiver<DriverEvent>,
}

impl IsolatedServer {
    fn begin() -> Self {
        let router = empty(Arc::new(NoDaemon), ParkSettings::default());
        let settings = settings(CallRules::default());
        let settings = ServerSettings { isolation: Isolation::Client, ..settings };
        let server = router.ensure_server(&Arc::new(settings));
        let loaded = xy_config::check_text("profiles/one.kdl", "tools \"search\"\nmanage #false");
        router.set_profiles(&loaded.settings.profiles);
        Self { router, server }
    }

    /// Opens a client with this profile, and returns it with its number.
    fn client(&self, profile: &str) -> (TestClient, u64) {
        let view = View::Profile(profile.to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Session,
            principal: 0,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, received.clone()).unwrap();
        let client = TestClient { client_session, received };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        client.ask(&json!("hello"), "initialize", &params);
        client.received();
        (client, self.router.clients().iter().map(|it| it.number()).max().unwrap())
    }

    async fn instance(&self, number: u64) -> Instance {
        let key = InstanceKey { server: self.server.name.clone(), holder: Holder::Client(number) };
        let (events, received) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        let upstream = Upstream::new(key, events, 1, false, sent.clone(), self.router.clone());
        self.server.add(&upstream);
        upstream.resume(legacy(), false).await;
        self.router.on_instance_ready(&upstream);
        Instance { upstream, sent, _events: received }
    }

    /// Reports the tools of an instance. Returns true if all clients see them.
    fn learn_tools(&self, own: &Instance, tools: &[&str]) -> bool {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": {}, "description": name });
        let page = json!({ "tools": tools.iter().map(tool).collect::<Vec<_>>() }).to_string();
        let mut lists = xy_catalog::catalog::Lists::default();
        lists.set(Kind::Tools, Page::read(Kind::Tools, &page).unwrap().items);
        self.router
            .learn(&self.server, &own.upstream, ServerCatalog::new("s", legacy(), lists))
            .is_some()
    }
}

impl Instance {
    /// Returns the names of the tools called since the last call.
    fn calls(&self) -> Vec<String> {
        let lines = self.sent.messages.take();
        let lines = lines.iter().map(|it| serde_json::from_slice::<Value>(it).unwrap());
        let calls = lines.filter(|it| it["method"] == "tools/call");
        calls.map(|it| text(&it["params"]["name"])).collect()
    }
}

/// Checks that no request reveals the tool `s__secret`.
#[track_caller]
fn assert_secret_hidden(finder: &TestClient, lister: &TestClient) {
    assert!(!lister.names(Kind::Tools).contains(&"s__secret".to_owned()));
    lister.ask(&json!(1), "tools/call", &json!({ "name": "s__secret" }));
    assert_eq!(lister.error(), "Unknown tool: s__secret");
    for query in ["secret", "s__secret"] {
        let names = search(finder, &json!({ "query": query, "limit": 100 }));
        assert!(!names.contains(&"s__secret".to_owned()), "{query}: {names:?}");
    }
    for tool in ["describe_tool", "call_tool"] {
        let hidden = call_result(finder, tool, &json!({ "name": "s__secret" }));
        let nobody = call_result(finder, tool, &json!({ "name": "s__nothing" }));
        assert_eq!(hidden["isError"], true, "{hidden}");
        assert_eq!(hidden.to_string().replace("s__secret", "s__nothing"), nobody.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn tools_added_by_one_instance_belong_to_its_client() {
    run_local(async {
        let alone = IsolatedServer::begin();
        let (ada, number) = alone.client("one");
        let (ben, of_ben) = alone.client("one");
        let (eve, of_eve) = alone.client("default");
        let own = alone.instance(number).await;
        assert!(alone.learn_tools(&own, &["login"]), "a new instance offers the common tools");
        assert!(alone.learn_tools(&own, &["login", "x"]), "also if it takes its time");
        assert_eq!(eve.names(Kind::Tools), ["s__login", "s__x"]);
        ada.ask(
            &json!(1),
            "tools/call",
            &json!({ "name": "call_tool", "arguments": { "name": "s__login" } }),
        );
        assert_eq!(own.calls(), ["login"]);
        assert!(!alone.learn_tools(&own, &["login", "secret"]));

        assert_secret_hidden(&ben, &eve);
        assert_eq!(eve.names(Kind::Tools), ["s__login", "s__x"], "the original list");
        assert_eq!(search(&ben, &json!({ "query": "x" })), ["s__x"]);
        let (of_ben, of_eve) = (alone.instance(of_ben).await, alone.instance(of_eve).await);
        assert!(
            alone.learn_tools(&of_ben, &["login", "x"])
                && alone.learn_tools(&of_eve, &["login", "x"])
        );
        assert_secret_hidden(&ben, &eve);

        assert_eq!(search(&ada, &json!({ "query": "secret" })), ["s__secret"]);
        assert_eq!(
            search(&ada, &json!({ "query": "x" })),
            Vec::<String>::new(),
            "its instance no longer has this tool"
        );
        let described = call_result(&ada, "describe_tool", &json!({ "name": "s__secret" }));
        assert_eq!(described["structuredContent"]["tool"]["description"], "secret");
        ada.ask(
            &json!(2),
            "tools/call",
            &json!({ "name": "call_tool", "arguments": { "name": "s__secret" } }),
        );
        assert_eq!(own.calls(), ["secret"]);
        // Search results end with the instance.
        alone.router.on_instance_end(
            &alone.server,
            &own.upstream,
            &LossReason::server("has ended"),
        );
        assert_eq!(search(&ada, &json!({ "query": "secret" })), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_waits_a_bounded_time_for_the_lists_of_its_instance() {
    run_local(async {
        let alone = IsolatedServer::begin();
        let (ada, number) = alone.client("default");
        let own = alone.instance(number).await;
        ada.call("early");
        assert_eq!(own.calls(), Vec::<String>::new());
        alone.learn_tools(&own, &["x"]);
        assert_eq!(own.calls(), ["x"]);

        let (ben, number) = alone.client("default");
        let late = alone.instance(number).await;
        ben.call("early");
        advance_time(FIRST_LISTS_TIMEOUT.saturating_sub(Duration::from_millis(1))).await;
        assert_eq!(late.calls(), Vec::<String>::new());
        advance_time(Duration::from_millis(1)).await;
        assert_eq!(late.calls(), ["x"]);
        assert!(!alone.learn_tools(&late, &["x", "secret"]), "the result of the call is unknown");
        assert_eq!(ada.names(Kind::Tools), ["s__x"]);
        assert_eq!(ben.names(Kind::Tools), ["s__x", "s__secret"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn notification_of_a_client_makes_its_instance_private() {
    run_local(async {
        let alone = IsolatedServer::begin();
        let (ada, number) = alone.client("default");
        let own = alone.instance(number).await;
        advance_time(FIRST_LISTS_TIMEOUT).await;
        assert!(alone.learn_tools(&own, &["x"]), "late, but without any call or notification");
        ada.send(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
        assert!(!alone.learn_tools(&own, &["x", "secret"]));
    })
    .await;
}
