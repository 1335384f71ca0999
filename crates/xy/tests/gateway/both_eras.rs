//! A server that speaks both eras: each client is served in its own era, as without xy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpModern, free_port};

use crate::fixtures::{capabilities, home, ready};
use crate::support::{signal, status};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// Writes the file of a server that speaks both eras over pipes.
fn write_server(home: &Home, more: &str) {
    let kdl = home.kdl_command("xy-test-fixture", &["--stdio", "--era", "both"]);
    home.write_config("servers/s.kdl", &format!("{kdl}{more}"));
}

/// Returns a home with such a server, which runs, and its daemon.
#[track_caller]
fn home_with(more: &str) -> Home {
    let home = home();
    write_server(&home, more);
    home.daemon();
    ready(&home, &["s"]);
    home
}

/// Returns a legacy client of the server, with all capabilities.
#[track_caller]
fn legacy(home: &Home) -> xy_testkit::McpHttp {
    let client = home.mcp_http("/mcp/s/s");
    client.initialize_with(&capabilities());
    client.answer_with(|question| {
        let is_it = question["method"] == "sampling/createMessage";
        let content = json!({ "type": "text", "text": "from the client" });
        is_it.then(|| Ok(json!({ "role": "assistant", "content": content, "model": "m" })))
    });
    client
}

/// Returns a modern client of the server.
#[track_caller]
fn modern(home: &Home) -> McpModern {
    McpModern::http(&home.gateway_address(), "/mcp/s/s", &home.gateway_token())
}

/// Calls a tool that answers at once.
#[track_caller]
fn call_modern(client: &McpModern) {
    let answer = client.call_tool("test_simple_text", json!({}));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

/// Calls a tool that answers at once, as a legacy client.
#[track_caller]
fn call_legacy(client: &McpClient) {
    let answer = client.call("test_simple_text", json!({}));
    assert!(answer["result"]["content"].is_array(), "{answer}");
}

/// Calls a tool that sends a request to its client during the call.
#[track_caller]
fn call_with_server_request(client: &McpClient) {
    let answer = client.call("test_sampling", json!({ "prompt": "x" }));
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("from the client"), "{answer}");
}

/// Returns the revision of the shared process, and the eras of all processes that run or start.
#[track_caller]
fn spoken(home: &Home) -> (String, Vec<String>) {
    let now = status(home, "s");
    let is_up = |it: &&Value| it["state"] == "running" || it["state"] == "starting";
    let up = now["instances"].as_array().unwrap().iter().filter(is_up);
    let eras = up.map(|it| it["era"].as_str().unwrap_or("shared").to_owned());
    (now["protocol"].as_str().unwrap_or_default().to_owned(), eras.collect())
}

/// Waits until the processes are these: `status` may lag behind the answer to a call.
#[track_caller]
fn expect_spoken(home: &Home, expected: &(String, Vec<String>)) {
    home.wait_until(&format!("the processes are {expected:?}"), || spoken(home) == *expected);
}

fn one(protocol: &str) -> (String, Vec<String>) {
    (protocol.to_owned(), vec!["shared".to_owned()])
}

fn two(protocol: &str, second: &str) -> (String, Vec<String>) {
    (protocol.to_owned(), vec!["shared".to_owned(), second.to_owned()])
}

#[test]
fn uncalled_server_is_greeted_in_the_legacy_era() {
    let home = home_with("");
    expect_spoken(&home, &one(LEGACY));
    let now = status(&home, "s");
    assert_eq!((&now["restarts_total"], &now["restart_count"]), (&json!(0), &json!(0)), "{now}");
    call_with_server_request(&legacy(&home));
    expect_spoken(&home, &one(LEGACY));
    home.finish();
}

