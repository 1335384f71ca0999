//! Profiles in which tools are found: what is listed, found, described and called.

use super::scopes::Two;
use super::*;
use crate::catalog::Kind;

const SEARCH: &str = r#"
servers "s"
manage #false
tools "search"
pin "s__x"
deny "s__push"
tool "s__y" { name "why"; description "why it is so" }
"#;

fn called(visitor: &Visitor, name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    visitor.ask(&json!("call"), "tools/call", &params);
    let heard = visitor.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    heard[0]["result"].clone()
}

fn found(visitor: &Visitor, arguments: &Value) -> Vec<String> {
    let result = called(visitor, "search_tools", arguments);
    let tools =
        result["structuredContent"]["tools"].as_array().unwrap_or_else(|| panic!("{result}"));
    tools.iter().map(|it| text(&it["name"])).collect()
}

#[tokio::test(start_paused = true)]
async fn only_what_finds_tools_and_what_is_pinned_is_listed() {
    here(async {
        let two = Two::begin().await;
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
async fn nothing_that_is_hidden_is_found_described_or_called() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        for query in ["push", "x", "y", "why it is so", "as written", "t__x", "s__push", "", "*"] {
            for name in found(&one, &json!({ "query": query, "limit": 100 })) {
                assert!(["s__x", "why"].contains(&name.as_str()), "{query} found {name}");
            }
        }
        assert_eq!(found(&one, &json!({ "query": "x", "server": "t" })), Vec::<String>::new());
        assert_eq!(found(&one, &json!({ "query": "as written" })).len(), 2);
        assert_eq!(found(&one, &json!({ "query": "as written", "limit": 1 })).len(), 1);
        for name in
            ["s__push", "s__y", "t__x", "t__push", "add_server", "call_tool", "search_tools"]
        {
            let asked = json!({ "name": name });
            for tool in ["describe_tool", "call_tool"] {
                let hidden = called(&one, tool, &asked);
                assert_eq!(hidden["isError"], true, "{tool} {name}: {hidden}");
                let nobody = called(&one, tool, &json!({ "name": "n__n" }));
                assert_eq!(hidden.to_string().replace(name, "n__n"), nobody.to_string());
            }
        }
        two.is_quiet();
        let near = called(&one, "call_tool", &json!({ "name": "s__xx" }));
        assert!(near.to_string().contains("did you mean `s__x`"), "{near}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_found_is_described_as_a_list_would() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        let result = called(&one, "describe_tool", &json!({ "name": "why" }));
        let expected = json!({ "name": "why", "inputSchema": {}, "description": "why it is so" });
        assert_eq!(result["structuredContent"]["tool"], expected);
        let text: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, expected);
        let wrong = called(&one, "search_tools", &json!({ "words": "x" }));
        assert_eq!(wrong["isError"], true);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_of_what_was_found_goes_the_way_of_every_call() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        one.conversation.hear(
            br#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"_meta":{"progressToken":"p","own":1.50},"name":"call_tool","arguments":{"arguments":{"n":1.0e2,"b":[ ]},"name":"why"}}}"#,
            0,
        );
        let lines = two.play.sent.messages.take();
        let sent = String::from_utf8(lines[0].clone()).unwrap();
        assert!(sent.contains(r#""arguments":{"n":1.0e2,"b":[ ]}"#), "{sent}");
        assert!(sent.contains(r#""own":1.50"#) && !sent.contains("call_tool"), "{sent}");
        let sent: Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(sent["params"]["name"], "y");
        let token = &sent["params"]["_meta"]["progressToken"];
        let progress = json!({ "progressToken": token, "progress": 1 });
        two.play.say(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }));
        two.play.say(&json!({ "jsonrpc": "2.0", "id": sent["id"], "result": { "content": [], "x": 1 } }));
        let heard = one.heard();
        assert_eq!(heard[0]["params"]["progressToken"], "p");
        assert_eq!((&heard[1]["id"], &heard[1]["result"]), (&json!(9), &json!({ "content": [], "x": 1 })));
        // And it can be cancelled.
        one.ask(&json!("c"), "tools/call", &json!({ "name": "call_tool", "arguments": { "name": "s__x" } }));
        let ours = two.play.sent()[0]["id"].clone();
        one.cancel("c");
        let cancelled = two.play.sent();
        assert_eq!(cancelled[0]["method"], "notifications/cancelled");
        assert_eq!(cancelled[0]["params"]["requestId"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_servers_offer_now_is_found() {
    here(async {
        let two = Two::begin().await;
        two.profiles(&[("one", SEARCH)]);
        let one = two.client("one");
        assert_eq!(found(&one, &json!({ "query": "harvest" })), Vec::<String>::new());
        let mut lists = crate::catalog::Lists::default();
        let tool = json!({ "name": "reap", "inputSchema": {}, "description": "Harvest the field" });
        let item = crate::catalog::Item::read(Kind::Tools, &tool.to_string()).unwrap();
        lists.set(Kind::Tools, vec![item]);
        let known = crate::catalog::Known::new("s", legacy(), lists);
        two.play.hub.learn(&two.play.server, &two.play.upstream, known);
        assert_eq!(found(&one, &json!({ "query": "harvest" })), ["s__reap"]);
        assert_eq!(found(&one, &json!({ "query": "as written" })), Vec::<String>::new());
        let gone = crate::server::Standing::Down("it was stopped".to_owned());
        two.play.hub.stand(&two.play.server, gone);
        assert_eq!(found(&one, &json!({ "query": "harvest" })), Vec::<String>::new());
    })
    .await;
}
