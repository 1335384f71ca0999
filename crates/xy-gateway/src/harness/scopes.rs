//! Two clients of two profiles at the same servers: each sees, calls and hears what its
//! profile shows, and is told nothing of the rest.

use xy_config::check_text;
use xy_config::settings::Profiles;

use super::*;
use crate::catalog::{Item, Kind, Known, Lists};
use crate::frontend::Refusal;

/// A gateway with the servers `s` and `t`, which offer the same under their own names.
pub(super) struct Two {
    pub(super) play: Harness,
    /// It lives as long as this.
    other: Rc<Upstream>,
    sent: Rc<Sent>,
}

fn abilities() -> Introduction {
    let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{},"logging":{}},"serverInfo":{"name":"old"},"instructions":"how to use me"}"#;
    Introduction::read(said).unwrap()
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

impl Two {
    pub(super) async fn begin() -> Self {
        let play = Harness::of(CallRules::default(), false, &abilities()).await;
        let mut settings = settings(CallRules::default());
        settings.name = ServerName::new("t").unwrap();
        let server = play.router.server_of(&Arc::new(settings));
        let (said, _) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        let other = life(&play.router, &server, said, sent.clone(), false, &abilities()).await;
        play.router.learn(&play.server, &play.upstream, Known::new("s", abilities(), lists()));
        play.router.learn(&server, &other, Known::new("t", abilities(), lists()));
        Self { play, other, sent }
    }

    /// The profiles are these from now on.
    pub(super) fn profiles(&self, all: &[(&str, &str)]) {
        let mut profiles = Profiles::new();
        for (name, text) in all {
            let loaded = check_text(&format!("profiles/{name}.kdl"), text);
            let errors: Vec<_> = loaded.problems.iter().filter(|it| it.is_error()).collect();
            assert!(errors.is_empty(), "{errors:?}");
            profiles.extend(loaded.settings.profiles);
        }
        self.play.router.set_profiles(&profiles);
    }

    fn open(&self, view: View, bound: Option<&str>) -> Result<Visitor, Refusal> {
        let bound = bound.map(str::to_owned);
        let entry = Entry { view, may_manage: true, lifetime: Lifetime::Session, who: 7, bound };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = self.play.router.open(entry, heard.clone())?;
        let visitor = Visitor { client_session, heard };
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
        visitor.ask(&json!("hello"), "initialize", &params);
        Ok(visitor)
    }

    pub(super) fn client(&self, profile: &str) -> Visitor {
        let visitor = self.open(View::Profile(profile.to_owned()), None).unwrap();
        visitor.heard();
        visitor
    }

    /// What the other server has been sent since.
    fn sent_to_other(&self) -> Vec<Value> {
        let lines = self.sent.messages.take();
        self.sent.written.set(self.sent.written.get() + lines.len());
        lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Nothing was sent to anybody since.
    #[track_caller]
    pub(super) fn is_quiet(&self) {
        assert_eq!((self.play.sent(), self.sent_to_other()), (vec![], vec![]));
    }
}

impl Visitor {
    /// The names in a list that it asks for.
    pub(super) fn names(&self, kind: Kind) -> Vec<String> {
        self.ask(&json!("list"), kind.method(), &json!({}));
        let heard = self.heard();
        let items =
            heard[0]["result"][kind.key()].as_array().unwrap_or_else(|| panic!("{heard:?}"));
        let key = match kind {
            Kind::Tools | Kind::Prompts => "name",
            Kind::Resources => "uri",
            Kind::Templates => "uriTemplate",
        };
        items.iter().map(|it| text(&it[key])).collect()
    }

