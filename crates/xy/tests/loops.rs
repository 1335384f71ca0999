//! xy behind xy: a daemon never serves itself, and two daemons may serve each other's servers.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::{ask, home, status};
use xy_testkit::{Home, McpHttp, Ran};

const XY: &str = env!("CARGO_BIN_EXE_xy");

/// Returns a home whose daemon serves one server, `one`.
fn home_of_one() -> Home {
    let home = home();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    home.wait_for_state("one", "running");
    home
}

fn names(home: &Home) -> Vec<String> {
    let list = ask(home, "list", Value::Null);
    list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the tools that an HTTP client sees.
fn tools(home: &Home) -> Vec<String> {
    let client = home.mcp_http("/mcp");
    client.initialize();
    client.tool_names()
}

/// Writes a script that executes `xy connect`.
fn wrapper(home: &Home, env: &str) -> String {
    let file = home.root().join("harness/wrapper");
    fs::write(&file, format!("#!/bin/sh\n{env}exec {XY} connect \"$@\"\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Copies the xy program to a file with another name.
fn copy(home: &Home) -> String {
    let file = home.root().join("harness/gate");
    fs::copy(XY, &file).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A program that relays its stdin to a URL, as `npx mcp-remote` does, or a server in a container.
/// With `modern`, it also sets the headers of the revision without sessions. Like those programs,
/// it drops the answer to a request that failed.
const RELAY: &str = r#"
import http.client, json, sys, urllib.parse

url, token, era = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2], sys.argv[3]
session = None
for line in sys.stdin.buffer:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": "Bearer " + token,
    }
    if session:
        headers["Mcp-Session-Id"] = session
    message = json.loads(line)
    meta = message.get("params", {}).get("_meta", {})
    version = meta.get("io.modelcontextprotocol/protocolVersion")
    if era == "modern" and version:
        headers["MCP-Protocol-Version"] = version
        headers["Mcp-Method"] = message["method"]
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    connection.request("POST", url.path, line.strip(), headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    session = answer.headers.get("Mcp-Session-Id", session)
    if answer.status != 200:
        print("status", answer.status, file=sys.stderr, flush=True)
    elif answer.headers.get_content_type() == "text/event-stream":
        for text in body.splitlines():
            if text.startswith("data: {"):
                print(text[len("data: "):], flush=True)
    else:
        print(body, flush=True)
"#;

/// Returns the path of Python itself. A wrapper on `PATH` may need the user's home.
fn python() -> String {
    let mut python = Command::new("python3");
    let output = python.args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn add_url(home: &Home, name: &str, to: &Home, path: &str, more: &[&str]) -> Ran {
    let url = format!("http://{}{path}", to.gateway_address());
    let token = fs::read_to_string(to.root().join("state/xy/manage-token")).unwrap();
    let header = format!("Authorization: Bearer {}", token.trim());
    home.xy(&[&["add", name, "--url", &url, "--header", &header], more].concat())
}

#[test]
fn server_that_is_xy_itself_is_not_added() {
    let home = home_of_one();
    let link = home.root().join("harness/other-name");
    symlink(XY, &link).unwrap();
    for program in [XY, link.to_str().unwrap()] {
        let refused = home.xy(&["add", "me", "--", program, "connect"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("connects to this daemon"), "{refused:?}");
        assert!(refused.stderr.contains("hint: "), "{refused:?}");
    }
    let again = home.xy(&["add", "me", "--", XY, "connect", "--direct", "me"]);
    assert!(again.stderr.contains("recursively"), "{again:?}");
    assert_eq!(names(&home), ["one"]);
    home.finish();
}

#[test]
fn hidden_xy_fails_at_the_first_hop() {
    let home = home();
    home.mcp_server("one", &["--only-tools"]);
    let (wrapper, copy) = (wrapper(&home, ""), copy(&home));
    let policy = "restart { policy \"always\"; backoff-initial \"0s\"; max-attempts 0 }\n";
    home.write_config("servers/script.kdl", &format!("command \"{wrapper}\"\n{policy}"));
    home.write_config(
        "servers/gate.kdl",
        &format!("command \"{copy}\"\nargs \"connect\"\n{policy}"),
    );
    home.daemon();
    home.wait_for_state("one", "running");
    for name in ["script", "gate"] {
        let failed = home.wait_for_state(name, "failed");
        let reason = failed["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("leads back to this xy daemon"), "{failed:#}");
        assert_eq!(failed["restart_count"], 0, "{failed:#}");
    }
    let tools = tools(&home);
    assert!(tools.iter().all(|it| it.starts_with("one__")), "{tools:?}");

    let refused = home.xy(&["add", "more", "--", &wrapper]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("leads back to this xy daemon"), "{refused:?}");
    assert_eq!(names(&home), ["gate", "one", "script"]);
    home.finish();
}

#[test]
fn xy_behind_a_relay_fails_at_the_first_hop() {
    let home = home_of_one();
    let relay = home.root().join("harness/relay.py");
    fs::write(&relay, RELAY).unwrap();
    let (python, relay) = (python(), relay.to_str().unwrap().to_owned());
    let (url, token) = (format!("http://{}/mcp", home.gateway_address()), home.gateway_token());
    let ready = "ready { within \"60s\" }\n";
    let policy = "restart { policy \"always\"; backoff-initial \"0s\"; max-attempts 0 }\n";
    let eras = ["legacy", "modern"];
    for era in eras {
        let args = [&*relay, &*url, &*token, era];
        let add = [&["add", "more", "--ready-within", "60s", "--", &*python][..], &args].concat();
        let refused = home.xy(&add);
        assert_eq!(refused.code, 1, "{era}: {refused:?}");
        assert!(refused.stderr.contains("leads back to this xy daemon"), "{era}: {refused:?}");
        assert_eq!(names(&home), ["one"]);
        let args = args.map(|word| format!(" {word:?}")).concat();
        let file = format!("command {python:?}\nargs{args}\n{ready}{policy}");
        home.write_config(&format!("servers/{era}.kdl"), &file);
    }
    ask(&home, "reload", Value::Null);
    for era in eras {
        let failed = home.wait_for_state(era, "failed");
        let reason = failed["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("leads back to this xy daemon"), "{failed:#}");
        assert_eq!(failed["restart_count"], 0, "{failed:#}");
    }
    let tools = tools(&home);
    assert!(!tools.is_empty() && tools.iter().all(|it| it.starts_with("one__")), "{tools:?}");
    home.finish();
}

#[test]
fn config_entries_that_are_xy_itself_are_skipped_and_reported() {
    let home = home();
    let file = home.root().join("client.json");
    home.expect_left("client.json");
    let one = home.program("xy-test-mcp");
    let servers =
        json!({ "xy": { "command": XY, "args": ["connect"] }, "one": { "command": one } });
    fs::write(&file, json!({ "mcpServers": servers }).to_string()).unwrap();
    home.write_config("servers/me.kdl", &format!("command \"{XY}\"\nargs \"connect\"\n"));
    home.write_config("servers/web.kdl", "url \"http://127.0.0.1:47979/mcp\"\n");
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:47979\" }\n");
    let file = file.to_str().unwrap();
    let report = home.xy(&["check", "--mcp-json", file]);
    assert_eq!(report.code, 0, "{report:?}");
    for name in ["xy", "me", "web"] {
        let text = format!("server `{name}` is this daemon itself, and is not used");
        assert!(report.stdout.contains(&text), "{report:?}");
    }
    home.write_config("xy.kdl", "");
    home.remove_server("web");
    let daemon = home.daemon_with(&["--mcp-json", file]);
    home.wait_for_state("one", "running");
    assert_eq!(names(&home), ["one"]);
    assert!(daemon.stderr().contains("server `xy` is this daemon itself"), "{}", daemon.stderr());
    home.finish();
}

#[test]
fn daemons_own_address_is_refused() {
    let home = home_of_one();
    for (path, more) in [
        ("/mcp", &[][..]),
        ("/mcp/p/default", &[]),
        ("/mcp/s/one", &[]),
        ("/sse", &["--transport", "sse"]),
    ] {
        let refused = add_url(&home, "me", &home, path, more);
        assert_eq!(refused.code, 1, "{path}: {refused:?}");
        assert!(refused.stderr.contains("leads back to this xy daemon"), "{path}: {refused:?}");
    }
    assert!(tools(&home).iter().all(|it| it.starts_with("one__")));
    home.finish();
}

/// Asserts that one daemon serves the tools of another, without its managing tools.
#[track_caller]
fn assert_chained(near: &Home, far: &Home) {
    near.wait_for_state("far", "running");
    let plain = near.mcp_http("/mcp");
    plain.initialize();
    near.wait_until("its tools are there", || {
        plain.tool_names().contains(&"far__one__echo".to_owned())
    });
    let echoed = plain.call_text("far__one__echo", json!({ "message": "hello" }));
    assert_eq!(echoed, "hello");
    let tools = plain.tool_names();
    assert!(tools.iter().all(|it| it.contains("one__")), "{tools:?}");
    let file = far.root().join("harness/ran");
    let arguments = json!({ "name": "evil", "command": "/bin/touch", "args": [file] });
    let alone = McpHttp::new(&near.gateway_address(), "/mcp/s/far", &near.gateway_token());
    alone.initialize();
    assert!(!alone.tool_names().contains(&"add_server".to_owned()));
    for refused in
        [plain.call("far__add_server", arguments.clone()), alone.call("add_server", arguments)]
    {
        assert!(refused["error"].is_object(), "{refused:#}");
    }
    assert!(!Path::new(&file).exists());
    assert_eq!(names(far), ["one"]);
}

#[test]
fn daemon_served_over_http_cannot_be_managed_through_another() {
    let (near, far) = (home_of_one(), home_of_one());
    let added = add_url(&near, "far", &far, "/mcp", &[]);
    assert_eq!(added.code, 0, "{added:?}");
    assert_chained(&near, &far);

    // The reverse direction would close a ring.
    for path in ["/mcp", "/mcp/s/far", "/mcp/s/one"] {
        let back = add_url(&far, "near", &near, path, &[]);
        assert_eq!(back.code, 1, "{path}: {back:?}");
        assert!(back.stderr.contains("leads back to this xy daemon"), "{path}: {back:?}");
    }
    assert_eq!(status(&near, "far")["state"], "running");
    near.finish();
    far.finish();
}

#[test]
fn daemon_served_over_stdio_cannot_be_managed_through_another() {
    let (near, far) = (home_of_one(), home_of_one());
    let folder = |name: &str| far.root().join(name).display().to_string();
    let env = format!(
        "export XDG_CONFIG_HOME={} XDG_STATE_HOME={} XDG_RUNTIME_DIR={} HOME={}\n",
        folder("config"),
        folder("state"),
        folder("run"),
        folder("home")
    );
    let added = near.xy(&["add", "far", "--", &wrapper(&near, &env)]);
    assert_eq!(added.code, 0, "{added:?}");
    assert_chained(&near, &far);
    near.finish();
    far.finish();
}
