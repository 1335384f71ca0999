//! The first use of xy with popular client programs. Claude Code passes its environment on, Codex
//! strips it, and the file of either may contain xy itself.
//!
//! The tests need no model and no login.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::inspector;
use crate::peer::Peer;
use crate::stage::{Stage, install_folder};

const RUNTIME: &str = "XDG_RUNTIME_DIR";

/// The variables in an entry for xy, because Codex passes none of them on by default.
const PASSED_VARIABLES: [&str; 3] = ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_TESTKIT_MARK"];

fn program(stage: &Stage, name: &str, args: &[&str]) -> Command {
    let mut command = stage.home.command_of(&npm(&format!(".bin/{name}")), args);
    // No update check: the test contacts no other machine.
    command.env("DISABLE_AUTOUPDATER", "1").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    // `.bin/codex` is a Node script.
    let node = npm("node/bin");
    command.env("PATH", format!("{}:{}", node.display(), std::env::var("PATH").unwrap()));
    command
}

fn npm(path: &str) -> PathBuf {
    install_folder().join("npm/node_modules").join(path)
}

/// Runs a program to its end and returns its output; it must succeed.
#[track_caller]
fn output_of(mut command: Command) -> String {
    let ran = command.output().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", ran.status);
    stdout
}

/// Returns the variables of an entry as `NAME=value`.
fn passed_variables(stage: &Stage) -> Vec<String> {
    let command = stage.home.command(&[]);
    let value = |name: &str| {
        let mut all = command.get_envs().filter(|(it, _)| it.to_str() == Some(name));
        all.next().unwrap().1.unwrap().to_str().unwrap().to_owned()
    };
    PASSED_VARIABLES.iter().map(|name| format!("{name}={}", value(name))).collect()
}

/// Adds `xy connect` to the user's file of Claude Code, with `claude mcp add`.
fn add_to_claude(stage: &Stage) {
    let mut args = vec!["mcp", "add", "--scope", "user", "xy"];
    let named = passed_variables(stage);
    args.extend(named.iter().flat_map(|pair| ["--env", pair]));
    args.extend(["--", env!("CARGO_BIN_EXE_xy"), "connect"]);
    output_of(program(stage, "claude", &args));
}

/// Adds `xy connect` to the file of Codex, with `codex mcp add`.
fn add_to_codex(stage: &Stage) {
    let mut args = vec!["mcp", "add", "xy"];
    let named = passed_variables(stage);
    args.extend(named.iter().flat_map(|pair| ["--env", pair]));
    args.extend(["--", env!("CARGO_BIN_EXE_xy"), "connect"]);
    output_of(program(stage, "codex", &args));
}

/// Connects Claude Code, which passes `XDG_RUNTIME_DIR` on.
#[track_caller]
fn connect_claude(stage: &Stage) {
    let output = output_of(program(stage, "claude", &["mcp", "list"]));
    assert!(output.contains("Connected"), "{output}");
}

/// Connects Codex, which does not pass `XDG_RUNTIME_DIR` on, until it sees the server's tools. On a
/// busy machine, the server of a new daemon starts more slowly than Codex waits for its tools.
#[track_caller]
fn connect_codex(stage: &Stage) {
    stage.home.wait_until("Codex sees the tools", || sees_tools_in_codex(stage));
}

#[track_caller]
fn sees_tools_in_codex(stage: &Stage) -> bool {
    let mut codex = Peer::start(stage, "codex", program(stage, "codex", &["app-server"]));
    let client = json!({ "name": "test", "title": "test", "version": "1" });
    codex.send(&json!({ "id": 1, "method": "initialize", "params": { "clientInfo": client } }));
    answer(&codex, 1);
    codex.send(&json!({ "method": "initialized" }));
    codex.send(&json!({ "id": 2, "method": "mcpServerStatus/list", "params": {} }));
    let status = answer(&codex, 2);
    codex.leave(stage);
    let server = &status["result"]["data"][0];
    assert_eq!(server["name"], "xy", "{status}");
    server["tools"].get("time__get_current_time").is_some()
}

/// Waits for the answer with this id, and skips other messages of Codex.
#[track_caller]
fn answer(codex: &Peer, id: u64) -> Value {
    loop {
        let output = codex.receive();
        if output["id"] == id {
            return output;
        }
    }
}

/// Runs a verb with or without `XDG_RUNTIME_DIR`; it must succeed.
#[track_caller]
fn xy(stage: &Stage, has_runtime: bool, args: &[&str]) -> String {
    let mut command = stage.home.command(args);
    if !has_runtime {
        command.env_remove(RUNTIME);
    }
    output_of(command)
}

