//! The Rust SDK as a client: xy's messages fit types that others wrote.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::process::Stdio;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, GetPromptRequestParams, InitializeResult,
    ProtocolVersion, ReadResourceRequestParams, Tool,
};
use rmcp::service::{ClientLifecycleMode, RunningService, serve_client_with_lifecycle};
use rmcp::{RoleClient, ServiceError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::home;
use tokio::process::{Child, Command};
use xy_testkit::Home;

/// Returns the client modes, each with its revision: with `initialize`, without it, and negotiated.
fn lifecycles() -> [(ClientLifecycleMode, ProtocolVersion); 3] {
    let (old, new) = (ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28);
    let preferred_versions = vec![new.clone()];
    [
        (ClientLifecycleMode::Initialize, old.clone()),
        (
            ClientLifecycleMode::Discover { preferred_versions: preferred_versions.clone() },
            new.clone(),
        ),
        (ClientLifecycleMode::Auto { preferred_versions, legacy_version: Some(old) }, new),
    ]
}

/// Starts `xy connect`, and a client on it.
async fn client(
    home: &Home,
    lifecycle: ClientLifecycleMode,
) -> (RunningService<RoleClient, ()>, Child) {
    let mut command = Command::from(home.command(&["connect"]));
    let mut bridge = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pipes = (bridge.stdout.take().unwrap(), bridge.stdin.take().unwrap());
    (serve_client_with_lifecycle((), pipes, lifecycle).await.unwrap(), bridge)
}

fn call(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else { panic!("{arguments} are no arguments") };
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

fn text(result: &CallToolResult) -> &str {
    &result.content.first().and_then(|it| it.as_text()).unwrap().text
}

/// Returns a home with two servers, one of each era.
fn home_of_both() -> Home {
    let home = home();
    home.mcp_server("old", &[]);
    home.mcp_server("new", &["--era", "modern"]);
    home.daemon();
    for server in ["old", "new"] {
        home.wait_for_state(server, "running");
    }
    home
}

#[tokio::test]
async fn rust_sdk_uses_servers_in_both_eras() {
    let home = home_of_both();
    for (lifecycle, version) in lifecycles() {
        let (client, mut bridge) = client(&home, lifecycle).await;
        let info = client.peer_info().unwrap();
        assert_eq!(info.protocol_version, version);
        let tools = client.list_all_tools().await.unwrap();
        for (server, message) in [("old__echo", "one"), ("new__echo", "two")] {
            assert!(tools.iter().any(|tool| tool.name == server), "{server}: {tools:?}");
            let answer = client.call_tool(call(server, json!({ "message": message }))).await;
            assert_eq!(text(&answer.unwrap()), message);
        }
        let prompts = client.list_all_prompts().await.unwrap();
        assert!(prompts.iter().any(|prompt| prompt.name == "old__plain"), "{prompts:?}");
        let got = client.get_prompt(GetPromptRequestParams::new("old__plain")).await.unwrap();
        assert!(!got.messages.is_empty());
        let resources = client.list_all_resources().await.unwrap();
        let uri = resources.iter().map(|it| &it.uri).find(|uri| uri.contains("static")).unwrap();
        let read = client.read_resource(ReadResourceRequestParams::new(uri.clone())).await;
        assert!(!read.unwrap().contents.is_empty());
        client.list_all_resource_templates().await.unwrap();
        let unknown = client.call_tool(call("old__ecko", json!({}))).await;
        let Err(ServiceError::McpError(unknown)) = unknown else { panic!("{unknown:?}") };
        assert_eq!(unknown.code.0, -32602);
        assert!(unknown.message.contains("old__echo"), "{unknown:?}");
        client.cancel().await.unwrap();
        bridge.wait().await.unwrap();
    }
    home.finish();
}

#[tokio::test]
async fn rust_sdk_manages_servers_with_admin_tools() {
    let home = home_of_both();
    let program = home.program("xy-test-mcp").to_str().unwrap().to_owned();
    for (lifecycle, _) in lifecycles() {
        let (client, mut bridge) = client(&home, lifecycle).await;
        let arguments = json!({ "name": "added", "command": program });
        let added = client.call_tool(call("add_server", arguments)).await.unwrap();
        assert_ne!(added.is_error, Some(true), "{added:?}");
        let listed = client.call_tool(call("list_servers", json!({}))).await.unwrap();
        let servers = listed.structured_content.clone().unwrap();
        assert!(servers.to_string().contains("\"added\""), "{servers}");
        let answer = client.call_tool(call("added__echo", json!({ "message": "m" }))).await;
        assert_eq!(text(&answer.unwrap()), "m");
        let removed = client.call_tool(call("remove_server", json!({ "name": "added" }))).await;
        assert_ne!(removed.unwrap().is_error, Some(true));
        let gone = client.call_tool(call("remove_server", json!({ "name": "added" }))).await;
        assert_eq!(gone.unwrap().is_error, Some(true));
        client.cancel().await.unwrap();
        bridge.wait().await.unwrap();
    }
    home.finish();
}

/// Checks that no member of xy's message is unknown to the SDK's types.
#[track_caller]
fn survives<T: Serialize + DeserializeOwned>(answer: &Value) {
    let typed: T = serde_json::from_value(answer.clone()).unwrap();
    assert_eq!(&serde_json::to_value(typed).unwrap(), answer);
}

#[test]
fn xy_results_fit_the_rust_sdk_types() {
    let home = home();
    home.daemon();
    let client = home.mcp_connect(&[]);
    survives::<InitializeResult>(&client.initialize());
    let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let tools = tools.as_array().unwrap();
    assert!(tools.len() >= 8, "{tools:?}");
    for tool in tools {
        survives::<Tool>(tool);
    }
    for (tool, arguments) in [
        ("list_servers", json!({})),
        ("self_test", json!({})),
        ("get_diagnostics", json!({})),
        ("remove_server", json!({ "name": "nobody" })),
    ] {
        survives::<CallToolResult>(&client.call(tool, arguments)["result"]);
    }
    client.close();
    home.finish();
}
