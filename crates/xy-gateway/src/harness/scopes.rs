//! Clients with different profiles at the same servers: each sees, calls and receives only what its
//! profile shows.

use xy_catalog::catalog::{Item, Lists, ServerCatalog};
use xy_config::check_text;
use xy_config::settings::Profiles;
use xy_http::frontend::Refusal;
use xy_mcp::kind::Kind;

use super::*;

/// A gateway with the servers `s` and `t`, which offer the same items.
pub(super) struct TwoServers {
    pub(super) harness: Harness,
    /// Kept alive as long as the harness.
    other: Rc<Upstream>,
    sent: Rc<RecordedWire>,
}

fn abilities() -> Introduction {
    let introduction_json = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}},"serverInfo":{"name":"old"},"instructions":"how to use me"}"#;
    Introduction::read(introduction_json).unwrap()
}

fn lists() -> Lists {
    let mut lists = Lists::default();
    let read = |kind, all: &[Value]| -> Vec<Item> {
        all.iter().map(|it| Item::read(kind, &it.to_string()).unwrap()).collect()
    };
    let tool = |name| json!({ "name": name, "inputSchema": {}, "description": "as written" });
    lists.set(Kind::Tools, read(Kind::Tools, &["x", "y", "push"].map(tool)));
    let prompt = |name| json!({ "name": name });
    lists.set(Kind::Prompts, read(Kind::Prompts, &["ask", "tell"].map(prompt)));
    let resource = |uri| json!({ "uri": uri, "name": uri });
    let uris = ["file:///a/1", "file:///b/2"].map(resource);
    lists.set(Kind::Resources, read(Kind::Resources, &uris));
    let template = json!({ "uriTemplate": "file:///a/{name}", "name": "a" });
    let hidden = json!({ "uriTemplate": "file:///b/{name}", "name": "b" });
    lists.set(Kind::Templates, read(Kind::Templates, &[template, hidden]));
    lists
}

impl TwoServers {
    pub(super) async fn begin() -> Self {
        let harness = Harness::with_introduction(CallRules::default(), false, &abilities()).await;
        let mut settings = settings(CallRules::default());
        settings.name = ServerName::new("t").unwrap();
        let server = harness.router.ensure_server(&Arc::new(settings));
        let (events, _) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        let other =
            start_upstream(&harness.router, &server, events, sent.clone(), false, &abilities())
                .await;
        harness.router.learn(
            &harness.server,
            &harness.upstream,
            ServerCatalog::new("s", abilities(), lists()),
        );
        harness.router.learn(&server, &other, ServerCatalog::new("t", abilities(), lists()));
        Self { harness, other, sent }
    }

    /// Replaces the profiles.
    pub(super) fn profiles(&self, all: &[(&str, &str)]) {
        let mut profiles = Profiles::new();
        for (name, text) in all {
            let loaded = check_text(&format!("profiles/{name}.kdl"), text);
            let errors: Vec<_> = loaded.problems.iter().filter(|it| it.is_error()).collect();
            assert!(errors.is_empty(), "{errors:?}");
            profiles.extend(loaded.settings.profiles);
        }
        self.harness.router.set_profiles(&profiles);
    }

    fn open(&self, view: View, bound: Option<&str>) -> Result<TestClient, Refusal> {
        let bound = bound.map(str::to_owned);
        let entry =
            Entry { view, may_manage: true, lifetime: Lifetime::Session, principal: 7, bound };
        let received = Rc::new(RecordedMessages::default());
        let client_session = self.harness.router.open(entry, received.clone())?;
        let client = TestClient { client_session, received };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        client.ask(&json!("hello"), "initialize", &params);
        Ok(client)
    }

    pub(super) fn client(&self, profile: &str) -> TestClient {
        let client = self.open(View::Profile(profile.to_owned()), None).unwrap();
        client.received();
        client
    }

