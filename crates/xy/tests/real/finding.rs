//! Real clients that use the tool search instead of lists: search, describe, call.

use serde_json::{Value, json};

use crate::inspector::ask;
use crate::peer::Peer;
use crate::stage::Stage;

/// Tools of other servers to search for, each with a part of its answer.
const OTHER_TOOLS: [(&str, &str); 2] =
    [("time__get_current_time", "UTC"), ("memory__read_graph", "entities")];

/// Returns a home whose clients search the tools of all servers, which the daemon knows.
#[track_caller]
fn start_with_search() -> (Stage, xy_testkit::Daemon) {
    let stage = Stage::new();
    stage.home.write_config("profiles/default.kdl", "tools \"search\"\n");
    let (stage, daemon) = stage.start();
    stage.home.wait_until("the sum can be found", || {
        let found = stage.home.call("search", json!({ "query": "add two numbers" })).unwrap();
        let all_are_known = ["time", "memory"].into_iter().all(|server| {
            let query = json!({ "query": "read the current time or graph", "server": server });
            stage.home.call("search", query).unwrap().to_string().contains("__")
        });
        all_are_known && found.to_string().contains("everything__get-sum")
    });
    (stage, daemon)
}

fn sees_three_tools_and_finds_the_rest(name: &str, seen: &Value) {
    let is_there = |tool: &str| seen["listed"].to_string().contains(tool);
    assert!(["search_tools", "describe_tool", "call_tool"].into_iter().all(is_there), "{seen}");
    assert!(!is_there("everything__"), "{name}: {seen}");
    assert_eq!(seen["found"][0], "everything__get-sum", "{name}: {seen}");
    assert_eq!(seen["takes"], json!(["a", "b"]), "{name}");
    assert_eq!(seen["called"], "The sum of 2 and 40 is 42.", "{name}");
    let missing = seen["missing"].as_str().unwrap();
    assert!(missing.starts_with("error: "), "{name}: {missing}");
    assert!(missing.contains("did you mean `everything__get-sum`?"), "{name}: {missing}");
    for (friend, (tool, says)) in OTHER_TOOLS.into_iter().enumerate() {
        let friend = &seen["friends"][friend];
        assert!(friend["found"].to_string().contains(tool), "{name}: {friend}");
        assert_eq!(friend["described"], tool, "{name}");
        assert!(friend["called"].to_string().contains(says), "{name}: {friend}");
    }
}

#[test]
fn four_clients_search_and_call_a_tool() {
    let (stage, _daemon) = start_with_search();
    let mut peers = Peer::all(&stage);
    for peer in &mut peers {
        peer.begin(&stage, "find");
    }
    for peer in peers {
        sees_three_tools_and_finds_the_rest(&peer.name, &peer.receive());
        peer.leave(&stage);
    }
    stage.home.finish();
}

#[test]
fn inspector_searches_and_calls_a_tool() {
    let (stage, _daemon) = start_with_search();
    let way = stage.inspected_stdio();
    let way: Vec<&str> = way.iter().map(String::as_str).collect();
    let call = |tool: &str, args: &[&str]| {
        let args = args.iter().flat_map(|arg| ["--tool-arg", arg]);
        let method = ["tools/call", "--tool-name", tool].into_iter().chain(args);
        ask(&stage, &way, &method.collect::<Vec<_>>())
    };
    let found = call("search_tools", &["query=add two numbers"]);
    let name = found["structuredContent"]["tools"][0]["name"].as_str().unwrap().to_owned();
    let described = call("describe_tool", &[&format!("name={name}")]);
    assert_eq!(described["structuredContent"]["tool"]["name"], name.as_str(), "{described}");
    let called = call("call_tool", &[&format!("name={name}"), r#"arguments={"a":2,"b":40}"#]);
    let text = json!([{ "type": "text", "text": "The sum of 2 and 40 is 42." }]);
    assert_eq!(called["content"], text, "{called}");
    for ((name, says), (query, arguments)) in OTHER_TOOLS.into_iter().zip([
        ("what time is it in another timezone", r#"{"timezone":"UTC"}"#),
        ("read the whole knowledge graph", "{}"),
    ]) {
        let found = call("search_tools", &[&format!("query={query}")]);
        let names = found["structuredContent"]["tools"].as_array().unwrap();
        assert!(names.iter().any(|it| it["name"] == name), "{query}: {found}");
        let described = call("describe_tool", &[&format!("name={name}")]);
        assert_eq!(described["structuredContent"]["tool"]["name"], name, "{described}");
        let args = [format!("name={name}"), format!("arguments={arguments}")];
        let called = call("call_tool", &[&args[0], &args[1]]);
        assert!(called["content"].to_string().contains(says), "{called}");
    }
    stage.home.finish();
}
