//! Tests of the choice of an era, and of the answers to clients of the other one.

use serde_json::json;

use crate::peer::{Fixture, code, initialize, modern, stdio};

#[test]
fn modern_server_refuses_initialize_with_its_versions() {
    let client = stdio("modern");
    let refused = client.request("initialize", initialize())["error"].take();
    assert_eq!(
        (&refused["code"], &refused["data"]["supported"]),
        (&json!(-32022), &json!(["2026-07-28"]))
    );
    assert_eq!(code(&client.request("initialize", modern(json!({})))), -32601);
    for garbage in ["{", "[]", "null", "{\"jsonrpc\":\"2.0\"}"] {
        client.send_raw(garbage);
    }
    assert!(client.request("tools/list", modern(json!({}))).get("result").is_some());

    let server = Fixture::start("modern");
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize() });
    for headers in [&[][..], &[("MCP-Protocol-Version", "2025-11-25")]] {
        let answer = server.http.exchange("POST", headers, &body.to_string());
        assert_eq!((answer.status, code(&answer.json())), (400, -32022));
    }
}

#[test]
fn first_request_fixes_era_of_process() {
    let client = stdio("both");
    let mut unknown = modern(json!({}));
    unknown["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2999-01-01");
    assert_eq!(code(&client.request("server/discover", unknown)), -32022, "which fixes no era");
    assert!(client.initialize()["serverInfo"].is_object());
    assert_eq!(code(&client.request("server/discover", modern(json!({})))), -32600);
    assert_eq!(code(&client.request("tools/list", modern(json!({})))), -32600);
    assert!(client.tool_names().contains(&"odd_echo".to_owned()));

    let client = stdio("both");
    assert!(client.request("server/discover", modern(json!({}))).get("result").is_some());
    assert_eq!(code(&client.request("initialize", initialize())), -32022);
    assert_eq!(code(&client.request("tools/list", json!({}))), -32602);

    let server = Fixture::start("both");
    server.http.initialize();
    let legacy = server.http.tool_names();
    let listed = server.ask("tools/list", &modern(json!({})));
    assert!(listed["result"]["tools"].as_array().unwrap().len() > legacy.len());
    assert_eq!(server.http.open_stream(), 200, "the session is still there");
}

#[test]
fn legacy_server_refuses_discover() {
    let client = stdio("legacy");
    let discover = modern(json!({}));
    assert_eq!(code(&client.request("server/discover", discover.clone())), -32601);
    client.initialize();
    assert_eq!(code(&client.request("server/discover", discover.clone())), -32601);

    let server = Fixture::start("legacy");
    let answer = server.post("server/discover", &discover, &[]);
    assert_eq!((answer.status, code(&answer.json())), (400, -32600));
}
