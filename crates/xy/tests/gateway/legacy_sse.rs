//! Clients of the legacy SSE transport of 2024.

use serde_json::{Value, json};
use xy_testkit::{Home, McpHttp, McpOlder, free_port};

use crate::fixtures::{
    assert_echo, capabilities, home, home_of_two, http_client, ready, received_of, serve,
    tools_of_servers,
};

#[track_caller]
fn sse_client(home: &Home, path: &str) -> McpOlder {
    McpOlder::open(&home.gateway_address(), path, &home.gateway_token())
}

/// Initializes the client as in revision 2024-11-05.
#[track_caller]
fn initialize(client: &McpOlder) {
    let answer = client.initialize_as(json!({
        "protocolVersion": "2024-11-05",
        "capabilities": capabilities(),
        "clientInfo": { "name": "old", "version": "1" },
    }));
    assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
}

#[test]
fn sse_client_sees_all_servers_and_gets_everything_on_its_stream() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse");
    initialize(&client);
    let tools = tools_of_servers(&client);
    assert_eq!(tools, tools_of_servers(&http_client(&home)));
    assert_echo(&client, "a");
    assert_echo(&client, "b");
    let id = client.start_request(
        "tools/call",
        json!({ "name": "a__progress", "arguments": { "steps": 3 }, "_meta": { "progressToken": 1 } }),
    );
    for step in 1..=3 {
        let notification = client.wait_notification("notifications/progress");
        assert_eq!(notification["params"]["progress"], step);
    }
    assert_eq!(client.wait_answer(id)["result"]["content"][0]["text"], "3 steps");
    assert!(client.strays().is_empty(), "{:?}", client.strays());
    drop(client);
    home.finish();
}

#[test]
fn modern_client_over_sse_is_told_to_initialize() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse");
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
    let answer = client.request("server/discover", json!({ "_meta": meta }));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    initialize(&client);
    assert_echo(&client, "a");
    drop(client);
    home.finish();
}

#[test]
fn sse_client_gets_server_requests_and_list_changes() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse");
    initialize(&client);
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
fn single_server_endpoint_has_plain_names() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse/s/a");
    initialize(&client);
    assert_eq!(client.call_text("echo", json!({ "message": "x" })), "x");
    drop(client);
    home.finish();
}

#[test]
fn session_and_calls_end_with_the_stream() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse");
    initialize(&client);
    client.start_call("a__never", json!({}));
    home.wait_until("the server has the call", || received_of(&home, "a", "tools/call").pop());
    let endpoint = client.endpoint().to_owned();
    client.break_connections();
    home.wait_until("the call is given up", || {
        received_of(&home, "a", "notifications/cancelled").pop()
    });
    let late = McpHttp::new(&home.gateway_address(), &endpoint, &home.gateway_token());
    assert_eq!(late.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).status, 404);
    client.wait_closed();
    drop(client);
    home.finish();
}

#[test]
fn session_ends_with_its_daemon() {
    let home = home();
    let listen = format!("gateway {{ listen \"127.0.0.1:{}\" }}\n", free_port());
    home.write_config("xy.kdl", &listen);
    serve(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = sse_client(&home, "/sse");
    initialize(&client);
    assert_echo(&client, "a");
    let endpoint = client.endpoint().to_owned();
    daemon.kill9();
    client.wait_closed();
    let _next = home.daemon();
    ready(&home, &["a"]);
    let late = McpHttp::new(&home.gateway_address(), &endpoint, &home.gateway_token());
    assert_eq!(late.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).status, 404);
    let again = sse_client(&home, "/sse");
    initialize(&again);
    assert_echo(&again, "a");
    drop((client, again));
    home.finish();
}

#[test]
fn errors_are_reported_where_the_client_waits() {
    let home = home_of_two();
    let client = sse_client(&home, "/sse");
    // Before `initialize`.
    let answer = client.request("tools/list", Value::Null);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    initialize(&client);
    let poster = McpHttp::new(&home.gateway_address(), client.endpoint(), &home.gateway_token());
    assert_eq!(poster.post("{").status, 400);
    assert_eq!(poster.exchange("POST", &[("Authorization", "")], "{}").status, 401);
    assert_eq!(poster.exchange("POST", &[("Host", "evil.example")], "{}").status, 403);
    assert_eq!(poster.exchange("POST", &[("Origin", "http://evil.example")], "{}").status, 403);
    assert_eq!(poster.exchange("GET", &[], "").status, 405);
    assert_echo(&client, "a");
    drop(client);
    home.finish();
}

#[test]
fn streamable_http_request_to_the_sse_path_gets_405() {
    let home = home_of_two();
    let path = home.mcp_http("/sse");
    let answer = path.post(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#);
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, OPTIONS")));
    let none = home.mcp_http("/sse/s/none").exchange("GET", &[], "");
    assert_eq!(none.status, 404);
    home.finish();
}
