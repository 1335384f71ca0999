//! Which clients may manage servers, and that no server can impersonate xy.

use std::fs;

use serde_json::{Value, json};
use xy_testkit::McpHttp;

use crate::support::home;
use crate::{add, connect, home_and_client, home_with_mcp};

pub(crate) const OWN: [&str; 8] = [
    "add_server",
    "remove_server",
    "reload_server",
    "list_servers",
    "restart_server",
    "server_logs",
    "self_test",
    "get_diagnostics",
];

#[test]
fn only_the_managing_token_may_manage_over_http() {
    let home = home_with_mcp(&["--only-tools"]);
    let plain = home.mcp_http("/mcp");
    plain.initialize();
    let names = plain.tool_names();
    assert!(names.contains(&"one__echo".to_owned()), "{names:?}");
    assert!(OWN.iter().all(|own| !names.contains(&(*own).to_owned())), "{names:?}");
    for own in OWN {
        let refused = plain.call(own, json!({ "name": "one" }));
        assert_eq!(refused["error"]["code"], -32009, "{refused:#}");
    }
    assert_eq!(home.call("list", Value::Null).unwrap()[0]["name"], "one", "it is still there");

    let file = home.root().join("state/xy/manage-token");
    let token = fs::read_to_string(file).unwrap();
    let managing = McpHttp::new(&home.gateway_address(), "/mcp", token.trim());
    managing.initialize();
    let names = managing.tool_names();
    assert_eq!(names[..OWN.len()], OWN);
    assert!(names.contains(&"one__echo".to_owned()));
    add(&home, &managing, "two", &["--only-tools"]);
    assert!(
        plain.tool_names().contains(&"two__echo".to_owned()),
        "an added server is visible to all"
    );
    managing.call_value("remove_server", json!({ "name": "two" }));
    home.finish();
}

#[test]
fn single_server_client_sees_no_managing_tools() {
    let home = home_with_mcp(&["--only-tools"]);
    let client = home.mcp_connect(&["--server", "one"]);
    client.initialize();
    let names = client.tool_names();
    assert!(names.contains(&"echo".to_owned()));
    assert!(OWN.iter().all(|own| !names.contains(&(*own).to_owned())), "{names:?}");
    client.close();
    home.finish();
}

#[test]
fn server_tool_cannot_replace_an_own_tool() {
    let (home, client) = home_and_client();
    add(&home, &client, "list_servers", &["--only-tools"]);
    client.call_text("list_servers__add_tool", json!({ "name": "list_servers" }));
    home.wait_until("its new tool is shown", || {
        client.tool_names().contains(&"list_servers__list_servers".to_owned())
    });
    let names = client.tool_names();
    for own in OWN {
        assert_eq!(names.iter().filter(|name| *name == own).count(), 1, "{own}");
    }
    let list = client.call_value("list_servers", json!({}));
    assert_eq!(list["servers"][0]["name"], "list_servers");
    let tool_text = client.call_text("list_servers__list_servers", json!({}));
    assert_eq!(tool_text, "list_servers");
    client.close();
    home.finish();
}

#[test]
fn added_server_is_visible_to_other_clients() {
    let (home, client) = home_and_client();
    let other = connect(&home);
    assert_eq!(other.tool_names(), OWN);
    add(&home, &client, "dev", &["--only-tools"]);
    other.wait_notification(crate::CHANGED);
    assert_eq!(other.call_text("dev__echo", json!({ "message": "me too" })), "me too");
    client.close();
    other.close();
    home.finish();
}

#[test]
fn journal_and_log_name_the_requester_and_command() {
    let home = home();
    home.mcp_server("one", &["--only-tools"]);
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let program = home.program("xy-test-mcp").display().to_string();
    let args = ["--only-tools", "--label", "s3cr3t-value", "--token=s3cr3t-value"];
    let send_request = |name: &str| json!({ "name": name, "command": program, "args": args });
    let local = connect(&home);
    local.call("add_server", send_request("two"));
    local.call_value("restart_server", json!({ "name": "one" }));
    home.mcp_server("one", &["--only-tools", "--odd-lists"]);
    local.call_value("reload_server", json!({ "name": "one" }));
    let made = home.xy_json(&["token", "add", "laptop", "--manage"]);
    let http = McpHttp::new(&home.gateway_address(), "/mcp", made["token"].as_str().unwrap());
    http.initialize();
    http.call("remove_server", json!({ "name": "one" }));
    home.xy(&["add", "three", "--", &program, "--only-tools"]);

    let text = home.xy(&["events", "--history", "100", "--no-follow", "--json"]).stdout;
    let requests: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &Value| event["kind"] == "asked")
        .collect();
    let reasons: Vec<String> =
        requests.iter().map(|it| format!("{} {}", it["name"], it["reason"])).collect();
    let all = reasons.join("\n");
    assert_eq!(reasons.len(), 5, "{all}");
    let at_local = "client `xy-testkit` at the local socket";
    assert!(reasons[0].contains(at_local) && reasons[0].contains("asked to add it"), "{all}");
    assert!(reasons[0].contains("xy-test-mcp --only-tools"), "{all}");
    assert!(reasons[1].contains(at_local) && reasons[1].contains("asked to restart it"), "{all}");
    assert!(reasons[2].contains("asked to reload it"), "{all}");
    assert!(reasons[2].contains("--odd-lists"), "{all}");
    assert!(reasons[3].contains("over HTTP with token `laptop` asked to remove it"), "{all}");
    assert!(reasons[4].contains("a user asked to add it"), "{all}");
    assert!(!all.contains("--token=s3cr3t"), "{all}");
    let lines = home.xy(&["events", "--history", "100", "--no-follow"]).stdout;
    assert!(lines.contains("asked") && lines.contains(at_local), "{lines}");
    let log = daemon.stderr();
    for request in &requests {
        let server = format!("server={}", request["name"].as_str().unwrap());
        let reason = request["reason"].as_str().unwrap();
        let is_logged = log.lines().any(|line| line.contains(&server) && line.contains(reason));
        assert!(is_logged, "{request}: {log}");
    }
    assert!(!log.contains("--token=s3cr3t"), "{log}");
    local.close();
    home.finish();
}