/// Returns the process id of the daemon that this environment finds.
#[track_caller]
fn daemon_pid(stage: &Stage, has_runtime: bool) -> Value {
    let info: Value = serde_json::from_str(&xy(stage, has_runtime, &["info", "--json"])).unwrap();
    info["pid"].clone()
}

#[test]
fn claude_code_and_codex_find_the_daemon() {
    let stage = Stage::of(&["time"]);
    add_to_claude(&stage);
    add_to_codex(&stage);
    for has_runtime in [true, false] {
        xy(&stage, has_runtime, &["daemon", "--detach"]);
        let pid = daemon_pid(&stage, has_runtime);
        stage.home.wait_until("the server runs", || {
            xy(&stage, !has_runtime, &["list"]).contains("running")
        });
        connect_claude(&stage);
        connect_codex(&stage);
        assert_eq!(daemon_pid(&stage, !has_runtime), pid, "there is a second daemon");
        xy(&stage, !has_runtime, &["shutdown"]);
    }
    stage.home.finish();
}

#[test]
fn daemon_started_by_a_client_is_found_by_others() {
    let stage = Stage::of(&["time"]);
    add_to_claude(&stage);
    add_to_codex(&stage);
    for codex_is_first in [true, false] {
        let connects = if codex_is_first { connect_codex } else { connect_claude };
        connects(&stage);
        let pid = daemon_pid(&stage, true);
        let connects = if codex_is_first { connect_claude } else { connect_codex };
        connects(&stage);
        assert_eq!(daemon_pid(&stage, false), pid, "there is a second daemon");
        xy(&stage, true, &["shutdown"]);
    }
    stage.home.finish();
}

/// Returns the names of all tools, read by the inspector over HTTP with the plain token.
#[track_caller]
fn tools(stage: &Stage) -> Vec<String> {
    let (url, token) = over_http(stage);
    let target = [&url, "--transport", "http", "--header", &token];
    let listed = inspector::ask(stage, &target, &["tools/list"]);
    let names = listed["tools"].as_array().unwrap().iter();
    names.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn over_http(stage: &Stage) -> (String, String) {
    (stage.url(), format!("Authorization: Bearer {}", stage.home.gateway_token()))
}

#[test]
fn claude_code_file_with_xy_causes_no_self_reference() {
    let stage = Stage::of(&["time"]);
    add_to_claude(&stage);
    let file = stage.home.root().join("home/.claude.json");
    assert!(fs::read_to_string(&file).unwrap().contains("connect"));
    let daemon = stage.home.daemon_with(&["--mcp-json", file.to_str().unwrap()]);
    stage.home.wait_for_state("time", "running");
    let before = tools(&stage);
    assert!(before.iter().any(|name| name == "time__get_current_time"), "{before:?}");
    connect_claude(&stage);
    let after = tools(&stage);
    assert_eq!(after, before);
    assert!(!after.iter().any(|name| name.starts_with("xy__")), "{after:?}");
    let text = daemon.stderr();
    assert!(text.contains("`xy`"), "the entry is skipped without a message: {text}");
    stage.home.finish();
}

#[test]
fn plain_token_cannot_use_admin_tools_through_nested_xy() {
    let stage = Stage::of(&["time"]);
    let daemon = stage.home.daemon();
    stage.home.wait_for_state("time", "running");
    let before = tools(&stage);
    let refused = stage.home.xy(&["add", "me", "--", env!("CARGO_BIN_EXE_xy"), "connect"]);
    assert_eq!(refused.code, 1, "{refused:?}");

    // The command does not show that this script runs xy.
    let script = stage.home.root().join("work/start.sh");
    fs::write(&script, format!("exec {:?} connect\n", env!("CARGO_BIN_EXE_xy"))).unwrap();
    let added = stage.home.xy(&["add", "me", "--", "/bin/sh", script.to_str().unwrap()]);
    assert_ne!(added.code, 0, "{added:?}");
    assert_eq!(tools(&stage), before);

    let evidence = stage.home.root().join("work/evidence");
    let (url, token) = over_http(&stage);
    for name in ["me__add_server", "xy__add_server", "add_server"] {
        let mut command = stage.inspector(&[&url, "--transport", "http", "--header", &token]);
        command.args(["--method", "tools/call", "--tool-name", name]);
        command.args(["--tool-arg", "name=evil", "--tool-arg", "command=touch"]);
        command.args(["--tool-arg", &format!("args={}", json!([evidence]))]);
        let ran = command.output().unwrap();
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(!ran.status.success() || output.contains("rror"), "{name}: {output}");
        assert!(!evidence.exists(), "{name} ran a command");
    }
    assert!(daemon.is_running());
    stage.home.finish();
}
