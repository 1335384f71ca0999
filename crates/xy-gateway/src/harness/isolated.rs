//! Instances that live for one client: what one offers is its own client's, and what anybody
//! would get is everybody's.

use super::finding::{called, found};
use super::*;
use crate::catalog::{Kind, Known, Page};
use crate::router::LISTS_FIRST;

/// A gateway with the server `s`, of which each client has its own.
struct Alone {
    router: Rc<Router>,
    server: Rc<Backend>,
}

/// The instance of one client.
struct Own {
    upstream: Rc<Upstream>,
    sent: Rc<Sent>,
    _said: mpsc::Receiver<Said>,
}

impl Alone {
    fn begin() -> Self {
        let router = empty(Arc::new(Nobody), ParkSettings::default());
        let settings = settings(CallRules::default());
        let settings = ServerSettings { isolation: Isolation::Client, ..settings };
        let server = router.server_of(&Arc::new(settings));
        let loaded = xy_config::check_text("profiles/one.kdl", "tools \"search\"\nmanage #false");
        router.set_profiles(&loaded.settings.profiles);
        Self { router, server }
    }

    /// A client that finds tools, and its number; or one that lists them.
    fn client(&self, profile: &str) -> (Visitor, u64) {
        let view = View::Profile(profile.to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = self.router.open(entry, heard.clone()).unwrap();
        let visitor = Visitor { client_session, heard };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        visitor.ask(&json!("hello"), "initialize", &params);
        visitor.heard();
        (visitor, self.router.clients().iter().map(|it| it.number()).max().unwrap())
    }

    async fn instance(&self, number: u64) -> Own {
        let key = InstanceKey { server: self.server.name.clone(), holder: Holder::Client(number) };
        let (said, heard) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        let upstream = Upstream::new(key, said, 1, false, sent.clone(), self.router.clone());
        self.server.add(&upstream);
        upstream.resume(legacy(), false).await;
        self.router.opened(&upstream);
        Own { upstream, sent, _said: heard }
    }

    /// An instance says that it offers these tools; whether everybody gets to know.
    fn says(&self, own: &Own, tools: &[&str]) -> bool {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": {}, "description": name });
        let page = json!({ "tools": tools.iter().map(tool).collect::<Vec<_>>() }).to_string();
        let mut lists = crate::catalog::Lists::default();
        lists.set(Kind::Tools, Page::read(Kind::Tools, &page).unwrap().items);
        self.router.learn(&self.server, &own.upstream, Known::new("s", legacy(), lists)).is_some()
    }
}

impl Own {
    /// The names of the tools that it was called by since.
    fn calls(&self) -> Vec<String> {
        let lines = self.sent.messages.take();
        let lines = lines.iter().map(|it| serde_json::from_slice::<Value>(it).unwrap());
        let calls = lines.filter(|it| it["method"] == "tools/call");
        calls.map(|it| text(&it["params"]["name"])).collect()
    }
}

/// Nothing tells it of a tool named `s__secret`.
#[track_caller]
fn knows_nothing(finder: &Visitor, lister: &Visitor) {
    assert!(!lister.names(Kind::Tools).contains(&"s__secret".to_owned()));
    lister.ask(&json!(1), "tools/call", &json!({ "name": "s__secret" }));
    assert_eq!(lister.error(), "Unknown tool: s__secret");
    for query in ["secret", "s__secret"] {
        let names = found(finder, &json!({ "query": query, "limit": 100 }));
        assert!(!names.contains(&"s__secret".to_owned()), "{query}: {names:?}");
    }
    for tool in ["describe_tool", "call_tool"] {
        let hidden = called(finder, tool, &json!({ "name": "s__secret" }));
        let nobody = called(finder, tool, &json!({ "name": "s__nothing" }));
        assert_eq!(hidden["isError"], true, "{hidden}");
        assert_eq!(hidden.to_string().replace("s__secret", "s__nothing"), nobody.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_clients_instance_adds_is_that_clients_alone() {
    here(async {
        let alone = Alone::begin();
        let (ada, number) = alone.client("one");
        let (ben, of_ben) = alone.client("one");
        let (eve, of_eve) = alone.client("default");
        let own = alone.instance(number).await;
        assert!(alone.says(&own, &["login"]), "a new one offers what anybody would get");
        assert!(alone.says(&own, &["login", "x"]), "also if it takes its time");
        assert_eq!(eve.names(Kind::Tools), ["s__login", "s__x"]);
        ada.ask(
            &json!(1),
            "tools/call",
            &json!({ "name": "call_tool", "arguments": { "name": "s__login" } }),
        );
        assert_eq!(own.calls(), ["login"]);
        assert!(!alone.says(&own, &["login", "secret"]));

        knows_nothing(&ben, &eve);
        assert_eq!(eve.names(Kind::Tools), ["s__login", "s__x"], "what there was at first");
        assert_eq!(found(&ben, &json!({ "query": "x" })), ["s__x"]);
        let (of_ben, of_eve) = (alone.instance(of_ben).await, alone.instance(of_eve).await);
        assert!(alone.says(&of_ben, &["login", "x"]) && alone.says(&of_eve, &["login", "x"]));
        knows_nothing(&ben, &eve);

        assert_eq!(found(&ada, &json!({ "query": "secret" })), ["s__secret"]);
        assert_eq!(
            found(&ada, &json!({ "query": "x" })),
            Vec::<String>::new(),
            "it has that no more"
        );
        let described = called(&ada, "describe_tool", &json!({ "name": "s__secret" }));
        assert_eq!(described["structuredContent"]["tool"]["description"], "secret");
        ada.ask(
            &json!(2),
            "tools/call",
            &json!({ "name": "call_tool", "arguments": { "name": "s__secret" } }),
        );
        assert_eq!(own.calls(), ["secret"]);
        // What is found goes with the instance.
        alone.router.over(&alone.server, &own.upstream, "`s` has ended");
        assert_eq!(found(&ada, &json!({ "query": "secret" })), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_until_its_instance_has_said_what_it_offers_but_not_for_long() {
    here(async {
        let alone = Alone::begin();
        let (ada, number) = alone.client("default");
        let own = alone.instance(number).await;
        ada.call("early");
        assert_eq!(own.calls(), Vec::<String>::new());
        alone.says(&own, &["x"]);
        assert_eq!(own.calls(), ["x"]);

        let (ben, number) = alone.client("default");
        let late = alone.instance(number).await;
        ben.call("early");
        later(LISTS_FIRST.saturating_sub(Duration::from_millis(1))).await;
        assert_eq!(late.calls(), Vec::<String>::new());
        later(Duration::from_millis(1)).await;
        assert_eq!(late.calls(), ["x"]);
        assert!(!alone.says(&late, &["x", "secret"]), "nobody knows what came of the call");
        assert_eq!(ada.names(Kind::Tools), ["s__x"]);
        assert_eq!(ben.names(Kind::Tools), ["s__x", "s__secret"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_an_instance_hears_of_its_client_makes_what_it_offers_that_clients() {
    here(async {
        let alone = Alone::begin();
        let (ada, number) = alone.client("default");
        let own = alone.instance(number).await;
        later(LISTS_FIRST).await;
        assert!(alone.says(&own, &["x"]), "late, and nobody has said anything");
        ada.say(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
        assert!(!alone.says(&own, &["x", "secret"]));
    })
    .await;
}
