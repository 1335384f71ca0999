//! Profiles with `tools "search"`: what is listed, found, described and called.

use xy_mcp::kind::Kind;

use super::scopes::TwoServers;
use super::*;

const SEARCH: &str = r#"
servers "s"
manage #false
tools "search"
pin "s__x"
deny "s__push"
tool "s__y" { name "why"; description "Reasons for all there is" }
"#;

pub(super) fn call_result(client: &TestClient, name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    client.ask(&json!("call"), "tools/call", &params);
    let received = client.received();
    assert_eq!(received.len(), 1, "{received:?}");
    received[0]["result"].clone()
}

pub(super) fn search(client: &TestClient, arguments: &Value) -> Vec<String> {
    let result = call_result(client, "search_tools", arguments);
    let tools =
        result["structuredContent"]["tools"].as_array().unwrap_or_else(|| panic!("{result}"));
    tools.iter().map(|it| text(&it["name"])).collect()
}

#[tokio::test(start_paused = true)]
async fn search_profile_lists_search_tools_and_pinned_tools() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        let listed = ["search_tools", "describe_tool", "call_tool", "s__x"];
        assert_eq!(one.names(Kind::Tools), listed);
        assert_eq!(one.names(Kind::Prompts), ["s__ask", "s__tell"]);
        let other = two.client("default");
        let other_tools = other.names(Kind::Tools);
        assert!(!other_tools.contains(&"search_tools".to_owned()));
        for name in ["search_tools", "describe_tool", "call_tool"] {
            other.ask(
                &json!(1),
                "tools/call",
                &json!({ "name": name, "arguments": { "query": "x" } }),
            );
            assert!(other.error().contains("Unknown tool"), "{name}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hidden_tools_are_not_found_described_or_called() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        let table: [(&str, &[&str]); 10] = [
            ("x", &["s__x"]),
            ("s__x", &["s__x"]),
            ("as written", &["s__x"]),
            ("reasons", &["why"]),
            ("why", &["why"]),
            // Hidden tools, and original names of renamed tools.
            ("push", &[]),
            ("s__push", &[]),
            ("y", &[]),
            ("", &[]),
            ("*", &[]),
        ];
        for (query, names) in table {
            assert_eq!(search(&one, &json!({ "query": query, "limit": 100 })), names, "{query}");
        }
        assert!(search(&one, &json!({ "query": "t__x" })).iter().all(|it| it == "s__x"));
        assert_eq!(search(&one, &json!({ "query": "x", "server": "t" })), Vec::<String>::new());
        assert_eq!(search(&one, &json!({ "query": "x why", "limit": 1 })).len(), 1);
        for name in
            ["s__push", "s__y", "t__x", "t__push", "add_server", "call_tool", "search_tools"]
        {
            let request = json!({ "name": name });
            for tool in ["describe_tool", "call_tool"] {
                let hidden = call_result(&one, tool, &request);
                assert_eq!(hidden["isError"], true, "{tool} {name}: {hidden}");
                let nobody = call_result(&one, tool, &json!({ "name": "n__n" }));
                assert_eq!(hidden.to_string().replace(name, "n__n"), nobody.to_string());
            }
        }
        two.assert_nothing_sent();
        let near = call_result(&one, "call_tool", &json!({ "name": "s__xx" }));
        assert!(near.to_string().contains("did you mean `s__x`"), "{near}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn search_can_be_limited_to_one_server() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("both", "tools \"search\"\nmanage #false\ndeny \"t__push\"")]);
        let both = two.client("both");
        let search = |request_with: Value| {
            let mut names = search(&both, &request_with);
            names.sort();
            names
        };
        let all = search(json!({ "query": "as written", "limit": 100 }));
        assert_eq!(all, ["s__push", "s__x", "s__y", "t__x", "t__y"]);
        let of_s = search(json!({ "query": "as written", "server": "s", "limit": 100 }));
        assert_eq!(of_s, ["s__push", "s__x", "s__y"]);
        let of_t = search(json!({ "query": "as written", "server": "t", "limit": 100 }));
        assert_eq!(of_t, ["t__x", "t__y"]);
        let few = search(json!({ "query": "as written", "server": "t", "limit": 1 }));
        assert!(few.len() == 1 && few[0].starts_with("t__"), "{few:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn found_tool_is_described_as_in_a_list() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        let result = call_result(&one, "describe_tool", &json!({ "name": "why" }));
        let expected =
            json!({ "name": "why", "inputSchema": { "type": "object" }, "description": "Reasons for all there is" });
        assert_eq!(result["structuredContent"]["tool"], expected);
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, expected);
        let wrong = call_result(&one, "search_tools", &json!({ "words": "x" }));
        assert_eq!(wrong["isError"], true);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_of_a_found_tool_is_an_ordinary_call() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        one.client_session.handle(
            br#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"_meta":{"progressToken":"p","own":1.50},"name":"call_tool","arguments":{"arguments":{"n":1.0e2,"b":[ ]},"name":"why"}}}"#,
            0,
        );
        let lines = two.harness.sent.messages.take();
        let sent = String::from_utf8(lines[0].clone()).unwrap();
        assert!(sent.contains(r#""arguments":{"n":1.0e2,"b":[ ]}"#), "{sent}");
        assert!(sent.contains(r#""own":1.50"#) && !sent.contains("call_tool"), "{sent}");
        let sent: Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(sent["params"]["name"], "y");
        let token = &sent["params"]["_meta"]["progressToken"];
        let progress = json!({ "progressToken": token, "progress": 1 });
        two.harness.send(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }));
        two.harness.send(&json!({ "jsonrpc": "2.0", "id": sent["id"], "result": { "content": [], "x": 1 } }));
        let received = one.received();
        assert_eq!(received[0]["params"]["progressToken"], "p");
        assert_eq!((&received[1]["id"], &received[1]["result"]), (&json!(9), &json!({ "content": [], "x": 1 })));
        // The call can be cancelled.
        one.ask(&json!("c"), "tools/call", &json!({ "name": "call_tool", "arguments": { "name": "s__x" } }));
        let upstream_id = two.harness.sent()[0]["id"].clone();
        one.cancel("c");
        let cancelled = two.harness.sent();
        assert_eq!(cancelled[0]["method"], "notifications/cancelled");
        assert_eq!(cancelled[0]["params"]["requestId"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn search_finds_what_servers_offer_now() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        assert_eq!(search(&one, &json!({ "query": "harvest" })), Vec::<String>::new());
        let mut lists = xy_catalog::catalog::Lists::default();
        let tool = json!({ "name": "reap", "inputSchema": {}, "description": "Harvest the field" });
        let item = xy_catalog::catalog::Item::read(Kind::Tools, &tool.to_string()).unwrap();
        lists.set(Kind::Tools, vec![item]);
        let known = xy_catalog::catalog::ServerCatalog::new("s", legacy(), lists);
        two.harness.router.learn(&two.harness.server, &two.harness.upstream, known);
        assert_eq!(search(&one, &json!({ "query": "harvest" })), ["s__reap"]);
        assert_eq!(search(&one, &json!({ "query": "as written" })), Vec::<String>::new());
        let gone = crate::backend::Availability::Down("it was stopped".to_owned());
        two.harness.router.set_availability(&two.harness.server, gone);
        assert_eq!(search(&one, &json!({ "query": "harvest" })), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tool_is_found_only_by_the_words_of_its_profile() {
    run_local(async {
        let two = TwoServers::begin().await;
        let secretive = r#"
            tools "search"
            manage #false
            servers "s"
            tool "s__x" { name "harvest_field" }
            tool "s__y" { description "Sings a song" }
        "#;
        two.profiles(&[
            ("one", secretive),
            ("plain", "tools \"search\"\nmanage #false\nservers \"s\""),
        ]);
        let (one, plain) = (two.client("one"), two.client("plain"));
        let table: [(&str, &[&str], &[&str]); 6] = [
            ("harvest", &["harvest_field"], &[]),
            ("harvest_field", &["harvest_field"], &[]),
            ("song", &["s__y"], &[]),
            ("s__y", &["s__y"], &["s__y"]),
            ("as written", &["harvest_field", "s__push"], &["s__push", "s__x", "s__y"]),
            ("x", &[], &["s__x"]),
        ];
        for (query, by_one, by_plain) in table {
            let sorted = |client: &TestClient| {
                let mut names = search(client, &json!({ "query": query }));
                names.sort();
                names
            };
            assert_eq!(sorted(&one), by_one, "{query}");
            assert_eq!(sorted(&plain), by_plain, "{query}");
        }
        // After a reload the new names and descriptions are found, and the old ones are not.
        two.profiles(&[(
            "one",
            "tools \"search\"\nservers \"s\"\ntool \"s__y\" { description \"Bakes bread\" }",
        )]);
        assert_eq!(search(&one, &json!({ "query": "song" })), Vec::<String>::new());
        assert_eq!(search(&one, &json!({ "query": "harvest" })), Vec::<String>::new());
        assert_eq!(search(&one, &json!({ "query": "bread" })), ["s__y"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn exact_tool_name_is_found_first() {
    run_local(async {
        let two = TwoServers::begin().await;
        let long = "a_tool_whose_name_is_much_longer_than_any_client_likes_it";
        let mut lists = xy_catalog::catalog::Lists::default();
        let tool = |name: &str, description: &str| {
            let tool = json!({ "name": name, "inputSchema": {}, "description": description });
            xy_catalog::catalog::Item::read(Kind::Tools, &tool.to_string()).unwrap()
        };
        let many = "issue issue create create create an issue: t create issue";
        lists.set(
            Kind::Tools,
            vec![
                tool("create", many),
                tool("issue", many),
                tool("create_issue", ""),
                tool(long, ""),
            ],
        );
        let known = xy_catalog::catalog::ServerCatalog::new("s", legacy(), lists);
        two.harness.router.learn(&two.harness.server, &two.harness.upstream, known);
        let other = "tool \"t__x\" { name \"issue\" }";
        two.profiles(&[("all", &format!("tools \"search\"\nmanage #false\n{other}"))]);
        let all = two.client("all");
        let shortened = xy_catalog::names::exposed("s", long);
        assert_ne!(shortened, format!("s__{long}"), "it is too long");
        for name in ["s__create_issue", "s__create", "s__issue", "issue", "t__y", &shortened] {
            for limit in [1, 8] {
                let names = search(&all, &json!({ "query": name, "limit": limit }));
                assert_eq!(names.first().map(String::as_str), Some(name), "{names:?}");
                let again = names.iter().filter(|it| *it == name).count();
                assert_eq!(again, 1, "{names:?}");
            }
        }
        assert_eq!(
            search(&all, &json!({ "query": " s__create_issue ", "limit": 1 })),
            ["s__create_issue"]
        );
        let elsewhere = search(&all, &json!({ "query": "s__create_issue", "server": "t" }));
        assert!(!elsewhere.contains(&"s__create_issue".to_owned()), "{elsewhere:?}");
        // Tools are also found by their original names.
        assert_eq!(search(&all, &json!({ "query": long, "limit": 1 })), [shortened]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn managing_client_finds_managing_tools() {
    run_local(async {
        let two = TwoServers::begin().await;
        two.profiles(&[
            ("all", "tools \"search\""),
            ("few", "tools \"search\"\ndeny \"add_*\""),
            ("none", "tools \"search\"\nmanage #false"),
        ]);
        let search = |profile: &str, may_manage: bool, request_with: Value| {
            let view = View::Profile(profile.to_owned());
            let entry =
                Entry { view, may_manage, lifetime: Lifetime::Session, principal: 7, bound: None };
            let received = Rc::new(RecordedMessages::default());
            let client_session = two.harness.router.open(entry, received.clone()).unwrap();
            let client = TestClient { client_session, received };
            let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
            client.ask(&json!("hello"), "initialize", &params);
            client.received();
            search(&client, &request_with)
        };
        let request_with = || json!({ "query": "add a server", "limit": 100 });
        assert_eq!(search("all", true, request_with())[0], "add_server");
        assert_eq!(
            search("all", true, json!({ "query": "restart_server", "limit": 1 })),
            ["restart_server"]
        );
        let few = search("few", true, request_with());
        assert!(
            few.contains(&"list_servers".to_owned()) && !few.contains(&"add_server".to_owned())
        );
        let is_own = |name: &String| crate::tools::is_own(name);
        for (profile, may_manage) in [("all", false), ("none", true), ("few", false)] {
            let names = search(profile, may_manage, request_with());
            assert!(!names.iter().any(is_own), "{profile}: {names:?}");
        }
        let of_s = search("all", true, json!({ "query": "add a server", "server": "s" }));
        assert!(!of_s.iter().any(is_own), "own tools belong to no server: {of_s:?}");
    })
    .await;
}
