//! Secrets that no model and no user interface may see.

use serde_json::json;

use crate::support::{home, status};
use crate::{connect, listed};

#[test]
fn secrets_of_a_server_are_masked() {
    let home = home();
    let lines = ["--lines", "1", "--text", "password=s3cret-argument ", "--then", "sleep"];
    let server = home.kdl_command("xy-test-spew", &lines);
    let env = "env {\n  OWN_VALUE \"s3cret-variable\"\n  API_KEY \"${API_KEY}\"\n}\n";
    home.server("talks", &format!("{server}{env}ready {{ probe \"process\" }}\n"));
    home.daemon();
    home.wait_for_state("talks", "running");

    let response = status(&home, "talks");
    assert!(
        response["command"].as_array().unwrap().contains(&json!("password=***")),
        "{response:#}"
    );
    let warnings = response["warnings"].to_string();
    assert!(
        warnings.contains("env `API_KEY`: `${API_KEY}` is passed on unchanged"),
        "{response:#}"
    );
    let shown = home.xy(&["status", "talks"]).stdout;
    assert!(shown.contains("password=***") && !shown.contains("s3cret"), "{shown}");

    let client = connect(&home);
    let entry = listed(&client, "talks").unwrap();
    assert!(entry["args"].as_array().unwrap().contains(&json!("password=***")), "{entry:#}");
    assert!(!entry.to_string().contains("s3cret"), "{entry:#}");
    let logs = home.wait_until("the server has logged a line", || {
        let logs = client.call_value("server_logs", json!({ "name": "talks" }));
        (!logs["lines"].as_array().unwrap().is_empty()).then_some(logs)
    });
    let line = logs["lines"][0]["line"].as_str().unwrap();
    assert!(line.contains("password=***") && !line.contains("s3cret"), "{logs:#}");
    client.close();
    home.finish();
}
