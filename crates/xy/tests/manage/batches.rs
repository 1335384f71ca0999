//! JSON-RPC batches, which one revision of MCP has.

use serde_json::{Value, json};
use xy_testkit::{Home, McpSocket};

use crate::home_with_mcp;

/// A slow call, an echo, a cancellation of the first call, and two parts that are not messages.
const BATCH: &str = r#"[
    {"jsonrpc":"2.0","id":101,"method":"tools/call","params":{"name":"one__never"}},
    {"jsonrpc":"2.0","id":102,"method":"tools/call","params":{"name":"one__echo","arguments":{"message":"a"}}},
    {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":101}},
    {"jsonrpc":"2.0","id":103,"method":"ping"},
    [{"jsonrpc":"2.0","id":104,"method":"ping"}],
    7
]"#;

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

fn old() -> Value {
    let client = json!({ "name": "old", "version": "1" });
    json!({ "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client })
}

fn home() -> Home {
    home_with_mcp(&["--only-tools"])
}

#[test]
fn http_batch_answers_each_call_and_ends_the_stream() {
    let home = home();
    let client = home.mcp_http("/mcp");
    client.initialize_as(old());
    let answer = client.post(BATCH);
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut seen: Vec<Value> = answer
        .events()
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .map(|answer| answer["id"].clone())
        .collect();
    seen.sort_by_key(ToString::to_string);
    assert_eq!(json!(seen), json!([102, 103, null, null]));
    home.finish();
}

#[test]
fn local_batch_answers_each_call_separately() {
    let home = home();
    let client = McpSocket::connect(&home.mcp_socket(), HELLO);
    client.initialize_as(old());
    client.send_raw(&BATCH.replace('\n', " "));
    assert_eq!(client.wait_answer(103)["result"], json!({}));
    assert_eq!(client.wait_answer(102)["result"]["content"][0]["text"], "a");
    client.close();
    home.finish();
}

#[test]
fn deeply_nested_batch_is_refused() {
    let home = home();
    let client = home.mcp_http("/mcp");
    client.initialize_as(old());
    let deep = ["[".repeat(500_000), "]".repeat(500_000)].concat();
    let refused = client.post(&deep);
    let refused: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(refused[0]["error"]["message"], "a batch holds no batches");
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    home.finish();
}
