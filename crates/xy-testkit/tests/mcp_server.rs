//! Tests of the MCP server `xy-test-mcp`: the flags and tools whose silent failure would make other
//! tests pass wrongly.

use std::fs;
use std::process::Command;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::McpStdio;

const MCP: &str = env!("CARGO_BIN_EXE_xy-test-mcp");

/// How long a test waits to see that no message arrives.
const QUIET_PERIOD: Duration = Duration::from_millis(150);

fn start(flags: &[&str]) -> McpStdio {
    let mut command = Command::new(MCP);
    command.args(flags);
    McpStdio::start(command)
}

fn ready(flags: &[&str]) -> McpStdio {
    let client = start(flags);
    client.initialize();
    client
}

#[test]
fn server_negotiates_protocol_revision() {
    let agreed = |flags: &[&str], wanted: &str| {
        let params = json!({ "protocolVersion": wanted, "capabilities": {} });
        start(flags).initialize_as(params)["result"]["protocolVersion"].clone()
    };
    assert_eq!(agreed(&[], "2024-11-05"), "2024-11-05");
    assert_eq!(agreed(&[], "1999-12-31"), "2025-11-25");
    assert_eq!(agreed(&["--protocol", "2025-03-26"], "2025-11-25"), "2025-03-26");
}

#[test]
fn flags_limit_declared_capabilities() {
    let declared = |flags: &[&str]| -> Vec<String> {
        let told = start(flags).initialize();
        told["capabilities"].as_object().unwrap().keys().cloned().collect()
    };
    let all = ["completions", "logging", "prompts", "resources", "tools"];
    assert_eq!(declared(&[]), all);
    assert_eq!(declared(&["--no-tools"]), all[..4]);
    assert_eq!(declared(&["--only-tools"]), ["tools"]);
    let client = ready(&["--only-tools"]);
    assert_eq!(client.request("prompts/list", Value::Null)["error"]["code"], -32601);
}

#[test]
fn lists_have_pages_and_requested_tools() {
    let whole = ready(&["--tools", "50", "--odd-names", "--v2"]);
    let names = whole.tool_names();
    let paged = ready(&["--tools", "50", "--odd-names", "--v2", "--page", "7"]);
    assert_eq!(paged.tool_names(), names);
    assert_eq!(paged.list("resources/list", "resources").len(), 2);
    for name in ["echo", "reverse", "with.dot", "with space", "two__underscores", "tool_0049"] {
        assert!(names.iter().any(|it| it == name), "no {name} in {names:?}");
    }
    assert!(names.iter().any(|it| it.len() == 120) && names.iter().any(|it| it.starts_with('ü')));
    assert!(names.iter().all(|name| name != "tool_0050"));
    assert_eq!(whole.call_text("tool_0007", json!({ "query": "q" })), "tool_0007 \"q\"");
    assert_eq!(whole.call_text("with space", json!({})), "with space");
    assert_eq!(whole.call_text("reverse", json!({ "message": "abc" })), "cba");
    let wrong = json!({ "cursor": "yesterday" });
    assert_eq!(paged.request("tools/list", wrong)["error"]["code"], -32602);
    let tools = whole.list("tools/list", "tools");
    let read_only = tools.iter().find(|tool| tool["name"] == "read_only").unwrap();
    assert_eq!(read_only["annotations"], json!({ "readOnlyHint": true }));
}

#[test]
fn unknown_method_is_refused_or_echoed() {
    assert_eq!(ready(&[]).request("x/y", json!({}))["error"]["code"], -32601);
    let client = ready(&["--pass-unknown"]);
    assert_eq!(client.request("x/y", json!({ "z": 1 }))["result"], json!({ "z": 1 }));
    assert_eq!(client.request("server/discover", json!({}))["error"]["code"], -32601);
}

#[test]
fn server_dies_once() {
    let folder = tempfile::tempdir().unwrap();
    let once = json!({ "message": "again", "die_once": folder.path().join("died") });
    let mut first = ready(&[]);
    first.start_call("read_only", once.clone());
    assert_eq!(first.wait_exit().code(), Some(1));
    assert_eq!(ready(&[]).call_text("read_only", once), "again");
}

