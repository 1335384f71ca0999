//! Fixtures of the gateway tests: servers that restart at once, initialized clients, and recorded
//! messages.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpSocket, McpStdio};

pub(crate) use crate::support::home;

/// Long enough to notice an event that must not happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

/// Restart rules without delays and limits.
const UNLIMITED_RESTARTS: &str =
    "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n";

/// Writes the config file of a test server with these flags and additional settings.
#[track_caller]
pub(crate) fn serve_with(home: &Home, name: &str, flags: &[&str], more: &str) {
    let kdl = format!("{}{UNLIMITED_RESTARTS}{more}", home.kdl_mcp(flags));
    home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

/// Writes the config file of a test server with these flags.
#[track_caller]
pub(crate) fn serve(home: &Home, name: &str, flags: &[&str]) {
    serve_with(home, name, flags, "");
}

/// Writes the config file of a test server that records its messages.
#[track_caller]
pub(crate) fn serve_recorded(home: &Home, name: &str, flags: &[&str]) {
    let file = input_log_file(home, name);
    serve(home, name, &[flags, &["--input-log", file.to_str().unwrap()]].concat());
}

pub(crate) fn input_log_file(home: &Home, name: &str) -> PathBuf {
    home.root().join(format!("harness/{name}.input"))
}

/// Returns the lines that a server has received, as they arrived.
pub(crate) fn received_lines(home: &Home, name: &str) -> Vec<String> {
    let text = fs::read_to_string(input_log_file(home, name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the messages that a server has received.
pub(crate) fn received(home: &Home, name: &str) -> Vec<Value> {
    let lines = received_lines(home, name);
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the messages of one method that a server has received.
pub(crate) fn received_of(home: &Home, name: &str, method: &str) -> Vec<Value> {
    received(home, name).into_iter().filter(|it| it["method"] == method).collect()
}

/// Returns a home with the servers `a` and `b`, which are ready, and its daemon.
#[track_caller]
pub(crate) fn home_of_two() -> Home {
    let home = home();
    serve_recorded(&home, "a", &[]);
    serve_recorded(&home, "b", &[]);
    home.daemon();
    ready(&home, &["a", "b"]);
    home
}

/// Waits until all these servers run.
#[track_caller]
pub(crate) fn ready(home: &Home, names: &[&str]) {
    for name in names {
        home.wait_for_state(name, "running");
    }
}

/// Connects to the local socket, without `initialize`.
#[track_caller]
pub(crate) fn uninitialized_client(home: &Home) -> McpSocket {
    uninitialized_client_at(home, &json!({ "profile": "default" }))
}

#[track_caller]
pub(crate) fn uninitialized_client_at(home: &Home, view: &Value) -> McpSocket {
    let hello = json!({ "xy": "hello", "protocol": 1, "view": view });
    McpSocket::connect(&home.mcp_socket(), &hello.to_string())
}

/// Connects a client to the local socket.
#[track_caller]
pub(crate) fn local_client(home: &Home) -> McpSocket {
    let client = uninitialized_client(home);
    client.initialize();
    client
}

/// Connects a client to the local socket, at the endpoint of one server.
#[track_caller]
pub(crate) fn single_server_client(home: &Home, server: &str) -> McpSocket {
    let client = uninitialized_client_at(home, &json!({ "server": server }));
    client.initialize();
    client
}

/// Connects a client with all capabilities.
#[track_caller]
pub(crate) fn capable_client(home: &Home) -> McpSocket {
    let client = uninitialized_client(home);
    client.initialize_with(&capabilities());
    client
}

/// Returns the capabilities of such a client.
pub(crate) fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": {}, "roots": { "listChanged": true } })
}

/// Connects a client over HTTP.
#[track_caller]
pub(crate) fn http_client(home: &Home) -> McpHttp {
    http_client_at(home, "/mcp")
}

#[track_caller]
pub(crate) fn http_client_at(home: &Home, path: &str) -> McpHttp {
    let client = home.mcp_http(path);
    client.initialize();
    client
}

/// Connects a client through `xy connect`.
#[track_caller]
pub(crate) fn bridge_client(home: &Home) -> McpStdio {
    let client = home.mcp_connect(&[]);
    client.initialize();
    client
}

/// Returns the names of all tools of servers, without xy's own.
#[track_caller]
pub(crate) fn tools_of_servers(client: &McpClient) -> Vec<String> {
    client.tool_names().into_iter().filter(|name| name.contains("__")).collect()
}

/// Returns the code of an error response.
#[track_caller]
pub(crate) fn error_code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// Returns the message of an error response.
#[track_caller]
pub(crate) fn error_message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// Asserts that a server's `echo` tool answers.
#[track_caller]
pub(crate) fn assert_echo(client: &McpClient, server: &str) {
    let text = format!("to {server}");
    assert_eq!(client.call_text(&format!("{server}__echo"), json!({ "message": text })), text);
}

/// Returns the result of a server's `who` tool.
#[track_caller]
pub(crate) fn who(client: &McpClient, tool: &str) -> Value {
    serde_json::from_str(&client.call_text(tool, json!({}))).unwrap()
}

/// Returns the result of the `who` tool of a server that may just be restarting.
#[track_caller]
pub(crate) fn who_once_up(home: &Home, client: &McpClient, tool: &str) -> Value {
    home.wait_until("it answers", || {
        let answer = client.call(tool, json!({}));
        let who = answer.get("result").map(|it| it["structuredContent"].clone());
        assert!(who.is_some() || [-32010, -32005].contains(&error_code(&answer)), "{answer}");
        who
    })
}

/// Returns how many notifications of this method arrived and were not waited for.
pub(crate) fn notification_count(client: &McpClient, method: &str) -> usize {
    client.notifications().iter().filter(|it| it["method"] == method).count()
}

/// Waits a while.
#[expect(clippy::disallowed_methods, reason = "what must not happen cannot be waited for")]
pub(crate) fn linger() {
    std::thread::sleep(A_WHILE);
}

/// Waits until no call of any client is open at any server.
#[track_caller]
pub(crate) fn wait_until_idle(home: &Home) {
    home.wait_until("nothing is open", || {
        let metrics = metrics(home);
        let is_open = |line: &&str| {
            (line.starts_with("xy_server_calls_open{")
                || line.starts_with("xy_server_calls_waiting{"))
                && !line.ends_with(" 0")
        };
        metrics.lines().find(is_open).is_none()
    });
}

/// Returns the metrics of the gateway.
#[track_caller]
pub(crate) fn metrics(home: &Home) -> String {
    let token = format!("Bearer {}", home.gateway_token());
    let web = McpHttp::new(&home.gateway_address(), "/metrics", "");
    web.exchange("GET", &[("Authorization", &token)], "").body
}