    /// The error that a request gets, all of it.
    pub(super) fn refusal(&self, method: &str, params: &Value) -> Value {
        self.ask(&json!("refused"), method, params);
        let heard = self.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0]["error"].is_object(), "{method} {params}: {heard:?}");
        heard[0]["error"].clone()
    }

    fn changed(&self) -> Vec<String> {
        self.heard().iter().map(|it| text(&it["method"])).collect()
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
async fn each_is_shown_what_its_profile_shows() {
    here(async {
        let two = Two::begin().await;
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
        let why = one.heard()[0]["result"]["tools"][1].clone();
        let expected = json!({ "name": "why", "inputSchema": { "type": "object" }, "description": "why it is" });
        assert_eq!(why, expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_is_called_by_the_name_it_has_there() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", ONLY_S)]);
        let one = two.client("one");
        one.ask(&json!(1), "tools/call", &json!({ "name": "why", "arguments": { "a": 1.50 } }));
        let sent = two.play.sent();
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
            assert_eq!(two.play.sent().len(), 1, "{method} {params}");
            assert_eq!(one.heard(), Vec::<Value>::new(), "{method} {params}");
            one.cancel(method);
            two.play.sent();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_hidden_is_answered_like_what_is_not_there() {
    here(async {
        let two = Two::begin().await;
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
        two.is_quiet();
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
async fn before_a_server_is_known_its_rule_holds_too() {
    here(async {
        let play = Harness::begin().await;
        let two = Two { other: play.upstream.clone(), sent: Rc::default(), play };
        two.profiles(&[("one", ONLY_S)]);
        let one = two.client("one");
        for name in ["s__push", "s__y"] {
            one.refusal("tools/call", &json!({ "name": name }));
        }
        one.refusal("prompts/get", &json!({ "name": "s__tell" }));
        two.is_quiet();
        for (name, inside) in [("s__x", "x"), ("why", "y")] {
            one.ask(&json!(name), "tools/call", &json!({ "name": name }));
            assert_eq!(two.play.sent()[0]["params"]["name"], inside);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_only_to_whom_it_is_shown() {
    here(async {
        let two = Two::begin().await;
        let other = "servers \"t\"\nserver \"t\" { resources { deny \"file:///b/*\" } }";
        two.profiles(&[("one", ONLY_S), ("other", other)]);
        let (one, other) = (two.client("one"), two.client("other"));
        later(SECOND).await;
        for client in [&one, &other] {
            client.names(Kind::Tools);
            client.names(Kind::Resources);
        }
        // `push` of `s` is another now, which neither is shown.
        let mut changed = lists();
        let mut tools = changed.of(Kind::Tools).to_vec();
        let push = json!({ "name": "push", "inputSchema": {}, "description": "other" }).to_string();
        tools[2] = Item::read(Kind::Tools, &push).unwrap();
        changed.set(Kind::Tools, tools.clone());
        let learn = |lists| {
            let known = Known::new("s", abilities(), lists);
            two.play.router.learn(&two.play.server, &two.play.upstream, known);
        };
        learn(changed.clone());
        later(SECOND).await;
        assert_eq!((one.changed(), other.changed()), (vec![], vec![]));
        tools.remove(0);
        changed.set(Kind::Tools, tools);
        learn(changed);
        later(SECOND).await;
        assert_eq!(one.changed(), ["notifications/tools/list_changed"]);
        assert_eq!(other.changed(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn updates_of_what_is_hidden_are_told_nobody() {
    here(async {
        let two = Two::begin().await;
        let rule = r#"server "s" { resources { allow "file:///a" "file:///a/*"; deny "file:///a/secret" } }"#;
        two.profiles(&[("one", rule)]);
        let one = two.client("one");
        one.ask(&json!(1), "resources/subscribe", &json!({ "uri": "xy://s/file:///a" }));
        let ours = two.play.sent()[0]["id"].clone();
        two.play.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": {} }));
        one.heard();
        let updated = |uri: &str| {
            let params = json!({ "uri": uri });
            two.play.say(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }));
            one.heard().len()
        };
        assert_eq!(updated("file:///a/1"), 1);
        assert_eq!(updated("file:///a/secret"), 0);
        two.profiles(&[("one", "deny-servers \"s\"")]);
        assert_eq!(updated("file:///a/1"), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_clients_listen_to_what_they_are_shown() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", ONLY_S)]);
        let view = View::Profile("one".to_owned());
        let entry =
            Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
        let heard = Rc::new(RecordedMessages::default());
        let client_session = two.play.router.open(entry, heard.clone()).unwrap();
        let one = Visitor { client_session, heard };
        let uris =
            ["xy://s/file:///a/1", "xy://s/file:///b/2", "xy://t/file:///a/1", "file:///b/2"];
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "notifications": { "resourceSubscriptions": uris }, "_meta": meta });
        one.ask(&json!("l"), "subscriptions/listen", &params);
        later(Duration::ZERO).await;
        let sent = two.play.sent();
        let asked: Vec<String> = sent.iter().map(|it| text(&it["params"]["uri"])).collect();
        assert_eq!(asked, ["file:///a/1"]);
        assert_eq!(two.sent_to_other(), Vec::<Value>::new());
        two.play.say(&json!({ "jsonrpc": "2.0", "id": sent[0]["id"], "result": {} }));
        later(Duration::ZERO).await;
        let told = one.heard();
        let accepted = &told[0]["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(*accepted, json!(["xy://s/file:///a/1"]), "{told:?}");
    })
    .await;
}

/// What a server of this name says of itself, and how to use it.
fn saying(words: &str) -> Introduction {
    let said = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "old" },
        "instructions": words,
    });
    Introduction::read(&said.to_string()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn how_to_use_servers_is_told_in_the_order_of_the_profile_and_not_of_hidden_ones() {
    here(async {
        let two = Two::begin().await;
        let router = &two.play.router;
        let mut third = settings(CallRules::default());
        third.name = ServerName::new("u").unwrap();
        let third = router.server_of(&Arc::new(third));
        let (said, _) = mpsc::channel(64);
        let long = "word ".repeat(1000);
        let words = [("s", "use me so"), ("t", long.as_str()), ("u", "secret of u")];
        let third_life =
            life(router, &third, said, Rc::default(), false, &saying("secret of u")).await;
        let second = router.server("t").unwrap();
        let lives =
            [(&two.play.server, &two.play.upstream), (&second, &two.other), (&third, &third_life)];
        for ((server, upstream), (name, words)) in lives.into_iter().zip(words) {
            router.learn(server, upstream, Known::new(name, saying(words), lists()));
        }
        two.profiles(&[
            ("one", "servers \"t\" \"s\""),
            ("other", "servers \"u\" \"s\""),
            ("not", "deny-servers \"u\""),
        ]);
        let told = |profile: &str| {
            let visitor = two.open(View::Profile(profile.to_owned()), None).unwrap();
            let words = text(&visitor.heard()[0]["result"]["instructions"]);
            assert!(words.len() <= 2000, "{} bytes", words.len());
            words
        };
        let place = |words: &str, part: &str| words.find(part);
        let one = told("one");
        let (first, last) = (place(&one, "\n\nt: word"), place(&one, "\n\ns: use me so"));
        assert!(first.is_some() && first < last, "{one}");
        assert!(one.contains("[…]") && !one.contains("secret"), "{one}");
        let other = told("other");
        assert!(other.ends_with("\n\nu: secret of u\n\ns: use me so"), "{other}");
        assert!(!other.contains("word"), "{other}");
        let not = told("not");
        let (first, last) = (place(&not, "\n\ns: use me so"), place(&not, "\n\nt: word"));
        assert!(first.is_some() && first < last && !not.contains("secret"), "{not}");
        let all = told("default");
        let places = ["\n\ns: ", "\n\nt: ", "\n\nu: secret of u"].map(|it| place(&all, it));
        assert!(places[0].is_some() && places.is_sorted(), "{all}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_was_shortened_reaches_its_tool() {
    here(async {
        let two = Two::begin().await;
        let inside = [
            "a_tool_with_a_name_that_is_much_too_long_for_it_1",
            "a_tool_with_a_name_that_is_much_too_long_for_it_2",
        ];
        let mut lists = lists();
        let tool = |name: &str| json!({ "name": name, "inputSchema": {} }).to_string();
        let items = inside.iter().map(|name| Item::read(Kind::Tools, &tool(name)).unwrap());
        lists.set(Kind::Tools, items.collect());
        let known = Known::new("s", abilities(), lists);
        two.play.router.learn(&two.play.server, &two.play.upstream, known);
        let short = "servers \"s\"\nmanage #false\nname-budget 44";
        let found = format!("{short}\ntools \"search\"");
        two.profiles(&[("short", short), ("found", &found)]);
        let (client, finder) = (two.client("short"), two.client("found"));
        let names = client.names(Kind::Tools);
        assert_eq!(names.len(), 2);
        for (name, inside) in names.iter().zip(inside) {
            assert!(name.len() <= 44 && !name.ends_with(inside), "{name}");
            client.ask(&json!(name), "tools/call", &json!({ "name": name }));
            assert_eq!(two.play.sent()[0]["params"]["name"], inside);
            let asked =
                json!({ "name": "call_tool", "arguments": { "name": name, "arguments": {} } });
            finder.ask(&json!(name), "tools/call", &asked);
            assert_eq!(two.play.sent()[0]["params"]["name"], inside);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_is_told_to_a_modern_client_that_listens() {
    here(async {
        let two = Two::begin().await;
        let other = ("other", "servers \"t\"");
        two.profiles(&[("one", ONLY_S), other]);
        let listening = |profile: &str| {
            let view = View::Profile(profile.to_owned());
            let entry =
                Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
            let heard = Rc::new(RecordedMessages::default());
            let client_session = two.play.router.open(entry, heard.clone()).unwrap();
            let visitor = Visitor { client_session, heard };
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let wanted = json!({ "toolsListChanged": true });
            let params = json!({ "notifications": wanted, "_meta": meta });
            visitor.ask(&json!("l"), "subscriptions/listen", &params);
            visitor
        };
        let (one, unchanged) = (listening("one"), listening("other"));
        later(SECOND).await;
        assert_eq!(one.changed(), ["notifications/subscriptions/acknowledged"]);
        unchanged.heard();
        two.profiles(&[("one", "servers \"s\"\nmanage #false"), other]);
        later(SECOND).await;
        assert_eq!(one.changed(), ["notifications/tools/list_changed"]);
        assert_eq!(unchanged.changed(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_holds_for_who_is_there_and_is_told_where_something_changed() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", ONLY_S), ("other", "servers \"t\"")]);
        let (one, other) = (two.client("one"), two.client("other"));
        for client in [&one, &other] {
            for kind in Kind::ALL {
                client.names(kind);
            }
        }
        two.profiles(&[("one", "servers \"s\"\nmanage #false"), ("other", "servers \"t\"")]);
        later(SECOND).await;
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
        // Only the order of words differs: nobody is told.
        two.profiles(&[("one", "manage #false\nservers \"s\""), ("other", "servers \"t\"")]);
        later(SECOND).await;
        assert_eq!(one.changed(), Vec::<String>::new());

        two.profiles(&[("other", "servers \"t\"")]);
        later(SECOND).await;
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
        two.is_quiet();
        two.profiles(&[("one", ONLY_S)]);
        later(SECOND).await;
        assert_eq!(one.changed()[0], "notifications/tools/list_changed");
        assert_eq!(one.names(Kind::Tools), ["s__x", "why"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_default_profile_may_have_a_file_too() {
    here(async {
        let two = Two::begin().await;
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
async fn who_is_bound_to_a_profile_sees_only_whole_servers_alone() {
    here(async {
        let two = Two::begin().await;
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
        alone.heard();
        alone.ask(&json!(1), "tools/call", &json!({ "name": "push" }));
        assert_eq!(two.play.sent().len(), 1);
        two.profiles(&[("one", "servers \"s\"\ndeny \"s__push\"")]);
        let refused = alone.refusal("tools/call", &json!({ "name": "push" }));
        assert!(refused["message"].as_str().unwrap().contains("does not show all"), "{refused}");
        alone.refusal("tools/list", &json!({}));
        assert_eq!(two.open(server("s"), Some("one")).err(), outside("s"));
        two.is_quiet();
    })
    .await;
}
