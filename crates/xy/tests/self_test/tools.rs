//! The same, as tools of MCP clients.

use rustix::process::Signal;
use serde_json::json;

use crate::closed_home;
use crate::support::{pid_in, running, says, signal};

#[test]
fn a_client_tests_restarts_and_reads() {
    let home = closed_home();
    home.mcp_server("one", &["--only-tools"]);
    let said = home.kdl_command("xy-test-exit", &["--say", "hello", "--after", "600000"]);
    home.server("loud", &said);
    home.daemon();
    let one = running(&home, "one");
    says(&home, "loud", "hello");
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
fn a_client_that_only_looks_changes_nothing() {
    let home = closed_home();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    let one = running(&home, "one");
    let client = home.mcp_connect(&[]);
    client.initialize();
    signal(one, Signal::STOP);

    let looked = client.call_value("self_test", json!({ "repair": false }));

    assert_eq!((&looked["success"], looked.get("autoRepair")), (&json!(false), None));
    let found = &looked["health"]["worker"][0];
    assert_eq!((&found["status"], &found["pid"]), (&json!("failed"), &json!(one)), "{looked:#}");
    let why = "it did not answer: a signal has stopped its process";
    assert_eq!(found["note"], why, "{looked:#}");
    assert_eq!(running(&home, "one"), one, "it is left as it is");
    let odd = client.call("self_test", json!({ "repair": "no" }));
    assert!(odd["error"].is_object() || odd["result"]["isError"] == true, "{odd:#}");
    signal(one, Signal::CONT);
    assert_eq!(client.call_text("one__echo", json!({ "message": "a" })), "a");
    client.close();
    home.finish();
}
