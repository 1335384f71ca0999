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
