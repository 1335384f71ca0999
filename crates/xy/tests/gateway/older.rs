//! Clients that speak the transport of 2024.

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp, McpOlder};

use crate::stage::{capabilities, echoes, heard_of, home_of_two, tools_of_servers, web};

#[track_caller]
fn older(home: &Home, path: &str) -> McpOlder {
    McpOlder::open(&home.gateway_address(), path, &home.gateway_token())
}

/// Says hello as clients of that time do.
#[track_caller]
fn greet(client: &McpOlder) {
    let answer = client.initialize_as(json!({
        "protocolVersion": "2024-11-05",
        "capabilities": capabilities(),
        "clientInfo": { "name": "old", "version": "1" },
    }));
    assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
}

#[test]
fn an_older_client_sees_all_servers_and_hears_everything_on_its_stream() {
    let home = home_of_two();
    let client = older(&home, "/sse");
    greet(&client);
    let tools = tools_of_servers(&client);
    assert_eq!(tools, tools_of_servers(&web(&home)));
    echoes(&client, "a");
    echoes(&client, "b");
    let id = client.start_request(
        "tools/call",
        json!({ "name": "a__progress", "arguments": { "steps": 3 }, "_meta": { "progressToken": 1 } }),
    );
    for step in 1..=3 {
        let told = client.wait_notification("notifications/progress");
        assert_eq!(told["params"]["progress"], step);
    }
    assert_eq!(client.wait_answer(id)["result"]["content"][0]["text"], "3 steps");
    assert!(client.strays().is_empty(), "{:?}", client.strays());
    drop(client);
    home.finish();
}

#[test]
fn modern_client_of_the_older_transport_is_told_to_initialize() {
    let home = home_of_two();
    let client = older(&home, "/sse");
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
    let answer = client.request("server/discover", json!({ "_meta": meta }));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    greet(&client);
    echoes(&client, "a");
    drop(client);
    home.finish();
}

#[test]
fn an_older_client_is_asked_by_servers_and_told_of_new_tools() {
    let home = home_of_two();
    let client = older(&home, "/sse");
    greet(&client);
    client.answer_with(|_| Some(Ok(json!({ "action": "accept", "content": {} }))));
    let answer = client.call("a__ask_elicitation", json!({ "message": "who?" }));
    assert!(answer.get("result").is_some(), "{answer}");
    tools_of_servers(&client);
    client.call("b__add_tool", json!({ "name": "fresh" }));
    client.wait_notification("notifications/tools/list_changed");
    assert!(tools_of_servers(&client).contains(&"b__fresh".to_owned()));
    drop(client);
    home.finish();
}

#[test]
fn one_server_alone_is_there_without_its_name() {
    let home = home_of_two();
    let client = older(&home, "/sse/s/a");
    greet(&client);
    assert_eq!(client.call_text("echo", json!({ "message": "x" })), "x");
    drop(client);
    home.finish();
}

#[test]
fn a_session_ends_with_its_stream_and_so_do_its_calls() {
    let home = home_of_two();
    let client = older(&home, "/sse");
    greet(&client);
    client.start_call("a__never", json!({}));
    home.wait_until("it is called", || heard_of(&home, "a", "tools/call").pop());
    let endpoint = client.endpoint().to_owned();
    client.break_connections();
    home.wait_until("the call is given up", || {
        heard_of(&home, "a", "notifications/cancelled").pop()
    });
    let late = McpHttp::new(&home.gateway_address(), &endpoint, &home.gateway_token());
    assert_eq!(late.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).status, 404);
    client.wait_closed();
    drop(client);
    home.finish();
}

#[test]
fn what_is_wrong_is_said_where_it_is_waited_for() {
    let home = home_of_two();
    let client = older(&home, "/sse");
    // Before anything else has been said.
    let answer = client.request("tools/list", Value::Null);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    greet(&client);
    let poster = McpHttp::new(&home.gateway_address(), client.endpoint(), &home.gateway_token());
    assert_eq!(poster.post("{").status, 400);
    assert_eq!(poster.exchange("POST", &[("Authorization", "")], "{}").status, 401);
    assert_eq!(poster.exchange("POST", &[("Host", "evil.example")], "{}").status, 403);
    assert_eq!(poster.exchange("POST", &[("Origin", "http://evil.example")], "{}").status, 403);
    assert_eq!(poster.exchange("GET", &[], "").status, 405);
    echoes(&client, "a");
    drop(client);
    home.finish();
}

#[test]
fn a_client_that_tries_the_newer_transport_first_is_told_to_try_the_older() {
    let home = home_of_two();
    let path = home.mcp_http("/sse");
    let answer = path.post(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#);
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, OPTIONS")));
    let none = home.mcp_http("/sse/s/none").exchange("GET", &[], "");
    assert_eq!(none.status, 404);
    home.finish();
}
