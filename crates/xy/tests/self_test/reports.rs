//! The report for bug reports: details, and no secrets.

use std::fs;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::support::{ask, running, wait_for_line};
use crate::{home, home_without_gateway};

/// Secrets in configuration, environment and output; a report must not contain them.
const SECRETS: [&str; 12] = [
    "env-s3cret-value",
    "inherited-s3cret",
    "arg-s3cret-next",
    "arg-s3cret-equals",
    "bearer-s3cret",
    "user-s3cret",
    "query-s3cret",
    "header-s3cret",
    "far-query-s3cret",
    "said-s3cret",
    "line-one-s3cret",
    "line-two-s3cret",
];

/// Returns a home with all secrets in place.
fn home_with_secrets() -> Home {
    let home = home().with_env("DAEMON_API_TOKEN", "inherited-s3cret");
    let say = "env-s3cret-value inherited-s3cret arg-s3cret-next query-s3cret header-s3cret \
               line-two-s3cret token=said-s3cret harmless";
    let args = ["--say", say, "--after", "600000"];
    let kdl = home.kdl_command("xy-test-exit", &args);
    let env = "env { API_VALUE \"env-s3cret-value\"; PEM \"line-one-s3cret\\nline-two-s3cret\" }\n";
    home.server("near", &format!("{kdl}{env}"));
    let program = home.program("xy-test-sleep-server").display().to_string();
    let shell = format!("exec {program} # --token arg-s3cret-next");
    let words = [
        "-c",
        &shell,
        "--token",
        "arg-s3cret-next",
        "--api-key=arg-s3cret-equals",
        "Authorization: Bearer bearer-s3cret",
        "https://user-s3cret@127.0.0.1/?q=query-s3cret",
    ];
    let words = words.map(|word| format!(" {word:?}")).concat();
    home.server("args", &format!("command \"sh\"\nargs{words}\n"));
    let far = "url \"http://127.0.0.1:9/mcp?k=far-query-s3cret\"\n\
               headers { Authorization \"Bearer header-s3cret\" }\n";
    home.write_config("servers/far.kdl", far);
    home
}

#[track_caller]
fn assert_masked(home: &Home, report: &str) {
    for secret in SECRETS {
        assert!(!report.contains(secret), "`{secret}` is in {report}");
    }
    for file in ["token", "manage-token", "state-key"] {
        let Ok(token) = fs::read_to_string(home.root().join("state/xy").join(file)) else {
            continue;
        };
        assert!(!report.contains(token.trim()), "the {file} is in it");
    }
    assert!(report.len() <= 1 << 20, "{} bytes", report.len());
}

fn server<'r>(report: &'r Value, name: &str) -> &'r Value {
    let all = report["servers"].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("no `{name}`: {report:#}"))
}

#[test]
fn report_has_details_and_no_secret() {
    let home = home_with_secrets();
    home.daemon();
    running(&home, "near");
    running(&home, "args");
    wait_for_harmless_line(&home);

    let ran = home.xy(&["diagnostics"]);

    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_masked(&home, &ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let near = server(&report, "near");
    assert_eq!(near["configuration"]["env"], json!({ "API_VALUE": "***", "PEM": "***" }));
    assert_eq!(near["status"]["state"], "running");
    let text = near["stderr"].to_string();
    assert!(text.contains("harmless") && text.contains("***"), "{text}");
    assert!(near["log_files"][0]["bytes"].as_u64().unwrap() > 0, "{near:#}");
    let far = server(&report, "far");
    assert_eq!(far["configuration"]["url"], "http://127.0.0.1:9/mcp?***");
    assert_eq!(far["configuration"]["headers"], json!({ "Authorization": "***" }));
    let args = server(&report, "args");
    assert_eq!(args["configuration"]["args"][2], "--token");
    assert_eq!(args["configuration"]["args"][3], "***");
    assert!(report["daemon"]["pid"].is_u64() && report["daemon"]["rss"].is_u64());
    assert_eq!(report["configuration"]["valid"], true);
    assert!(report["metrics"]["xy_clients"].is_number(), "{:#}", report["metrics"]);
    assert_masked(&home, &ask(&home, "diagnostics", json!({})).to_string());
    let client = home.mcp_connect(&[]);
    client.initialize();
    let answer = client.call_value("get_diagnostics", json!({}));
    assert_eq!(server(&answer, "near")["configuration"]["env"]["PEM"], "***");
    assert_masked(&home, &answer.to_string());
    client.close();
    home.finish();
}

/// Waits until the harmless line is logged.
fn wait_for_harmless_line(home: &Home) {
    home.wait_until("it has printed its line", || {
        ask(home, "tail", json!({ "name": "near" })).to_string().contains("harmless")
    });
}

#[test]
fn report_without_a_daemon_shows_the_files() {
    let home = home_with_secrets();
    home.write_config(
        "servers/bad.kdl",
        "command \"x\"\nenv { API_KEY \"env-s3cret-value\" \nbad 7\n",
    );
    let ran = home.xy(&["diagnostics"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_masked(&home, &ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["daemon"], Value::Null);
    assert!(report["problem"].as_str().unwrap().contains("no daemon is running"), "{report:#}");
    assert_eq!(report["configuration"]["valid"], false);
    let problems = report["configuration"]["problems"].as_array().unwrap();
    let is_error = |it: &&Value| it["severity"] == "error";
    assert_eq!(problems.iter().find(is_error).unwrap()["file"], "servers/bad.kdl");
    assert_eq!(server(&report, "near")["status"], Value::Null);
    let files = report["files"].as_array().unwrap();
    let socket = files.iter().find(|it| it["path"] == home.socket().display().to_string());
    assert_eq!(socket.unwrap()["kind"], "missing");
    home.finish();
}

#[test]
fn last_lines_are_one_answer() {
    let home = home_without_gateway();
    home.server("one", &home.kdl_command("xy-test-exit", &["--say", "hello", "--after", "600000"]));
    home.daemon();
    wait_for_line(&home, "one", "hello");
    let answer = ask(&home, "tail", json!({ "name": "one", "stream": "stderr" }));
    assert_eq!((&answer["name"], &answer["lines"][0]["line"]), (&json!("one"), &json!("hello")));
    assert_eq!((&answer["lines"][0]["stream"], &answer["left_out"]), (&json!("stderr"), &json!(0)));
    let none = ask(&home, "tail", json!({ "name": "one", "stream": "stdout" }));
    assert_eq!(none["lines"], json!([]));
    home.finish();
}
