//! Servers that MCP clients manage with xy's own tools, and the commands that send requests to
//! servers.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

#[path = "manage/batches.rs"]
mod batches;
#[path = "manage/calls.rs"]
mod calls;
#[path = "manage/lives.rs"]
mod lives;
#[path = "manage/permissions.rs"]
mod permissions;
#[path = "manage/races.rs"]
mod races;
#[path = "manage/refusals.rs"]
mod refusals;
#[path = "manage/requests.rs"]
mod requests;
#[path = "manage/rotate.rs"]
mod rotate;
#[path = "manage/secrets.rs"]
mod secrets;

use serde_json::{Value, json};
use support::home;
use xy_testkit::{Home, McpClient, McpStdio};

/// Returns a home whose daemon has no servers yet, and a client.
fn home_and_client() -> (Home, McpStdio) {
    let home = home();
    home.daemon();
    let client = connect(&home);
    (home, client)
}

/// Connects a client and initializes it.
fn connect(home: &Home) -> McpStdio {
    let client = home.mcp_connect(&[]);
    client.initialize();
    client
}

/// Returns a home with one MCP server, which runs.
fn home_with_mcp(args: &[&str]) -> Home {
    let home = home();
    home.mcp_server("one", args);
    home.daemon();
    home.wait_for_state("one", "running");
    home
}

/// Returns the path of the scriptable MCP server.
fn mcp_program(home: &Home) -> String {
    home.program("xy-test-mcp").to_str().unwrap().to_owned()
}

/// Calls one of xy's own tools, which must fail, and returns its text.
#[track_caller]
fn fails(client: &McpClient, tool: &str, arguments: Value) -> String {
    let answer = client.call(tool, arguments);
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "`{tool}` did not fail: {answer:#}");
    assert!(result.get("structuredContent").is_none(), "{answer:#}");
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

/// Adds the scriptable MCP server with these flags.
#[track_caller]
fn add(home: &Home, client: &McpClient, name: &str, flags: &[&str]) -> Value {
    let added = json!({ "name": name, "command": mcp_program(home), "args": flags });
    client.call_value("add_server", added)
}

/// Returns the entry of one server in `list_servers`.
#[track_caller]
fn listed(client: &McpClient, name: &str) -> Option<Value> {
    let list = client.call_value("list_servers", json!({}));
    list["servers"].as_array().unwrap().iter().find(|it| it["name"] == name).cloned()
}

const CHANGED: &str = "notifications/tools/list_changed";