    /// Returns the messages sent to `t` since the last call.
    fn sent_to_other(&self) -> Vec<Value> {
        let lines = self.sent.messages.take();
        self.sent.written.set(self.sent.written.get() + lines.len());
        lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Asserts that no server was sent anything since the last call.
    #[track_caller]
    pub(super) fn assert_nothing_sent(&self) {
        assert_eq!((self.harness.sent(), self.sent_to_other()), (vec![], vec![]));
    }
}

impl TestClient {
    /// Requests a list, and returns the names in it.
    pub(super) fn names(&self, kind: Kind) -> Vec<String> {
        self.ask(&json!("list"), kind.method(), &json!({}));
        let received = self.received();
        let items =
            received[0]["result"][kind.key()].as_array().unwrap_or_else(|| panic!("{received:?}"));
        let key = match kind {
            Kind::Tools | Kind::Prompts => "name",
            Kind::Resources => "uri",
            Kind::Templates => "uriTemplate",
        };
        items.iter().map(|it| text(&it[key])).collect()
    }

    /// Sends a request, and returns its whole error.
    pub(super) fn refusal(&self, method: &str, params: &Value) -> Value {
        self.ask(&json!("refused"), method, params);
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        assert!(received[0]["error"].is_object(), "{method} {params}: {received:?}");
        received[0]["error"].clone()
    }