#[test]
fn input_log_holds_every_line_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let input_log = folder.path().join("input_log");
    let client = start(&["--input-log", input_log.to_str().unwrap()]);
    client.send_raw(r#"{"jsonrpc":"2.0", "id":1,"method":"ping"}"#);
    client.wait_answer(1);
    client.send_bytes(b"\xffhalf a line");
    client.close();
    let expected = b"{\"jsonrpc\":\"2.0\", \"id\":1,\"method\":\"ping\"}\n\xffhalf a line";
    assert_eq!(fs::read(input_log).unwrap(), expected);
}

#[test]
#[cfg(target_os = "linux")] // Elsewhere the write end does not report unread bytes.
fn unbuffered_server_leaves_unread_input_in_pipe() {
    use std::io::Write;
    let mut command = Command::new(MCP);
    command.arg("--unbuffered").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut server = command.stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = server.stdin.take().unwrap();
    let crash = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"crash"}}"#;
    stdin.write_all(format!("{crash}\nunheard\n").as_bytes()).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(1));
    assert_eq!(rustix::io::ioctl_fionread(&stdin).unwrap(), 8);
}

#[test]
fn initialize_is_late_refused_or_unanswered() {
    let client = start(&["--slow-init", "50"]);
    client.initialize();
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let refused = start(&["--refuse-init"]).initialize_as(params.clone());
    assert_eq!(refused["error"]["code"], -32602);
    let client = start(&["--never-init"]);
    let id = client.start_request("initialize", params);
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    assert_eq!(client.answer_within(id, QUIET_PERIOD), None);
}

#[test]
fn list_is_bad_huge_or_missing() {
    let list = |flags: &[&str]| ready(flags).request("tools/list", Value::Null)["result"].take();
    assert_eq!(list(&["--bad-list"]), json!({ "tools": "many" }));
    let damaged = list(&["--bad-tools"]);
    assert_eq!(
        (&damaged["tools"][0]["name"], &damaged["tools"][1]),
        (&"add_tool".into(), &json!(7))
    );
    let odd = ready(&["--odd-lists"]).request("prompts/list", Value::Null)["result"].take();
    let found = odd["prompts"].as_array().unwrap().iter().find(|it| it["name"] == "odd_0");
    assert_eq!(found.unwrap()["arguments"], 7);
    assert!(list(&["--huge-list", "3"]).to_string().len() > 3_000_000);
    let client = ready(&["--list-never"]);
    let id = client.start_request("tools/list", Value::Null);
    assert_eq!(client.call_text("echo", json!({ "message": "x" })), "x");
    assert_eq!(client.answer_within(id, QUIET_PERIOD), None);
}

#[test]
fn garbage_precedes_every_message() {
    let client = ready(&["--garbage-first"]);
    assert_eq!(client.call_text("echo", json!({ "message": "x" })), "x");
    let strays = client.strays();
    assert_eq!(strays[0], "Starting up...");
    assert_eq!(strays.iter().filter(|it| it.starts_with("DEBUG")).count(), 2);
    let client = ready(&[]);
    client.call("garbage", json!({ "lines": 2, "bytes": 100_000 }));
    assert_eq!(client.strays().len(), 5);
    assert_eq!(client.strays()[4].len(), 100_000);
}

#[test]
fn answers_are_duplicated_or_split() {
    let client = ready(&[]);
    let id = client.start_call("answer_twice", json!({}));
    client.wait_answer(id);
    client.wait_answer(id);
    client.call("answer_unknown_id", json!({}));
    assert!(client.unclaimed_answers()[0].contains("nobody asked"));
    let answer = client.call("half_line", json!({ "ms": 20 }));
    assert_eq!(answer["result"]["content"][0]["text"], "both halves");
    client.call("say", json!({ "line": r#"{"jsonrpc":"2.0","method":"x"}"# }));
    client.wait_notification("x");
}

#[test]
fn server_falls_silent_in_three_ways() {
    let client = ready(&["--mute-after", "2"]);
    assert_eq!(client.request("ping", Value::Null)["result"], json!({}));
    let id = client.start_request("ping", Value::Null);
    assert_eq!(client.answer_within(id, QUIET_PERIOD), None);
    assert!(!client.is_closed());

    let client = ready(&["--close-stdout-after", "1"]);
    client.wait_closed();
    assert!(client.send_bytes(b"\n"), "it still reads");

    let client = ready(&["--close-stdin"]);
    let mut writes = std::iter::repeat_with(|| client.send_bytes(b"\n")).take(100_000);
    assert!(writes.any(|is_read| !is_read), "somebody still reads");
    assert!(!client.is_closed());
}
