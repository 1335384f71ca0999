//! Tests of the MCP server `xy-test-mcp`: its tools, its flags, and what a client receives.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::fs;
use std::process::Command;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
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

/// Returns the result in the raw text of an answer.
fn result_of(answer: &str) -> &str {
    let (_, rest) = answer.split_once("\"result\":").unwrap();
    rest.strip_suffix('}').unwrap()
}

#[test]
fn server_initializes_and_exits_at_end_of_stdin() {
    let client = start(&["--name", "it", "--instructions", "be kind"]);
    let told = client.initialize();
    assert_eq!(told["serverInfo"], json!({ "name": "it", "version": "1.0.0" }));
    assert_eq!(
        (&told["protocolVersion"], &told["instructions"]),
        (&"2025-11-25".into(), &"be kind".into())
    );
    let pid = client.pid();
    client.close_stdin();
    client.wait_closed();
    assert_eq!(client.stderr(), format!("started {pid}\nstopping: stdin closed\n"));
    assert_eq!(client.close().code(), Some(0));
}

#[test]
fn sigterm_ends_server() {
    let mut client = ready(&[]);
    let pid = Pid::from_raw(client.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(client.wait_exit().code(), Some(0));
    assert!(client.stderr().ends_with("stopping: TERM\n"));
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
fn echo_preserves_argument_and_id() {
    let client = ready(&[]);
    let params = r#"{"name":"echo","arguments":{"message":"h\u00e9\ud83d\ude00\/"}}"#;
    client.start_request_as("\"ä\\u0041\"", "ping", Value::Null);
    assert_eq!(client.wait_answer("\"ä\\u0041\"")["result"], json!({}));
    client.send_raw(&format!(
        r#"{{"jsonrpc":"2.0","id":1.50,"method":"tools/call","params":{params}}}"#
    ));
    let answer = client.wait_answer_text("1.50");
    let said = r#""h\u00e9\ud83d\ude00\/""#;
    let content = format!(r#"{{"content":[{{"type":"text","text":{said}}}]"#);
    let expected = format!(r#"{content},"structuredContent":{{"message":{said}}}}}"#);
    assert_eq!(result_of(&answer), expected);
}

#[test]
fn raw_result_is_unchanged() {
    let client = ready(&[]);
    let odd = r#"{"z":1.50,"b":1e400,"a":123456789012345678901234567890,"z2":-0,"x":{"?":[]}}"#;
    let id = client.start_call("raw", json!({ "result": odd }));
    assert_eq!(result_of(&client.wait_answer_text(id)), odd);
}

#[test]
fn fast_calls_overtake_slow_calls() {
    let client = ready(&[]);
    let slow = client.start_call("slow_echo", json!({ "message": "slow", "ms": 200 }));
    let quick: Vec<u64> =
        (0..100).map(|n| client.start_call("echo", json!({ "message": n.to_string() }))).collect();
    for (n, id) in quick.into_iter().enumerate().rev() {
        let answer = client.wait_answer(id);
        assert_eq!(answer["result"]["content"][0]["text"], n.to_string());
    }
    assert_eq!(client.wait_answer(slow)["result"]["structuredContent"]["message"], "slow");
    assert_eq!(
        client.call("sum", json!({ "a": 1, "b": 2.5 }))["result"]["structuredContent"],
        json!({ "sum": 3.5 })
    );
    assert_eq!(client.call_text("big", json!({ "bytes": 300_000 })).len(), 300_000);
}

#[test]
fn cancelled_call_gets_no_answer() {
    let client = ready(&[]);
    let calls = [
        client.start_call("slow_echo", json!({ "message": "x", "ms": 60_000 })),
        client.start_call("never", json!({})),
        client.start_call("ask_roots", json!({})),
    ];
    client.wait_question();
    for id in calls {
        client.cancel(&id.into());
    }
    assert_eq!(client.call_text("echo", json!({ "message": "after" })), "after");
    assert!(calls.iter().all(|id| client.answer_within(id, QUIET_PERIOD).is_none()));
}

#[test]
fn progress_and_logs_arrive_during_call() {
    let client = ready(&[]);
    let mut params = json!({ "name": "progress", "arguments": { "steps": 2 } });
    assert_eq!(
        client.request("tools/call", params.clone())["result"]["content"][0]["text"],
        "2 steps"
    );
    assert_eq!(client.notifications(), [""; 0], "nobody asked for progress");
    params["_meta"] = json!({ "progressToken": "t" });
    client.request("tools/call", params);
    let told = client.wait_notification("notifications/progress");
    assert_eq!(told["params"], json!({ "progressToken": "t", "progress": 1, "total": 2 }));

    client.call("log", json!({ "level": "debug", "message": "low" }));
    assert_eq!(client.wait_notification("notifications/message")["params"]["data"], "low");
    client.request("logging/setLevel", json!({ "level": "error" }));
    client.call("log", json!({ "level": "debug", "message": "low" }));
    client.call("log", json!({ "level": "alert", "message": "high" }));
    assert_eq!(client.wait_notification("notifications/message")["params"]["data"], "high");

    client.call("flood", json!({ "count": 5000 }));
    let floods =
        client.notifications().iter().filter(|it| it["method"] == "notifications/message").count();
    assert_eq!(floods, 5000);
}

#[test]
fn server_sends_requests_during_call() {
    let client = ready(&[]);
    client.answer_with(|question| match question["method"].as_str() {
        Some("sampling/createMessage") => {
            Some(Ok(json!({ "said": question["params"]["messages"][0]["content"]["text"] })))
        }
        Some("roots/list") => Some(Err(json!({ "code": -1, "message": "no" }))),
        _ => None,
    });
    assert_eq!(client.call_text("ask_sampling", json!({ "message": "hm?" })), r#"{"said":"hm?"}"#);
    let refused = client.call("ask_roots", json!({}));
    assert_eq!(refused["result"]["isError"], true);
    let id = client.start_call("ask_elicitation", json!({}));
    let question = client.wait_question();
    assert_eq!(question["method"], "elicitation/create");
    client.answer(&question, Ok(json!({ "action": "decline" })));
    assert_eq!(client.wait_answer(id)["result"]["content"][0]["text"], r#"{"action":"decline"}"#);
}

#[test]
fn server_reports_client_and_environment() {
    let client = start(&[]);
    client.initialize_with(&json!({ "roots": { "listChanged": true } }));
    let who = client.call("who", json!({}))["result"]["structuredContent"].take();
    assert_eq!(who["pid"], client.pid());
    assert_eq!(who["client"]["clientInfo"]["name"], "xy-testkit");
    assert_eq!(who["client"]["capabilities"], json!({ "roots": { "listChanged": true } }));
    assert!(!client.call_text("env", json!({ "name": "PATH" })).is_empty());
    assert_eq!(client.call("env", json!({ "name": "NO_SUCH" }))["result"]["isError"], true);
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
fn tool_list_changes() {
    let client = ready(&[]);
    let changed = "notifications/tools/list_changed";
    assert_eq!(client.call("new", json!({}))["error"]["code"], -32602);
    client.call("add_tool", json!({ "name": "new" }));
    client.wait_notification(changed);
    assert_eq!(client.call_text("new", json!({})), "new");
    client.call("remove_tool", json!({ "name": "echo" }));
    client.wait_notification(changed);
    assert_eq!(client.call("echo", json!({}))["error"]["code"], -32602);
    assert!(!client.tool_names().contains(&"echo".to_owned()));
    client.call("touch_list", json!({}));
    client.wait_notification(changed);
}

#[test]
fn server_has_prompts_resources_and_completion() {
    let client = ready(&[]);
    let greet =
        client.request("prompts/get", json!({ "name": "greet", "arguments": { "name": "Ada" } }));
    assert_eq!(greet["result"]["messages"][0]["content"]["text"], "Greet Ada, please.");
    assert_eq!(client.request("prompts/get", json!({ "name": "greet" }))["error"]["code"], -32602);
    let read = |uri: &str| -> Value {
        let answer = client.request("resources/read", json!({ "uri": uri }));
        answer["result"]["contents"][0]["text"].clone()
    };
    assert_eq!(read("test://static"), "always the same");
    assert_eq!(read("test://item/7"), "item 7");
    assert_eq!(read("test://nothing"), Value::Null);
    client.call("bump", json!({}));
    assert_eq!(client.notifications(), [""; 0], "nobody has subscribed");
    client.request("resources/subscribe", json!({ "uri": "test://counter" }));
    client.call("bump", json!({}));
    let told = client.wait_notification("notifications/resources/updated");
    assert_eq!(told["params"], json!({ "uri": "test://counter" }));
    assert_eq!(read("test://counter"), "2");
    let complete = json!({
        "ref": { "type": "ref/resource", "uri": "test://item/{id}" },
        "argument": { "name": "id", "value": "A" },
    });
    let complete = client.request("completion/complete", complete);
    assert_eq!(complete["result"]["completion"]["values"], json!(["Ada", "Alan"]));
}

#[test]
fn unknown_method_is_refused_or_echoed() {
    assert_eq!(ready(&[]).request("x/y", json!({}))["error"]["code"], -32601);
    let client = ready(&["--pass-unknown"]);
    assert_eq!(client.request("x/y", json!({ "z": 1 }))["result"], json!({ "z": 1 }));
    assert_eq!(client.request("server/discover", json!({}))["error"]["code"], -32601);
}

#[test]
fn invalid_message_gets_parse_error() {
    let client = ready(&[]);
    client.send_raw("hello");
    assert_eq!(client.wait_answer("null")["error"]["code"], -32700);
    client.send_bytes(b"\xff\n");
    assert_eq!(client.wait_answer("null")["error"]["code"], -32700);
}

#[test]
fn server_crashes_on_request() {
    let mut client = ready(&[]);
    client.start_call("crash", json!({ "code": 7 }));
    assert_eq!(client.wait_exit().code(), Some(7));
    let mut client = ready(&[]);
    client.start_call("crash_after_ms", json!({ "ms": 20 }));
    assert_eq!(client.wait_exit().code(), Some(1));
    let mut client = ready(&["--die-on", "prompts/list"]);
    client.start_request("prompts/list", Value::Null);
    assert_eq!(client.wait_exit().code(), Some(1));
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
