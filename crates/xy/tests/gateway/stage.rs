//! What the tests of the gateway have in common: servers that come back at once, clients that
//! have said hello, and what a server has heard.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpHttp, McpSocket, McpStdio};

pub(crate) use crate::support::home;

/// Long enough for what must not happen to happen, if it does.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

/// Servers of these tests come back at once, as often as it takes.
const TIRELESS: &str =
    "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n";

/// Writes the file of a test server with these flags, and more in its file.
#[track_caller]
pub(crate) fn serve_with(home: &Home, name: &str, flags: &[&str], more: &str) {
    let kdl = format!("{}{TIRELESS}{more}", home.kdl_mcp(flags));
    home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

/// The same with nothing more.
#[track_caller]
pub(crate) fn serve(home: &Home, name: &str, flags: &[&str]) {
    serve_with(home, name, flags, "");
}

/// The same for one that writes down what it hears.
#[track_caller]
pub(crate) fn serve_noting(home: &Home, name: &str, flags: &[&str]) {
    let file = diary_file(home, name);
    serve(home, name, &[flags, &["--diary", file.to_str().unwrap()]].concat());
}

pub(crate) fn diary_file(home: &Home, name: &str) -> PathBuf {
    home.root().join(format!("harness/{name}.diary"))
}

/// The lines that a server has heard, as they came.
pub(crate) fn heard_text(home: &Home, name: &str) -> Vec<String> {
    let text = fs::read_to_string(diary_file(home, name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// What a server has heard.
pub(crate) fn heard(home: &Home, name: &str) -> Vec<Value> {
    let lines = heard_text(home, name);
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What a server has heard of one method.
pub(crate) fn heard_of(home: &Home, name: &str, method: &str) -> Vec<Value> {
    heard(home, name).into_iter().filter(|it| it["method"] == method).collect()
}

/// A home with the servers `a` and `b`, and its daemon; both are ready.
#[track_caller]
pub(crate) fn home_of_two() -> Home {
    let home = home();
    serve_noting(&home, "a", &[]);
    serve_noting(&home, "b", &[]);
    home.daemon();
    ready(&home, &["a", "b"]);
    home
}

/// Waits until all of these run.
#[track_caller]
pub(crate) fn ready(home: &Home, names: &[&str]) {
    for name in names {
        home.wait_for_state(name, "running");
    }
}

/// A client at the local door that has said nothing yet.
#[track_caller]
pub(crate) fn stranger(home: &Home) -> McpSocket {
    stranger_at(home, &json!({ "profile": "default" }))
}

#[track_caller]
pub(crate) fn stranger_at(home: &Home, view: &Value) -> McpSocket {
    let hello = json!({ "xy": "hello", "protocol": 1, "view": view });
    McpSocket::connect(&home.mcp_socket(), &hello.to_string())
}

/// A client at the local door.
#[track_caller]
pub(crate) fn local(home: &Home) -> McpSocket {
    let client = stranger(home);
    client.initialize();
    client
}

/// A client at the local door that sees one server only.
#[track_caller]
pub(crate) fn local_of(home: &Home, server: &str) -> McpSocket {
    let client = stranger_at(home, &json!({ "server": server }));
    client.initialize();
    client
}

/// A client that can be asked by servers.
#[track_caller]
pub(crate) fn capable(home: &Home) -> McpSocket {
    let client = stranger(home);
    client.initialize_with(&capabilities());
    client
}

/// What such a client can do.
pub(crate) fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": {}, "roots": { "listChanged": true } })
}

/// A client over HTTP.
#[track_caller]
pub(crate) fn web(home: &Home) -> McpHttp {
    web_at(home, "/mcp")
}

#[track_caller]
pub(crate) fn web_at(home: &Home, path: &str) -> McpHttp {
    let client = home.mcp_http(path);
    client.initialize();
    client
}

/// A client behind `xy connect`.
#[track_caller]
pub(crate) fn bridged(home: &Home) -> McpStdio {
    let client = home.mcp_connect(&[]);
    client.initialize();
    client
}

/// The names of all tools of servers: those of xy's own have no server before them.
#[track_caller]
pub(crate) fn tools_of_servers(client: &McpClient) -> Vec<String> {
    client.tool_names().into_iter().filter(|name| name.contains("__")).collect()
}

/// The code of an answer that is an error.
#[track_caller]
pub(crate) fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// The words of an answer that is an error.
#[track_caller]
pub(crate) fn words(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// Calls `echo` of a server, which must answer.
#[track_caller]
pub(crate) fn echoes(client: &McpClient, server: &str) {
    let text = format!("to {server}");
    assert_eq!(client.call_text(&format!("{server}__echo"), json!({ "message": text })), text);
}

/// What `who` of a server tells.
#[track_caller]
pub(crate) fn who(client: &McpClient, tool: &str) -> Value {
    serde_json::from_str(&client.call_text(tool, json!({}))).unwrap()
}

/// The same of a server that may be dying just now, which the first caller finds out.
#[track_caller]
pub(crate) fn who_at_last(home: &Home, client: &McpClient, tool: &str) -> Value {
    home.wait_until("it answers", || {
        let answer = client.call(tool, json!({}));
        let who = answer.get("result").map(|it| it["structuredContent"].clone());
        assert!(who.is_some() || [-32010, -32005].contains(&code(&answer)), "{answer}");
        who
    })
}

/// How many notifications of this method came and were not waited for.
pub(crate) fn told(client: &McpClient, method: &str) -> usize {
    client.notifications().iter().filter(|it| it["method"] == method).count()
}

/// Does nothing for a while.
#[expect(clippy::disallowed_methods, reason = "what must not happen cannot be waited for")]
pub(crate) fn linger() {
    std::thread::sleep(A_WHILE);
}

/// Waits until nothing of any client is open with any server.
#[track_caller]
pub(crate) fn nothing_is_open(home: &Home) {
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

/// One number of the gateway.
#[track_caller]
pub(crate) fn metrics(home: &Home) -> String {
    let token = format!("Bearer {}", home.gateway_token());
    let web = McpHttp::new(&home.gateway_address(), "/metrics", "");
    web.exchange("GET", &[("Authorization", &token)], "").body
}
