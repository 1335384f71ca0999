//! Tests of the fixture over its three transports, with valid and invalid clients.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};
use xy_testkit::{McpClient, McpHttp, McpOlder, McpStdio};

const FIXTURE_PATH: &str = env!("CARGO_BIN_EXE_xy-test-fixture");

/// A listening fixture, which ends on drop.
struct Fixture {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Fixture {
    fn start(flag: &str) -> Self {
        let mut command = Command::new(FIXTURE_PATH);
        command.args([flag, "0"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, stderr, address }
    }

    fn http(&self) -> McpHttp {
        McpHttp::new(&self.address, "/mcp", "")
    }

    fn legacy_sse(&self) -> McpOlder {
        McpOlder::open(&self.address, "/sse", "")
    }

    /// Ends the fixture and returns its last line.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        let mut last = String::new();
        self.stderr.read_line(&mut last).unwrap();
        last
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill(); // The fixture has ended, or the test has failed.
        let _ = self.child.wait();
    }
}

/// Exercises all features.
fn exercise(client: &McpClient) {
    exercise_requests(client);
    exercise_updates(client);
}

/// Exercises a list, a call, progress and an elicitation.
fn exercise_requests(client: &McpClient) {
    client.answer_with(|question| {
        assert_eq!(question["method"], "elicitation/create");
        Some(Ok(json!({ "action": "decline" })))
    });
    let told = client.initialize_with(&json!({ "elicitation": {} }));
    assert_eq!(told["serverInfo"]["name"], "xy-test-fixture");
    assert!(client.tool_names().contains(&"test_simple_text".to_owned()));
    let text = client.call_text("test_simple_text", Value::Null);
    assert_eq!(text, "This is a simple text response for testing.");
    let params = json!({ "name": "test_tool_with_progress", "_meta": { "progressToken": "t" } });
    client.request("tools/call", params);
    for progress in [0.0, 50.0, 100.0] {
        let told = client.wait_notification("notifications/progress");
        assert_eq!(told["params"]["progress"], progress);
        assert_eq!(told["params"]["progressToken"], "t");
    }
    let text = client.call_text("test_elicitation", json!({ "message": "?" }));
    assert_eq!(text, "User response: action=decline, content={}");
}

/// Exercises resource updates. They belong to no request, so Streamable HTTP needs a GET stream.
fn exercise_updates(client: &McpClient) {
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" }));
    client.call_text("touch", json!({ "uri": "test://watched-resource" }));
    client.wait_notification("notifications/resources/updated");
}

#[test]
fn all_transports_behave_alike() {
    let mut command = Command::new(FIXTURE_PATH);
    command.arg("--stdio");
    let stdio = McpStdio::start(command);
    exercise(&stdio);
    assert!(stdio.close().success());

    let server = Fixture::start("--http");
    let http = server.http();
    exercise_requests(&http);
    assert_eq!(http.open_stream(), 200);
    exercise_updates(&http);
    http.close();
    assert_eq!(server.end(), "stopping: stdin closed\n");

    let server = Fixture::start("--sse");
    exercise(&server.legacy_sse());
    assert_eq!(server.end(), "stopping: stdin closed\n");
}

#[test]
fn interrupted_call_resumes_after_reconnect() {
    let server = Fixture::start("--http");
    let client = server.http();
    client.initialize();
    let call =
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"test_reconnection"}}"#;
    let cut = client.post(call);
    assert_eq!(cut.status, 200);
    assert_eq!(cut.body, "id: 1-0\nretry: 100\ndata: \n\n", "primed, and nothing more");
    for _twice in 0..2 {
        let headers = [("Last-Event-ID", "1-0"), ("Accept", "text/event-stream")];
        let rest = client.exchange("GET", &headers, "").events();
        let answer: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!((rest.len(), &answer["id"]), (1, &json!(7)));
    }
    for unknown in ["9-0", "1", "x-y", "-"] {
        let headers = [("Last-Event-ID", unknown), ("Accept", "text/event-stream")];
        assert_eq!(client.exchange("GET", &headers, "").status, 400, "{unknown}");
    }
}

