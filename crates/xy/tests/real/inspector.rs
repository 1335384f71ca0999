//! The MCP inspector in command line mode: over stdio by `xy connect`, and over HTTP with the
//! token.

use std::fs::File;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::stage::Stage;

/// Sends a request with the inspector, which connects to `target`, and returns the result.
#[track_caller]
pub(crate) fn ask(stage: &Stage, target: &[&str], method: &[&str]) -> Value {
    let args = [target, &["--format", "json", "--method"], method].concat();
    let output = stage.home.root().join("harness/inspector");
    let [stdout, stderr] = ["stdout", "stderr"].map(|it| output.with_extension(it));
    let mut command = stage.inspector(&args);
    command.stdin(Stdio::null()).stdout(File::create(&stdout).unwrap());
    command.stderr(File::create(&stderr).unwrap());
    let mut child = command.spawn().unwrap();
    let status = stage.home.wait_until("the inspector is done", || child.try_wait().unwrap());
    let [stdout, stderr] = [stdout, stderr].map(|it| std::fs::read_to_string(it).unwrap());
    assert!(status.success(), "{method:?}: {status}\nstdout: {stdout}\nstderr: {stderr}");
    let mut answer: Value = serde_json::from_str(&stdout)
        .unwrap_or_else(|cause| panic!("{method:?}: {cause}: {stdout}"));
    answer["result"].take()
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter().map(|it| it[field].as_str().unwrap().to_owned()).collect()
}

fn assert_uses_everything(stage: &Stage, target: &[&str]) {
    let ask = |method: &[&str]| ask(stage, target, method);

    let tools = names(&ask(&["tools/list"])["tools"], "name");
    for tool in ["everything__echo", "files__write_file", "git__git_log", "time__convert_time"] {
        assert!(tools.contains(&tool.to_owned()), "no {tool}: {tools:?}");
    }
    let prompts = names(&ask(&["prompts/list"])["prompts"], "name");
    assert!(prompts.contains(&"everything__simple-prompt".to_owned()), "{prompts:?}");
    let resources = names(&ask(&["resources/list"])["resources"], "uri");
    let document = "xy://everything/demo://resource/static/document/features.md";
    assert!(resources.contains(&document.to_owned()), "{resources:?}");

    let echo = ["tools/call", "--tool-name", "everything__echo", "--tool-arg", "message=hello"];
    assert_eq!(ask(&echo)["content"], json!([{ "type": "text", "text": "Echo: hello" }]));
    let zone = "timezone=Europe/Berlin";
    let time = ["tools/call", "--tool-name", "time__get_current_time", "--tool-arg", zone];
    let time = ask(&time)["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(time.contains("Europe/Berlin"), "{time}");
    let fact = r#"entities=[{"name":"xy","entityType":"daemon","observations":["keeps servers"]}]"#;
    ask(&["tools/call", "--tool-name", "memory__create_entities", "--tool-arg", fact]);
    let graph = ask(&["tools/call", "--tool-name", "memory__read_graph"]);
    assert_eq!(names(&graph["structuredContent"]["entities"], "name"), ["xy"], "{graph}");
    let read = ask(&["resources/read", "--uri", document]);
    let text = read["contents"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("# Everything Server"), "{text}");
}

#[test]
fn inspector_uses_all_servers_over_stdio() {
    let (stage, _daemon) = Stage::with_daemon();
    let way = stage.inspected_stdio();
    assert_uses_everything(&stage, &way.iter().map(String::as_str).collect::<Vec<_>>());
    stage.home.finish();
}

#[test]
fn inspector_uses_all_servers_over_http() {
    let (stage, _daemon) = Stage::with_daemon();
    let authorization = format!("Authorization: Bearer {}", stage.home.gateway_token());
    let url = stage.url();
    assert_uses_everything(&stage, &[&url, "--transport", "http", "--header", &authorization]);
    stage.home.finish();
}

/// The inspector as a client of the era without `initialize`.
#[test]
fn modern_inspector_uses_servers_of_both_eras() {
    let (stage, _daemon) = Stage::with_daemon();
    let authorization = format!("Authorization: Bearer {}", stage.home.gateway_token());
    let url = stage.url();
    let modern = ["--protocol-era", "modern"];
    let http = [&url, "--transport", "http", "--header", &authorization];
    assert_uses_everything(&stage, &[&http[..], &modern].concat());
    stage.home.finish();
}