    fn changed(&self) -> Vec<String> {
        self.received().iter().map(|it| text(&it["method"])).collect()
    }
}

const ONLY_S: &str = r#"
servers "s"
manage #false
server "s" {
    tools { deny "push" }
    prompts { allow "ask" }
    resources { allow "file:///a/*" }
}
tool "s__y" { name "why"; description "why it is" }
"#;

#[tokio::test(start_paused = true)]
async fn each_client_sees_only_its_profile() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", ONLY_S), ("other", "servers \"t\"\nmanage #false")]);
        let (one, other) = (two.client("one"), two.client("other"));
        assert_eq!(one.names(Kind::Tools), ["s__x", "why"]);
        assert_eq!(one.names(Kind::Prompts), ["s__ask"]);
        assert_eq!(one.names(Kind::Resources), ["xy://s/file:///a/1"]);
        assert_eq!(one.names(Kind::Templates), ["xy://s/file:///a/{name}"]);
        assert_eq!(other.names(Kind::Tools), ["t__x", "t__y", "t__push"]);
        let everybody = two.client("default");
        let tools = everybody.names(Kind::Tools);
        assert!(tools.contains(&"s__push".to_owned()) && tools.contains(&"add_server".to_owned()));
        one.ask(&json!(1), "tools/list", &json!({}));
        let why = one.received()[0]["result"]["tools"][1].clone();
        let expected = json!({ "name": "why", "inputSchema": { "type": "object" }, "description": "why it is" });
        assert_eq!(why, expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renamed_item_is_called_by_its_profile_name() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", ONLY_S)]);
        let one = two.client("one");
        one.ask(&json!(1), "tools/call", &json!({ "name": "why", "arguments": { "a": 1.50 } }));
        let sent = two.harness.sent();
        assert_eq!(sent[0]["params"], json!({ "name": "y", "arguments": { "a": 1.50 } }));
        let ref_to =
            |uri: &str| json!({ "ref": { "type": "ref/resource", "uri": uri }, "argument": {} });
        for (method, params) in [
            ("prompts/get", json!({ "name": "s__ask" })),
            ("resources/read", json!({ "uri": "file:///a/1" })),
            ("resources/read", json!({ "uri": "xy://s/file:///a/7" })),
            ("resources/subscribe", json!({ "uri": "xy://s/file:///a/1" })),
            ("completion/complete", ref_to("file:///a/{name}")),
            ("completion/complete", ref_to("xy://s/file:///a/{name}")),
        ] {
            one.ask(&json!(method), method, &params);
            assert_eq!(two.harness.sent().len(), 1, "{method} {params}");
            assert_eq!(one.received(), Vec::<Value>::new(), "{method} {params}");
            one.cancel(method);
            two.harness.sent();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hidden_items_are_answered_like_unknown_ones() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", ONLY_S)]);
        let one = two.client("one");
        let by_name = |name: &str| json!({ "name": name });
        let by_uri = |uri: &str| json!({ "uri": uri });
        let prompt =
            |name: &str| json!({ "ref": { "type": "ref/prompt", "name": name }, "argument": {} });
        let template =
            |uri: &str| json!({ "ref": { "type": "ref/resource", "uri": uri }, "argument": {} });
        let names = ["s__push", "s__y", "t__x", "t__push", "add_server", "list_servers", "push"];
        for name in names {
            for (method, params, nobody) in [
                ("tools/call", by_name(name), by_name("n__n")),
                ("prompts/get", by_name(name), by_name("n__n")),
                ("completion/complete", prompt(name), prompt("n__n")),
            ] {
                let hidden = one.refusal(method, &params).to_string().replace(name, "n__n");
                assert_eq!(hidden, one.refusal(method, &nobody).to_string(), "{method} {name}");
            }
        }
        let uris = [
            "file:///b/2",
            "xy://s/file:///b/2",
            "xy://t/file:///a/1",
            "xy://t/x",
            "xy://s/file:///a/../b/2",
        ];
        for uri in uris {
            for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
                let hidden = one.refusal(method, &by_uri(uri)).to_string().replace(uri, "n:n");
                assert_eq!(
                    hidden,
                    one.refusal(method, &by_uri("n:n")).to_string(),
                    "{method} {uri}"
                );
            }
            let hidden = one.refusal("completion/complete", &template(uri)).to_string();
            let nobody = one.refusal("completion/complete", &template("n:n")).to_string();
            assert_eq!(hidden.replace(uri, "n:n"), nobody, "{uri}");
        }
        two.assert_nothing_sent();
        let near = one.refusal("tools/call", &by_name("t__pus"));
        assert!(!near.to_string().contains("push"), "{near}");
        let near = one.refusal("tools/call", &by_name("x")).to_string();
        assert!(near.contains("did you mean `s__x`?") && !near.contains("t__"), "{near}");
        let near = one.refusal("tools/call", &by_name("s__xx"));
        assert!(near.to_string().contains("s__x"), "{near}");
        let cursor = one.refusal("tools/list", &json!({ "cursor": "1:s__push" }));
        assert_eq!(cursor, one.refusal("tools/list", &json!({ "cursor": "1:s__nope" })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rules_apply_before_a_server_is_known() {
    run_local(async {
        let harness = Harness::begin().await;
        let two = TwoServers { other: harness.upstream.clone(), sent: Rc::default(), harness };
        two.profiles(&[("one", ONLY_S)]);
        let one = two.client("one");
        for name in ["s__push", "s__y"] {
            one.refusal("tools/call", &json!({ "name": name }));
        }
        one.refusal("prompts/get", &json!({ "name": "s__tell" }));
        two.assert_nothing_sent();
        for (name, inside) in [("s__x", "x"), ("why", "y")] {
            one.ask(&json!(name), "tools/call", &json!({ "name": name }));
            assert_eq!(two.harness.sent()[0]["params"]["name"], inside);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn list_change_is_announced_only_to_clients_that_see_it() {
    run_local(async {
        let two = TwoServers::begin().await;
        let other = "servers \"t\"\nserver \"t\" { resources { deny \"file:///b/*\" } }";
        two.profiles(&[("one", ONLY_S), ("other", other)]);
        let (one, other) = (two.client("one"), two.client("other"));
        advance_time(SECOND).await;
        for client in [&one, &other] {
            client.names(Kind::Tools);
            client.names(Kind::Resources);
        }
        // `push` of `s` changes, which neither client sees.
        let mut changed = lists();
        let mut tools = changed.of(Kind::Tools).to_vec();
        let push = json!({ "name": "push", "inputSchema": {}, "description": "other" }).to_string();
        tools[2] = Item::read(Kind::Tools, &push).unwrap();
        changed.set(Kind::Tools, tools.clone());
        let learn = |lists| {
            let known = ServerCatalog::new("s", abilities(), lists);
            two.harness.router.learn(&two.harness.server, &two.harness.upstream, known);
        };
        learn(changed.clone());
        advance_time(SECOND).await;
        assert_eq!((one.changed(), other.changed()), (vec![], vec![]));
        tools.remove(0);
        changed.set(Kind::Tools, tools);
        learn(changed);
        advance_time(SECOND).await;
        assert_eq!(one.changed(), ["notifications/tools/list_changed"]);
        assert_eq!(other.changed(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn updates_of_hidden_resources_are_dropped() {
    run_local(async {
        let two = TwoServers::begin().await;
        let rule = r#"server "s" { resources { allow "file:///a" "file:///a/*"; deny "file:///a/secret" } }"#;
        two.profiles(&[("one", rule)]);
        let one = two.client("one");
        one.ask(&json!(1), "resources/subscribe", &json!({ "uri": "xy://s/file:///a" }));
        let upstream_id = two.harness.sent()[0]["id"].clone();
        two.harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": {} }));
        one.received();
        let updated = |uri: &str| {
            let params = json!({ "uri": uri });
            two.harness.send(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }));
            one.received().len()
        };
        assert_eq!(updated("file:///a/1"), 1);
        assert_eq!(updated("file:///a/secret"), 0);
        two.profiles(&[("one", "deny-servers \"s\"")]);
        assert_eq!(updated("file:///a/1"), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_subscription_covers_only_visible_resources() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", ONLY_S)]);
        let view = View::Profile("one".to_owned());
        let entry = Entry {
            view,
            may_manage: false,
            lifetime: Lifetime::Request,
            principal: 1,
            bound: None,
        };
        let received = Rc::new(RecordedMessages::default());
        let client_session = two.harness.router.open(entry, received.clone()).unwrap();
        let one = TestClient { client_session, received };
        let uris =
            ["xy://s/file:///a/1", "xy://s/file:///b/2", "xy://t/file:///a/1", "file:///b/2"];
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "notifications": { "resourceSubscriptions": uris }, "_meta": meta });
        one.ask(&json!("l"), "subscriptions/listen", &params);
        advance_time(Duration::ZERO).await;
        let sent = two.harness.sent();
        let uris: Vec<String> = sent.iter().map(|it| text(&it["params"]["uri"])).collect();
        assert_eq!(uris, ["file:///a/1"]);
        assert_eq!(two.sent_to_other(), Vec::<Value>::new());
        two.harness.send(&json!({ "jsonrpc": "2.0", "id": sent[0]["id"], "result": {} }));
        advance_time(Duration::ZERO).await;
        let notification = one.received();
        let accepted = &notification[0]["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(*accepted, json!(["xy://s/file:///a/1"]), "{notification:?}");
    })
    .await;
}

/// Returns the introduction of a server with these instructions.
fn saying(words: &str) -> Introduction {
    let introduction_json = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "old" },
        "instructions": words,
    });
    Introduction::read(&introduction_json.to_string()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn instructions_follow_profile_order_without_hidden_servers() {
    run_local(async {
        let two = TwoServers::begin().await;
        let router = &two.harness.router;
        let mut third = settings(CallRules::default());
        third.name = ServerName::new("u").unwrap();
        let third = router.ensure_server(&Arc::new(third));
        let (events, _) = mpsc::channel(64);
        let long = "word ".repeat(1000);
        let words = [("s", "use me so"), ("t", long.as_str()), ("u", "secret of u")];
        let third_life =
            start_upstream(router, &third, events, Rc::default(), false, &saying("secret of u"))
                .await;
        let second = router.server("t").unwrap();
        let upstreams = [
            (&two.harness.server, &two.harness.upstream),
            (&second, &two.other),
            (&third, &third_life),
        ];
        for ((server, upstream), (name, words)) in upstreams.into_iter().zip(words) {
            router.learn(server, upstream, ServerCatalog::new(name, saying(words), lists()));
        }
        two.profiles(&[
            ("one", "servers \"t\" \"s\""),
            ("other", "servers \"u\" \"s\""),
            ("not", "deny-servers \"u\""),
        ]);
        let message_of = |profile: &str| {
            let client = two.open(View::Profile(profile.to_owned()), None).unwrap();
            let words = text(&client.received()[0]["result"]["instructions"]);
            assert!(words.len() <= 2000, "{} bytes", words.len());
            words
        };
        let place = |words: &str, part: &str| words.find(part);
        let one = message_of("one");
        let (first, last) = (place(&one, "\n\nt: word"), place(&one, "\n\ns: use me so"));
        assert!(first.is_some() && first < last, "{one}");
        assert!(one.contains("[…]") && !one.contains("secret"), "{one}");
        let other = message_of("other");
        assert!(other.ends_with("\n\nu: secret of u\n\ns: use me so"), "{other}");
        assert!(!other.contains("word"), "{other}");
        let not = message_of("not");
        let (first, last) = (place(&not, "\n\ns: use me so"), place(&not, "\n\nt: word"));
        assert!(first.is_some() && first < last && !not.contains("secret"), "{not}");
        let all = message_of("default");
        let places = ["\n\ns: ", "\n\nt: ", "\n\nu: secret of u"].map(|it| place(&all, it));
        assert!(places[0].is_some() && places.is_sorted(), "{all}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn shortened_name_reaches_its_tool() {
    run_local(async {
        let two = TwoServers::begin().await;
        let inside = [
            "a_tool_with_a_name_that_is_much_too_long_for_it_1",
            "a_tool_with_a_name_that_is_much_too_long_for_it_2",
        ];
        let mut lists = lists();
        let tool = |name: &str| json!({ "name": name, "inputSchema": {} }).to_string();
        let items = inside.iter().map(|name| Item::read(Kind::Tools, &tool(name)).unwrap());
        lists.set(Kind::Tools, items.collect());
        let known = ServerCatalog::new("s", abilities(), lists);
        two.harness.router.learn(&two.harness.server, &two.harness.upstream, known);
        let short = "servers \"s\"\nmanage #false\nname-budget 44";
        let found = format!("{short}\ntools \"search\"");
        two.profiles(&[("short", short), ("found", &found)]);
        let (client, finder) = (two.client("short"), two.client("found"));
        let names = client.names(Kind::Tools);
        assert_eq!(names.len(), 2);
        for (name, inside) in names.iter().zip(inside) {
            assert!(name.len() <= 44 && !name.ends_with(inside), "{name}");
            client.ask(&json!(name), "tools/call", &json!({ "name": name }));
            assert_eq!(two.harness.sent()[0]["params"]["name"], inside);
            let asked =
                json!({ "name": "call_tool", "arguments": { "name": name, "arguments": {} } });
            finder.ask(&json!(name), "tools/call", &asked);
            assert_eq!(two.harness.sent()[0]["params"]["name"], inside);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reload_notifies_listening_modern_client() {
    run_local(async {
        let two = TwoServers::begin().await;
        let other = ("other", "servers \"t\"");
        two.profiles(&[("one", ONLY_S), other]);
        let listening = |profile: &str| {
            let view = View::Profile(profile.to_owned());
            let entry = Entry {
                view,
                may_manage: false,
                lifetime: Lifetime::Request,
                principal: 1,
                bound: None,
            };
            let received = Rc::new(RecordedMessages::default());
            let client_session = two.harness.router.open(entry, received.clone()).unwrap();
            let client = TestClient { client_session, received };
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let filter = json!({ "toolsListChanged": true });
            let params = json!({ "notifications": filter, "_meta": meta });
            client.ask(&json!("l"), "subscriptions/listen", &params);
            client
        };
        let (one, unchanged) = (listening("one"), listening("other"));
        advance_time(SECOND).await;
        assert_eq!(one.changed(), ["notifications/subscriptions/acknowledged"]);
        unchanged.received();
        two.profiles(&[("one", "servers \"s\"\nmanage #false"), other]);
        advance_time(SECOND).await;
        assert_eq!(one.changed(), ["notifications/tools/list_changed"]);
        assert_eq!(unchanged.changed(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reload_applies_to_open_sessions_and_notifies_on_change() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", ONLY_S), ("other", "servers \"t\"")]);
        let (one, other) = (two.client("one"), two.client("other"));
        for client in [&one, &other] {
            for kind in Kind::ALL {
                client.names(kind);
            }
        }
        two.profiles(&[("one", "servers \"s\"\nmanage #false"), ("other", "servers \"t\"")]);
        advance_time(SECOND).await;
        assert_eq!(
            one.changed(),
            [
                "notifications/tools/list_changed",
                "notifications/prompts/list_changed",
                "notifications/resources/list_changed"
            ]
        );
        assert_eq!(other.changed(), Vec::<String>::new());
        assert_eq!(one.names(Kind::Tools), ["s__x", "s__y", "s__push"]);
        // Only the order of the settings differs, so no client is notified.
        two.profiles(&[("one", "manage #false\nservers \"s\""), ("other", "servers \"t\"")]);
        advance_time(SECOND).await;
        assert_eq!(one.changed(), Vec::<String>::new());

        two.profiles(&[("other", "servers \"t\"")]);
        advance_time(SECOND).await;
        assert_eq!(one.changed()[0], "notifications/tools/list_changed");
        for kind in Kind::ALL {
            assert_eq!(one.names(kind), Vec::<String>::new());
        }
        let refused = one.refusal("tools/call", &json!({ "name": "s__x" }));
        assert!(
            refused["message"].as_str().unwrap().contains("no profile named `one`"),
            "{refused}"
        );
        let gone = two.open(View::Profile("one".to_owned()), None).err();
        assert_eq!(gone, Some(Refusal::NoProfile("one".to_owned())));
        two.assert_nothing_sent();
        two.profiles(&[("one", ONLY_S)]);
        advance_time(SECOND).await;
        assert_eq!(one.changed()[0], "notifications/tools/list_changed");
        assert_eq!(one.names(Kind::Tools), ["s__x", "why"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn default_profile_may_have_a_file() {
    run_local(async {
        let two = TwoServers::begin().await;
        let anybody = two.client("default");
        assert!(anybody.names(Kind::Tools).contains(&"t__x".to_owned()));
        two.profiles(&[("default", "servers \"s\"\nmanage #false")]);
        assert_eq!(anybody.names(Kind::Tools), ["s__x", "s__y", "s__push"]);
        two.profiles(&[]);
        assert!(anybody.names(Kind::Tools).contains(&"t__x".to_owned()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bound_client_sees_only_completely_shown_servers() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", "servers \"s\"")]);
        let server = |name: &str| View::Server(name.to_owned());
        let outside = |name: &str| {
            Some(Refusal::Outside { server: name.to_owned(), profile: "one".to_owned() })
        };
        for hidden_or_absent in ["t", "nobody"] {
            let refusal = two.open(server(hidden_or_absent), Some("one")).err();
            assert_eq!(refusal, Some(Refusal::NoServer(hidden_or_absent.to_owned())));
        }
        let alone = two.open(server("s"), Some("one")).unwrap();
        alone.received();
        alone.ask(&json!(1), "tools/call", &json!({ "name": "push" }));
        assert_eq!(two.harness.sent().len(), 1);
        two.profiles(&[("one", "servers \"s\"\ndeny \"s__push\"")]);
        let refused = alone.refusal("tools/call", &json!({ "name": "push" }));
        assert!(refused["message"].as_str().unwrap().contains("does not show all"), "{refused}");
        alone.refusal("tools/list", &json!({}));
        assert_eq!(two.open(server("s"), Some("one")).err(), outside("s"));
        two.assert_nothing_sent();
    })
    .await;
}
