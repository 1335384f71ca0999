//! Tests of features of HTTP: headers, statuses, streams, and clients that disconnect.

use serde_json::{Value, json};

use crate::peer::{Fixture, code, listen, modern, text, tool};

#[test]
fn closed_http_connection_cancels_call() {
    // The first call has sent an event before the disconnect, the second nothing.
    for (name, first) in [("wait_for_cancel", "data: "), ("slow_compute", "")] {
        let server = Fixture::start("modern");
        let mut call = tool(name, json!({ "seconds": 60 }));
        call["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let mut lines = server.open("tools/call", &call);
        if !first.is_empty() {
            assert!(lines.any(|line| line.unwrap().starts_with(first)));
        }
        drop(lines);
        let last = server.ask("tools/call", &tool("last_cancelled", json!({})));
        assert_eq!(text(&last), r#"{"reason":null,"x-more":null}"#, "{name}");
    }
}

#[test]
fn http_subscription_has_its_own_stream() {
    let server = Fixture::start("modern");
    let mut lines =
        server.open("subscriptions/listen", &listen(json!({ "toolsListChanged": true })));
    let mut next = || {
        let data = lines.find_map(|line| Some(line.unwrap().strip_prefix("data: ")?.to_owned()));
        serde_json::from_str::<Value>(&data.unwrap()).unwrap()
    };
    let id = "io.modelcontextprotocol/subscriptionId";
    let told = next();
    assert_eq!(told["method"], "notifications/subscriptions/acknowledged");
    server.ask("tools/call", &tool("test_trigger_prompt_change", json!({})));
    server.ask("tools/call", &tool("test_trigger_tool_change", json!({})));
    let told = next();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"][id], "é1");
    let ended = server.ask("tools/call", &tool("hang_up", json!({})));
    assert_eq!(text(&ended), "1 ended");
    let told = next();
    assert_eq!((&told["id"], &told["result"]["_meta"][id]), (&json!("é1"), &json!("é1")));
    assert!(lines.all(|line| line.unwrap().is_empty()), "nothing follows");
}

#[test]
fn closed_subscription_is_forgotten() {
    let server = Fixture::start("modern");
    let uri = "test://watched-resource";
    let mut lines =
        server.open("subscriptions/listen", &listen(json!({ "resourceSubscriptions": [uri] })));
    assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
    let touch = || server.ask("tools/call", &tool("touch", json!({ "uri": uri })));
    assert_eq!(text(&touch()), "touched");
    drop(lines);
    let is_forgotten = (0..10_000).any(|_| text(&touch()) == "nobody watches");
    assert!(is_forgotten);
}

#[test]
fn headers_must_match_body() {
    let server = Fixture::start("modern");
    let list = modern(json!({}));
    let call =
        tool("in_headers", json!({ "region": "Hello", "count": 42, "deep": { "where": "é" } }));
    let right = [
        ("Mcp-Param-Region", "=?base64?SGVsbG8=?="),
        ("Mcp-Param-Count", "42.0"),
        ("Mcp-Param-Deep-Where", "=?base64?w6k=?="),
        ("Mcp-Param-Unknown", "1"),
    ];
    let answer = server.post("tools/call", &call, &right);
    assert_eq!((answer.status, text(&answer.json()).contains("Hello")), (200, true));
    for wrong in [
        ("Mcp-Param-Region", "Hell"),
        ("Mcp-Param-Region", ""),
        ("Mcp-Param-Region", "=?base64?SGVsbG8?="),
        ("Mcp-Param-Region", "=?base64?SGVs!!!bG8=?="),
        ("Mcp-Param-Count", "43"),
        ("Mcp-Param-Loud", "true"),
        ("Mcp-Param-Deep-Where", "=?base64?/w==?="),
        ("Mcp-Name", "another"),
        ("Mcp-Name", ""),
    ] {
        let headers = [&right[..], &[wrong]].concat();
        let answer = server.post("tools/call", &call, &headers);
        assert_eq!((answer.status, code(&answer.json())), (400, -32020), "{wrong:?}");
    }
    for wrong in [
        ("Mcp-Method", "TOOLS/LIST"),
        ("Mcp-Method", ""),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("MCP-Protocol-Version", ""),
    ] {
        let answer = server.post("tools/list", &list, &[wrong]);
        assert_eq!((answer.status, code(&answer.json())), (400, -32020), "{wrong:?}");
    }
    let name = json!("=?base64?aW5faGVhZGVycw==?=");
    let encoded = server.post(
        "tools/call",
        &tool("in_headers", json!({})),
        &[("Mcp-Name", name.as_str().unwrap())],
    );
    assert_eq!(encoded.status, 200);
}

#[test]
fn refused_request_has_specific_status() {
    let server = Fixture::start("modern");
    for method in ["GET", "DELETE", "PUT"] {
        let answer = server.http.exchange(method, &[], "");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    }
    let list = modern(json!({}));
    assert_eq!(server.post("tools/list", &list, &[("Accept", "text/html")]).status, 406);
    assert_eq!(
        server.post("tools/list", &list, &[("Origin", "http://evil.example.com")]).status,
        403
    );
    let session = server.post("tools/list", &list, &[("Mcp-Session-Id", "any")]);
    assert_eq!((session.status, session.header("mcp-session-id")), (200, None));
    assert_eq!(server.post("no/such", &list, &[]).status, 404);
    let call = tool("test_missing_capability", json!({}));
    assert_eq!(server.post("tools/call", &call, &[]).status, 200);
    let mut call = call;
    call["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    assert_eq!(server.post("tools/call", &call, &[]).status, 400);
    let mut future = list;
    future["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2999-01-01");
    let answer = server.post("tools/list", &future, &[("MCP-Protocol-Version", "2999-01-01")]);
    let error = answer.json()["error"].take();
    assert_eq!((answer.status, &error["code"]), (400, &json!(-32022)));
    assert_eq!(error["data"]["supported"], json!(["2026-07-28"]));
    assert_eq!(error["data"]["requested"], "2999-01-01");
    for garbage in ["", "{", "[]", "null", "7", "{\"jsonrpc\":\"2.0\"}", "{\"id\":1,\"result\":{}}"]
    {
        assert_eq!(server.http.post(garbage).status, 400, "{garbage:?}");
    }
    let poke = r#"{"jsonrpc":"2.0","method":"notifications/fixture/poke","params":{"n":1.0}}"#;
    assert_eq!(server.http.post(poke).status, 202);
    assert_eq!(
        server.ask("fixture/poked", &modern(json!({})))["result"]["poked"],
        json!({ "n": 1.0 })
    );
}
