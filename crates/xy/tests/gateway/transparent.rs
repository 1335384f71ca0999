//! The endpoint of one server: clients get what they would get from the server itself.

use serde_json::{Value, json};
use xy_testkit::McpStdio;

use crate::fixtures::{
    capabilities, home, http_client_at, ready, received_of, serve, serve_recorded,
    uninitialized_client_at,
};
use crate::support::status;

const FLAGS: [&str; 8] = [
    "--name",
    "the one",
    "--instructions",
    "use it well",
    "--page",
    "7",
    "--pass-unknown",
    "--odd-names",
];

#[test]
fn single_server_endpoint_answers_like_the_server_itself() {
    let home = home();
    serve(&home, "a", &FLAGS);
    home.daemon();
    ready(&home, &["a"]);
    let mut command = std::process::Command::new(home.program("xy-test-mcp"));
    command.args(FLAGS);
    let direct = McpStdio::start(command);
    let (through, http) =
        (uninitialized_client_at(&home, &json!({ "server": "a" })), home.mcp_http("/mcp/s/a"));
    let expected = direct.initialize();
    assert_eq!(through.initialize(), expected);
    assert_eq!(http.initialize(), expected);
    for (method, params) in [
        ("tools/list", Value::Null),
        ("tools/list", json!({ "cursor": "7" })),
        ("tools/list", json!({ "cursor": "bad" })),
        ("prompts/list", json!({})),
        ("resources/list", Value::Null),
        ("resources/templates/list", Value::Null),
        ("resources/read", json!({ "uri": "test://static" })),
        ("resources/read", json!({ "uri": "test://none" })),
        ("prompts/get", json!({ "name": "greet", "arguments": { "name": "Ada" } })),
        ("tools/call", json!({ "name": "with.dot" })),
        ("tools/call", json!({ "name": "none" })),
        ("tools/call", json!({})),
        ("future/get", json!({ "taskId": 1.5, "x": [1, 2] })),
        ("vendor/unheard-of", Value::Null),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/prompt", "name": "greet" },
                "argument": { "name": "name", "value": "A" } }),
        ),
        ("resources/subscribe", json!({ "uri": "test://counter" })),
        ("resources/unsubscribe", json!({ "uri": "test://counter" })),
        ("logging/setLevel", json!({ "level": "info" })),
        ("ping", Value::Null),
    ] {
        let strip = |mut answer: Value| {
            answer["id"] = Value::Null;
            answer
        };
        let expected = strip(direct.request(method, params.clone()));
        assert_eq!(strip(through.request(method, params.clone())), expected, "{method} {params}");
        assert_eq!(strip(http.request(method, params.clone())), expected, "{method} {params}");
    }
    assert_eq!(through.tool_names(), direct.tool_names());
    home.finish();
}

#[test]
fn client_notifications_reach_the_server() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let client = uninitialized_client_at(&home, &json!({ "server": "a" }));
    client.initialize_with(&capabilities());
    client.notify("notifications/vendor", json!({ "x": 1.5 }));
    let notification = home.wait_until("the server has the call", || {
        received_of(&home, "a", "notifications/vendor").pop()
    });
    assert_eq!(notification["params"]["x"], 1.5);
    // A notification about one client alone does not go to a shared server.
    client.notify("notifications/roots/list_changed", Value::Null);
    client.call_text("echo", json!({ "message": "x" }));
    assert_eq!(received_of(&home, "a", "notifications/roots/list_changed").len(), 0);
    assert_eq!(received_of(&home, "a", "notifications/initialized").len(), 1, "only xy's own");
    home.finish();
}

#[test]
fn remembered_server_is_introduced_at_once() {
    let home = home();
    serve(&home, "a", &["--slow-init", "4000", "--name", "slow one"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let file = home.root().join("state/xy/manifests/a.json");
    home.wait_until("the manifest is saved", || file.exists());
    daemon.terminate();
    home.daemon();
    let http = home.mcp_http("/mcp/s/a");
    assert_eq!(http.initialize()["serverInfo"]["name"], "slow one");
    assert_eq!(status(&home, "a")["state"], "starting", "the list has not waited for the server");
    home.finish();
}

#[test]
fn removed_server_is_gone_for_its_clients() {
    let home = home();
    serve(&home, "a", &[]);
    serve(&home, "b", &[]);
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = http_client_at(&home, "/mcp/s/a");
    client.call_text("echo", json!({ "message": "x" }));
    home.remove_server("a");
    home.call("reload", Value::Null).unwrap();
    let answer = client.call("echo", json!({ "message": "x" }));
    assert!(answer["error"]["message"].as_str().unwrap().contains("`a`"), "{answer}");
    home.finish();
}
