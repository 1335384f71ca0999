//! Tests of the test client of the revision without `initialize`.

use serde_json::json;
use xy_testkit::McpModern;

use crate::peer::{Fixture, code, text};

#[test]
fn request_carries_required_headers_and_meta() {
    let server = Fixture::start("modern");
    let client = McpModern::http(server.address(), "/mcp", "");
    let found = client.request("server/discover", json!(null));
    assert_eq!(found["result"]["supportedVersions"], json!(["2026-07-28"]), "{found}");
    let headers = [("Mcp-Param-Region", "Hello")];
    let call = || json!({ "name": "in_headers", "arguments": { "region": "Hello" } });
    let answer = client.start("tools/call", call(), &headers).answer();
    assert!(text(&answer).contains("Hello"), "{answer}");
    let mut wrong = client.start("tools/call", call(), &[]);
    assert_eq!((wrong.status(), code(&wrong.next_message().unwrap())), (400, -32020));
    assert_eq!(wrong.next_message(), None);
    let unnamed = client.post("tools/call", call(), &[("Mcp-Name", "")]);
    assert_eq!(unnamed.status, 400);
    let unknown = client.call_tool("é世", json!({}));
    assert_ne!(code(&unknown), -32020, "its name was said in the head");
    assert_eq!(client.raw(client.text_of("GET", &[], "").as_bytes()).status, 405);
}

#[test]
fn stream_is_read_incrementally_and_can_be_closed() {
    let server = Fixture::start("modern");
    let client = McpModern::http(server.address(), "/mcp", "");
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    let mut stream = client.start("subscriptions/listen", filter, &[]);
    assert_eq!(stream.header("Content-Type").as_deref(), Some("text/event-stream"));
    let acknowledged = stream.next_message().unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    client.call_tool("test_trigger_tool_change", json!({}));
    assert_eq!(stream.next_message().unwrap()["method"], "notifications/tools/list_changed");
    let mut call = client.start("tools/call", json!({ "name": "wait_for_cancel" }), &[]);
    assert!(call.next_message().is_some());
    drop(call);
    let last = client.call_tool("last_cancelled", json!({}));
    assert!(text(&last).contains("reason"), "{last}");
}