#[test]
fn ended_and_unknown_sessions_are_refused() {
    let server = Fixture::start("--http");
    let client = server.http();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(client.post(list).status, 400, "no session");
    client.initialize();
    assert_eq!(client.post(list).status, 200);
    assert_eq!(client.exchange("POST", &[("Mcp-Session-Id", "none")], list).status, 404);
    for name in ["Host", "Origin"] {
        for (value, status) in [
            ("http://localhost:1", 200),
            ("http://[::1]:1", 200),
            ("http://evil.example.com", 403),
            ("http://localhost.example.com", 403),
        ] {
            let value = if name == "Host" { &value["http://".len()..] } else { value };
            assert_eq!(client.exchange("POST", &[(name, value)], list).status, status, "{value}");
        }
    }
    let version = [("MCP-Protocol-Version", "1999-01-01")];
    assert_eq!(client.exchange("POST", &version, list).status, 400);
    assert_eq!(client.exchange("POST", &[("Accept", "text/html")], list).status, 406);
    assert_eq!(client.exchange("PUT", &[], list).status, 405);
    assert_eq!(client.delete(), 200);
    assert_eq!((client.delete(), client.post(list).status), (404, 404));
}

#[test]
fn garbage_is_refused_without_harm() {
    let server = Fixture::start("--http");
    let client = server.http();
    client.initialize();
    for garbage in ["", "{", "[]", "null", "7", "\u{0}", "{\"jsonrpc\":\"2.0\"}"] {
        assert_eq!(client.post(garbage).status, 400, "{garbage:?}");
    }
    let too_long = format!("POST /mcp HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    for bytes in
        ["GARBAGE\r\n\r\n", "POST /mcp HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", &too_long]
    {
        let mut rude = TcpStream::connect(&server.address).unwrap();
        let _ = rude.write_all(bytes.as_bytes()); // The fixture may close the connection midway.
    }
    assert!(client.tool_names().len() > 20);

    let mut command = Command::new(FIXTURE_PATH);
    command.arg("--stdio");
    let stdio = McpStdio::start(command);
    for garbage in ["{", "[]", "null", "{\"jsonrpc\":\"2.0\"}"] {
        stdio.send_raw(garbage);
        assert_eq!(stdio.wait_answer("null")["error"]["code"], -32700, "{garbage}");
    }
    exercise(&stdio);
}

#[test]
fn modern_input_rounds_are_direct_requests_in_legacy_era() {
    let server = Fixture::start("--http");
    let mut command = Command::new(FIXTURE_PATH);
    command.arg("--stdio");
    let (stdio, http) = (McpStdio::start(command), server.http());
    for client in [&*stdio, &*http] {
        client.answer_with(|question| match question["method"].as_str().unwrap() {
            "elicitation/create" => Some(Ok(json!({ "action": "accept", "content": {} }))),
            "roots/list" => Some(Ok(json!({ "roots": [] }))),
            _ => Some(Err(json!({ "code": -1, "message": "no" }))),
        });
        client.initialize_with(&json!({ "elicitation": {}, "roots": {}, "sampling": {} }));
        let call = |what: &str| {
            let name = format!("test_input_required_result_{what}");
            client.request("tools/call", json!({ "name": name }))["result"].take()
        };
        assert_eq!(call("elicitation")["content"][0]["text"], "Hello, !");
        assert!(call("multi_round")["content"][0]["text"].as_str().unwrap().contains("accept"));
        assert_eq!(call("multiple_inputs")["isError"], true, "one of three is refused");
        assert_eq!(call("capabilities")["content"][0]["text"], "asked what it can be asked");
        let prompt = json!({ "name": "test_input_required_result_prompt" });
        let given = client.request("prompts/get", prompt);
        assert_eq!(given["result"]["messages"][0]["content"]["text"], "Use this: ");
        let read = client.request("resources/read", json!({ "uri": "test://asks-first" }));
        assert!(read["result"]["contents"][0]["text"].as_str().unwrap().contains("accept"));
    }
}

#[test]
fn task_completes_after_two_polls_or_result_request() {
    let mut command = Command::new(FIXTURE_PATH);
    command.arg("--stdio");
    let client = McpStdio::start(command);
    client.initialize();
    let begin = |arguments: Value| {
        let params = json!({ "name": "maybe_task", "arguments": arguments, "task": {} });
        let begun = client.request("tools/call", params);
        json!({ "taskId": begun["result"]["task"]["taskId"] })
    };
    let status =
        |task: &Value| client.request("tasks/get", task.clone())["result"]["status"].take();
    let first = begin(json!({}));
    assert_eq!([status(&first), status(&first)], ["working", "completed"]);
    let failing = begin(json!({ "fails": true }));
    assert_eq!(client.request("tasks/result", failing.clone())["error"]["code"], -32001);
    assert_eq!(status(&failing), "failed");
    let cancelled = begin(json!({}));
    client.request("tasks/cancel", cancelled.clone());
    assert_eq!(status(&cancelled), "cancelled");
    assert_eq!(client.request("tasks/cancel", cancelled)["error"]["code"], -32602);
    assert_eq!(
        client.request("tasks/list", Value::Null)["result"]["tasks"][2]["status"],
        "cancelled"
    );
}