#[test]
fn clients_of_one_era_share_a_process_of_that_era() {
    let home = home_with("");
    call_modern(&modern(&home));
    expect_spoken(&home, &one(MODERN));
    assert_eq!(status(&home, "s")["restarts_total"], 0, "started over by xy");
    assert_eq!(home.xy(&["restart", "s"]).code, 0);
    ready(&home, &["s"]);
    expect_spoken(&home, &one(MODERN)); // The era of the last call.
    let manifest = home.root().join("state/xy/manifests/s.json");
    let is_kept = || {
        std::fs::read_to_string(&manifest)
            .is_ok_and(|text| text.contains(r#""last_called":"modern""#))
    };
    home.wait_until("the era is remembered", is_kept);
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    home.daemon();
    ready(&home, &["s"]);
    expect_spoken(&home, &one(MODERN)); // Remembered across daemons.
    home.finish();
}

#[test]
fn clients_of_both_eras_have_a_process_each() {
    let home = home_with("");
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_with_server_request(&legacy);
    expect_spoken(&home, &one(LEGACY)); // No client has called in the modern era.
    assert!(modern.request("tools/list", json!({}))["result"]["tools"].is_array());
    expect_spoken(&home, &one(LEGACY)); // Lists need no second process.
    call_modern(&modern);
    expect_spoken(&home, &two(LEGACY, "modern"));
    call_with_server_request(&legacy);
    call_modern(&modern);
    let shown = home.xy(&["status", "s"]).stdout;
    let expected = "running for modern clients (2026-07-28), with separate state";
    assert!(shown.contains(expected), "{shown}");
    let second = second(&home);
    assert!(std::path::Path::new(second["log_file"].as_str().unwrap()).ends_with("s@modern.log"));
    home.finish();
}

/// Returns the second process.
#[track_caller]
fn second(home: &Home) -> Value {
    let now = status(home, "s");
    let found = now["instances"].as_array().unwrap().iter().find(|it| it.get("era").is_some());
    found.unwrap_or_else(|| panic!("{now}")).clone()
}

#[test]
fn second_process_restarts_and_stops_with_its_server() {
    let home = home_with("restart { backoff-initial \"0s\"; max-attempts 0 }\n");
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_with_server_request(&legacy);
    call_modern(&modern);
    let first = second(&home)["pid"].as_u64().unwrap();
    signal(u32::try_from(first).unwrap(), Signal::KILL);
    home.wait_until("the second process is back", || {
        let second = second(&home);
        second["state"] == "running" && second["pid"] != first
    });
    call_modern(&modern);
    call_with_server_request(&legacy);
    assert_eq!(home.xy(&["stop", "s"]).code, 0);
    home.wait_until("both have ended", || spoken(&home).1.is_empty());
    assert_eq!(home.xy(&["start", "s"]).code, 0);
    ready(&home, &["s"]);
    call_modern(&modern);
    call_with_server_request(&legacy);
    home.finish();
}

#[test]
fn restart_replaces_both_processes() {
    for is_modern_last in [false, true] {
        let home = home_with("");
        let (modern, legacy) = (modern(&home), legacy(&home));
        call_with_server_request(&legacy);
        call_modern(&modern);
        if !is_modern_last {
            call_with_server_request(&legacy);
        }
        let pids = |home: &Home| [status(home, "s")["pid"].clone(), second(home)["pid"].clone()];
        let before = pids(&home);
        assert_eq!(home.xy(&["restart", "s"]).code, 0);
        expect_spoken(&home, &two(LEGACY, "modern"));
        let after = pids(&home);
        assert!(after.iter().all(|it| it.is_u64() && !before.contains(it)), "{before:?} {after:?}");
        assert!(is_served_as_modern(&modern));
        call_with_server_request(&legacy);
        expect_spoken(&home, &two(LEGACY, "modern"));
        home.finish();
    }
}

#[test]
fn legacy_client_sees_the_legacy_server_while_a_modern_process_runs() {
    let home = home_with("");
    let introduce = |home: &Home| {
        let client = home.mcp_http("/mcp/s/s");
        client.initialize_with(&capabilities())
    };
    let expected = introduce(&home);
    expect_spoken(&home, &one(LEGACY));
    assert_eq!(expected["capabilities"]["resources"]["subscribe"], true, "{expected}");
    let modern = modern(&home);
    assert!(is_served_as_modern(&modern));
    expect_spoken(&home, &one(MODERN));
    assert_eq!(introduce(&home), expected);
    expect_spoken(&home, &one(MODERN)); // An introduction needs no second process.
    home.finish();
}

#[test]
fn both_processes_survive_a_killed_daemon() {
    let home = home();
    write_server(&home, "");
    let daemon = home.daemon();
    ready(&home, &["s"]);
    call_with_server_request(&legacy(&home));
    call_modern(&modern(&home));
    let pids = |home: &Home| [status(home, "s")["pid"].clone(), second(home)["pid"].clone()];
    let before = pids(&home);
    daemon.kill9();
    home.daemon();
    ready(&home, &["s"]);
    expect_spoken(&home, &two(LEGACY, "modern"));
    // For a minute the adopted server cannot ask: it may mean a client of the earlier daemon.
    call_legacy(&legacy(&home));
    let client = modern(&home);
    call_modern(&client);
    assert!(is_served_as_modern(&client));
    assert_eq!(pids(&home), before);
    assert_eq!(home.xy(&["stop", "s"]).code, 0);
    home.wait_until("both have ended", || spoken(&home).1.is_empty());
    home.finish();
}

/// Waits until the server's log says that the second process did not start.
#[track_caller]
fn wait_until_told(home: &Home) {
    let expected = "a second process for clients of the other MCP era did not start";
    home.wait_until("the log says so", || home.xy(&["logs", "s"]).stdout.contains(expected));
}

#[test]
fn clients_share_one_process_without_room_for_a_second() {
    let home = home();
    write_server(&home, "");
    home.write_config("xy.kdl", "instances { most 1; }\n");
    home.daemon();
    ready(&home, &["s"]);
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_with_server_request(&legacy);
    assert!(!is_served_as_modern(&modern));
    call_with_server_request(&legacy);
    expect_spoken(&home, &one(LEGACY));
    wait_until_told(&home);
    home.finish();
}

/// Writes a server of both eras whose second process runs `fate` at its start, as long as the file
/// that this function returns does not exist.
#[track_caller]
fn write_exclusive_server(home: &Home, fate: &str, more: &str) -> PathBuf {
    let in_harness = |name: &str| home.root().join("harness").join(name);
    let (script, lock, free) = (in_harness("exclusive"), in_harness("lock"), in_harness("free"));
    let (holder, unlocked) = (lock.display(), free.display());
    let program = home.program("xy-test-fixture");
    let text = format!(
        "#!/bin/sh\n\
         [ -e {unlocked} ] || [ ! -e {holder} ] || ! kill -0 $(cat {holder}) || {fate}\n\
         echo $$ >{holder}\n\
         exec {} --stdio --era both\n",
        program.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let kdl = home.kdl_command(script.to_str().unwrap(), &[]);
    home.write_config("servers/s.kdl", &format!("{kdl}{more}"));
    free
}

/// Returns true if a modern call reaches a process in the modern era, without the bridge.
#[track_caller]
fn is_served_as_modern(client: &McpModern) -> bool {
    let answer = client.call_tool("in_headers", json!({}));
    assert!(answer["result"]["content"].is_array(), "{answer}");
    answer["result"]["content"].to_string().contains("io.modelcontextprotocol/protocolVersion")
}

#[test]
fn clients_share_one_process_if_the_second_exits() {
    for (fate, more) in [("exit 1", ""), ("exec sleep 1000", "ready { within \"5s\"; }\n")] {
        let home = home();
        let free = write_exclusive_server(&home, fate, more);
        home.daemon();
        ready(&home, &["s"]);
        let (modern, legacy) = (modern(&home), legacy(&home));
        call_with_server_request(&legacy);
        assert!(!is_served_as_modern(&modern), "{fate}");
        assert!(!is_served_as_modern(&modern), "{fate}");
        call_with_server_request(&legacy);
        wait_until_told(&home);
        // The second process is tried again, at the latest at the next start.
        fs::write(free, "").unwrap();
        assert_eq!(home.xy(&["restart", "s"]).code, 0);
        call_with_server_request(&legacy);
        home.wait_until("modern calls are served by a process of their era", || {
            is_served_as_modern(&modern)
        });
        expect_spoken(&home, &two(LEGACY, "modern"));
        call_with_server_request(&legacy);
        home.finish();
    }
}

#[test]
fn second_process_that_starts_late_serves_its_clients() {
    let home = home();
    let free = write_exclusive_server(
        &home,
        "exit 1",
        "restart { backoff-initial \"100ms\"; max-attempts 0; max-retries-per-minute 0; backoff-max \"1s\"; }\n",
    );
    home.daemon();
    ready(&home, &["s"]);
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_with_server_request(&legacy);
    assert!(!is_served_as_modern(&modern));
    fs::write(free, "").unwrap();
    home.wait_until("modern calls are served by a process of their era", || {
        is_served_as_modern(&modern)
    });
    assert_eq!(status(&home, "s")["restarts_total"], 0, "the shared process runs on");
    home.finish();
}

#[test]
fn era_setting_keeps_one_process_of_one_era() {
    for (era, protocol) in [("legacy", LEGACY), ("modern", MODERN)] {
        let home = home_with(&format!("era \"{era}\"\n"));
        call_modern(&modern(&home));
        call_legacy(&legacy(&home));
        call_modern(&modern(&home));
        expect_spoken(&home, &one(protocol));
        assert_eq!(status(&home, "s")["restarts_total"], 0);
        home.finish();
    }
}

#[test]
fn changed_era_setting_takes_effect_on_reload() {
    let home = home_with("");
    call_with_server_request(&legacy(&home));
    call_modern(&modern(&home));
    expect_spoken(&home, &two(LEGACY, "modern"));
    write_server(&home, "era \"modern\"\n");
    assert_eq!(home.xy(&["reload"]).code, 0);
    expect_spoken(&home, &one(MODERN));
    call_modern(&modern(&home));
    home.finish();
}

#[test]
fn http_server_serves_both_eras_in_one_process() {
    let home = home();
    let port = free_port().to_string();
    let kdl = home.kdl_command("xy-test-fixture", &["--http", &port, "--era", "both"]);
    home.write_config("servers/s.kdl", &format!("{kdl}port {port}\n"));
    home.daemon();
    ready(&home, &["s"]);
    expect_spoken(&home, &one(MODERN));
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_modern(&modern);
    call_with_server_request(&legacy);
    call_modern(&modern);
    expect_spoken(&home, &one(MODERN)); // One process speaks both eras.
    home.finish();
}

/// Returns true if a legacy client's call reaches the server in the modern era, over the bridge.
#[track_caller]
fn is_bridged(client: &McpClient) -> bool {
    let answer = client.call("odd_echo", json!({}));
    assert!(answer["result"]["content"].is_array(), "{answer}");
    answer["result"]["content"].to_string().contains("io.modelcontextprotocol/protocolVersion")
}

#[test]
fn http_server_without_sessions_serves_each_client_in_the_fitting_era() {
    let home = home();
    let port = free_port().to_string();
    let args = ["--http", &port, "--era", "both", "--no-sessions"];
    let kdl = home.kdl_command("xy-test-fixture", &args);
    home.write_config("servers/s.kdl", &format!("{kdl}port {port}\n"));
    home.daemon();
    ready(&home, &["s"]);
    assert!(is_served_as_modern(&modern(&home)));
    let client_with = |capabilities: &Value| {
        let client = home.mcp_http("/mcp/s/s");
        client.initialize_with(capabilities);
        client
    };
    let plain = client_with(&json!({}));
    home.wait_until("the legacy era serves it", || !is_bridged(&plain));
    // The server cannot ask for these without a session, and the bridge can.
    for name in ["roots", "sampling", "elicitation"] {
        let client = client_with(&json!({ name: {} }));
        assert!(is_bridged(&client), "{name}");
        client.answer_with(|question| {
            let roots = json!({ "roots": [{ "uri": "file:///work", "name": "work" }] });
            (question["method"] == "roots/list").then_some(Ok(roots))
        });
        if name == "roots" {
            let answer = client.call("ask_roots", json!({}));
            assert!(answer.to_string().contains("file:///work"), "{answer}");
        }
    }
    assert!(!is_bridged(&plain));
    home.finish();
}

#[test]
fn isolated_clients_are_served_in_their_own_era() {
    let home = home();
    write_server(&home, "isolation \"client\"\n");
    home.daemon();
    let (modern, legacy) = (modern(&home), legacy(&home));
    call_with_server_request(&legacy);
    assert!(is_served_as_modern(&modern));
    call_with_server_request(&legacy);
    home.finish();
}
