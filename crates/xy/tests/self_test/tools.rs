//! The self-test as tools of MCP clients.

use rustix::process::Signal;
use serde_json::json;

use crate::home_without_gateway;
use crate::support::{pid_in, running, signal, wait_for_line};

#[test]
fn client_runs_self_test_restart_and_logs() {
    let home = home_without_gateway();
    home.mcp_server("one", &["--only-tools"]);
    let printer = home.kdl_command("xy-test-exit", &["--say", "hello", "--after", "600000"]);
    home.server("loud", &printer);
    home.daemon();
    let one = running(&home, "one");
    wait_for_line(&home, "loud", "hello");
    let client = home.mcp_connect(&[]);
    client.initialize();

    let restarted = client.call_value("restart_server", json!({ "name": "one" }));
    assert_eq!(restarted["status"], "running");
    assert!(restarted["tools"].as_array().unwrap().contains(&json!("one__echo")));
    assert_ne!(pid_in(&restarted), one);

    let logs = client.call_value("server_logs", json!({ "name": "loud", "lines": 1 }));
    assert_eq!(logs["lines"][0]["line"], "hello", "{logs:#}");
    let odd = client.call("server_logs", json!({ "name": "loud", "lines": 1001 }));
    assert_eq!(odd["result"]["isError"], true, "{odd:#}");
    let unknown = client.call("restart_server", json!({ "name": "on" }));
    assert!(unknown.to_string().contains("did you mean `one`?"), "{unknown:#}");

    let report = client.call_value("get_diagnostics", json!({}));
    assert_eq!(report["servers"].as_array().unwrap().len(), 2);

    signal(pid_in(&restarted), Signal::STOP);
    let tested = client.call_value("self_test", json!({}));
    assert_eq!(tested["autoRepair"][0]["server"], "one", "{tested:#}");
    assert_eq!(client.call_text("one__echo", json!({ "message": "a" })), "a");
    client.close();
    home.finish();
}

#[test]
fn read_only_self_test_changes_nothing() {
    let home = home_without_gateway();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    let one = running(&home, "one");
    let client = home.mcp_connect(&[]);
    client.initialize();
    signal(one, Signal::STOP);

    let checked = client.call_value("self_test", json!({ "repair": false }));

    assert_eq!((&checked["success"], checked.get("autoRepair")), (&json!(false), None));
    let found = &checked["health"]["worker"][0];
    assert_eq!((&found["status"], &found["pid"]), (&json!("failed"), &json!(one)), "{checked:#}");
    let why = "it did not answer: a signal stopped its process";
    assert_eq!(found["note"], why, "{checked:#}");
    assert_eq!(running(&home, "one"), one, "it is left as it is");
    let odd = client.call("self_test", json!({ "repair": "no" }));
    assert!(odd["error"].is_object() || odd["result"]["isError"] == true, "{odd:#}");
    signal(one, Signal::CONT);
    assert_eq!(client.call_text("one__echo", json!({ "message": "a" })), "a");
    client.close();
    home.finish();
}
