//! Servers on published SDKs that read nothing for a while after their start. Each is served in the
//! era to which its process is pinned, after every start.

use std::fs;
use std::path::Path;

use serde_json::json;
use xy_testkit::McpModern;

use crate::lab::Lab;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// The servers, each with its revision until a modern client calls it. A name is the SDK, the era,
/// and `noisy` if the server writes lines to stdout that are no JSON, as many servers do.
const SERVERS: [(&str, &str); 9] = [
    // In this SDK `server/discover` pins nothing, and `initialize` pins the legacy era.
    ("ts-both", LEGACY),
    ("ts-modern", MODERN),
    ("ts-legacy", LEGACY),
    ("ts-both-noisy", LEGACY),
    // In these SDKs `server/discover` pins the modern era, so a new process gets `initialize`.
    ("py-both", LEGACY),
    ("py-modern", MODERN),
    ("py-legacy", LEGACY),
    ("py-both-noisy", LEGACY),
    ("fastmcp-both", LEGACY),
];

/// Writes the file of a slow server. It starts to read after the delay of [`read_after`].
fn serve(lab: &Lab, name: &str) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/servers");
    let script = |name: &str| scripts.join(name).to_str().unwrap().to_owned();
    let delay = lab.home.root().join("harness/delay").to_str().unwrap().to_owned();
    let words: Vec<&str> = name.split('-').collect();
    let (program, script) = match words[..2] {
        ["ts", _] => ("npm/node_modules/node/bin/node", script("slow.mjs")),
        ["py", "legacy"] => ("clients/bin/python", script("slow.py")),
        ["py", _] => ("clients2/bin/python", script("slow.py")),
        _ => ("fastmcp/bin/python", script("slow.py")),
    };
    let mut command = vec![lab.installed_path(program), script, words[1].to_owned(), delay];
    command.extend(words[2..].iter().map(|word| (*word).to_owned()));
    let env = format!("env {{ SDK_FOLDER {:?}; }}\n", lab.installed_path("npm"));
    // The start timeout is long: the machine may be busy.
    let kdl = format!("{}{env}ready {{ within \"2m\"; }}\n", Lab::kdl_of(&command));
    lab.home.write_config(&format!("servers/{name}.kdl"), &kdl);
}

/// Sets the delay of all servers of a home, from their next start on.
fn read_after(lab: &Lab, seconds: u32) {
    fs::write(lab.home.root().join("harness/delay"), seconds.to_string()).unwrap();
}

/// Checks the revision of a server, and calls its tool.
#[track_caller]
fn assert_speaks(lab: &Lab, name: &str, version: &str) {
    lab.home.wait_for_state(name, "running");
    let spoken = || lab.home.xy_json(&["status", name])["protocol"].clone();
    lab.home.wait_until("a revision is negotiated", || spoken().is_string());
    assert_eq!(spoken(), version, "{name}");
    let client = lab.home.mcp_connect(&["--server", name]);
    client.initialize();
    assert_eq!(client.call_text("say", json!({ "text": name })), format!("said: {name}"));
    assert!(client.close().success());
}

#[track_caller]
fn restart(lab: &Lab, which: &str) {
    let ran = lab.home.xy(&["restart", "--no-wait", which]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

/// Starts all servers with this delay, and restarts them. Checks the era of each server in both
/// lives.
fn start_and_restart_all(seconds: u32) {
    let lab = Lab::new();
    read_after(&lab, seconds);
    for (name, _) in SERVERS {
        serve(&lab, name);
    }
    let _daemon = lab.home.daemon();
    for (name, version) in SERVERS {
        // A server that its first request pins needs a second process, so its start takes twice as
        // long.
        lab.home.wait_until("the first process has answered", || {
            let status = lab.home.xy_json(&["status", name]);
            status["transitions"].as_array().is_some_and(|all| all.len() >= 2)
        });
        assert_speaks(&lab, name, version);
    }
    restart(&lab, "--all");
    for (name, version) in SERVERS {
        assert_speaks(&lab, name, version);
    }
    lab.home.finish();
}

#[test]
fn server_delayed_by_3_seconds_is_served_in_its_era() {
    start_and_restart_all(3);
}

#[test]
fn server_delayed_by_10_seconds_is_served_in_its_era() {
    start_and_restart_all(10);
}

#[test]
fn server_delayed_by_30_seconds_is_served_in_its_era() {
    start_and_restart_all(30);
}

#[test]
fn slower_dual_era_server_answers_modern_call() {
    let lab = Lab::new();
    read_after(&lab, 0);
    serve(&lab, "ts-both");
    let _daemon = lab.home.daemon();
    let modern = McpModern::http(&lab.home.gateway_address(), "/mcp/s/ts-both", "none");
    let call = || {
        let answer = modern.call_tool("say", json!({ "text": "x" }));
        assert_eq!(answer["result"]["content"][0]["text"], "said: x", "{answer}");
    };
    lab.home.wait_for_state("ts-both", "running");
    call();
    let spoken = || lab.home.xy_json(&["status", "ts-both"])["protocol"].clone();
    assert_eq!(spoken(), MODERN);
    // The server now gets `initialize` too, which pins it to the legacy era.
    read_after(&lab, 8);
    restart(&lab, "ts-both");
    lab.home.wait_for_state("ts-both", "running");
    lab.home.wait_until("xy uses the legacy era", || spoken() == LEGACY);
    call();
    assert_eq!(lab.home.xy_json(&["status", "ts-both"])["restarts_total"], 0);
    lab.home.finish();
}
