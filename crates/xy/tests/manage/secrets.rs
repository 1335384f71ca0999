//! Secrets that no model and no user interface may see.

use serde_json::json;

use crate::support::{home, status};
use crate::{connect, fails, listed};

/// A secret that no pattern recognises.
const SECRET: &str = "bare-s3cret-value";

/// Returns the file of a server that runs a shell script with the secret as `API_KEY`.
fn script_with_secret(script: &str) -> String {
    format!("command \"/bin/sh\"\nargs \"-c\" \"{script}\"\nenv {{ API_KEY \"{SECRET}\" }}\n")
}

#[test]
fn secrets_of_a_server_are_masked() {
    let home = home();
    let lines = ["--lines", "1", "--text", "password=s3cret-argument ", "--then", "sleep"];
    let server = home.kdl_command("xy-test-spew", &lines);
    let env = "env {\n  OWN_VALUE \"s3cret-variable\"\n  API_KEY \"${API_KEY}\"\n}\n";
    home.server("talks", &format!("{server}{env}ready {{ probe \"process\" }}\n"));
    let script = "echo it got $OWN_VALUE >&2; exec sleep 1000";
    let bare = format!("command \"/bin/sh\"\nargs \"-c\" \"{script}\"\n{env}");
    home.server("bare", &bare);
    home.daemon();
    home.wait_for_state("talks", "running");
    home.wait_for_state("bare", "running");

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
    assert!(warnings.contains("set `API_KEY` in the environment of `xy daemon`"), "{response:#}");
    let shown = home.xy(&["status", "talks"]).stdout;
    assert!(shown.contains("password=***") && !shown.contains("s3cret"), "{shown}");

    let client = connect(&home);
    let entry = listed(&client, "talks").unwrap();
    assert!(entry["args"].as_array().unwrap().contains(&json!("password=***")), "{entry:#}");
    assert!(!entry.to_string().contains("s3cret"), "{entry:#}");
    let first_line = |name: &str| {
        home.wait_until("the server has logged a line", || {
            let logs = client.call_value("server_logs", json!({ "name": name }));
            logs["lines"][0]["line"].as_str().map(str::to_owned)
        })
    };
    let line = first_line("talks");
    assert!(line.contains("password=***") && !line.contains("s3cret"), "{line}");
    assert_eq!(first_line("bare"), "it got ***", "no pattern recognises this secret");
    client.close();
    home.finish();
}

#[test]
fn stderr_in_answers_has_no_known_secret() {
    let home = home();
    let script = "echo the key $API_KEY was refused >&2; exit 3";
    let kdl = script_with_secret(script);
    home.write_config("servers/shared.kdl", &format!("{kdl}restart {{ policy \"never\" }}\n"));
    let rules = "isolation \"client\"\nrestart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/own.kdl", &format!("{kdl}{rules}"));
    let daemon = home.daemon();
    home.wait_for_state("shared", "failed");

    let mut answers = vec![status(&home, "shared").to_string()];
    for verb in ["status", "start", "restart"] {
        let ran = home.xy(&[verb, "shared"]);
        answers.push(format!("{}{}", ran.stdout, ran.stderr));
    }
    let client = connect(&home);
    answers.push(fails(&client, "reload_server", json!({ "name": "shared" })));
    let added = json!({
        "name": "added", "command": "/bin/sh", "args": ["-c", script], "env": { "API_KEY": SECRET },
    });
    answers.push(fails(&client, "add_server", added));
    client.close();
    let client = home.mcp_connect(&["--server", "own"]);
    client.initialize();
    answers.push(client.call("any", json!({})).to_string());
    client.close();
    answers.push(home.wait_until("its client has left", || {
        let status = status(&home, "own");
        (status["instances"] == json!([])).then(|| status.to_string())
    }));
    for answer in answers {
        assert!(answer.contains("the key *** was refused"), "{answer}");
        assert!(!answer.contains(SECRET), "{answer}");
    }
    assert!(!daemon.stderr().contains(SECRET), "{}", daemon.stderr());
    home.finish();
}

#[test]
fn self_test_answer_has_no_known_secret() {
    let home = home();
    let kdl = script_with_secret("echo the key $API_KEY was refused >&2; exit 3");
    home.write_config("servers/shared.kdl", &format!("{kdl}restart {{ policy \"never\" }}\n"));
    let rules = "isolation \"client\"\nrestart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/own.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    home.wait_for_state("shared", "failed");

    let client = connect(&home);
    for arguments in [json!({ "repair": false }), json!({})] {
        let answer = client.call("self_test", arguments).to_string();
        assert!(answer.contains("the key *** was refused"), "{answer}");
        assert!(!answer.contains(SECRET), "{answer}");
    }
    client.close();
    home.finish();
}

#[test]
fn stdout_in_answers_has_no_known_secret() {
    let home = home();
    let kdl = script_with_secret("echo using $API_KEY; exec sleep 1000");
    let rules = "ready { within \"300ms\" }\nrestart { policy \"never\" }\nstop { grace \"2s\" }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}{rules}"));
    let daemon = home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.ends_with("that is not MCP: `using ***`"), "{reason}");
    let started = home.xy(&["start", "one"]).stderr;
    assert!(started.contains("`using ***`") && !started.contains(SECRET), "{started}");
    let events = home.xy(&["events", "--history", "100", "--no-follow"]).stdout;
    assert!(events.contains("one") && !events.contains(SECRET), "{events}");
    assert!(!daemon.stderr().contains(SECRET), "{}", daemon.stderr());
    home.finish();
}
