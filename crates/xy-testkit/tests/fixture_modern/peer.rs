//! The fixture over stdio and over HTTP, and builders of params for it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use xy_testkit::{HttpAnswer, McpHttp, McpStdio};

const FIXTURE_PATH: &str = env!("CARGO_BIN_EXE_xy-test-fixture");

/// A listening fixture, which ends on drop.
pub(crate) struct Fixture {
    child: Child,
    address: String,
    pub(crate) http: McpHttp,
}

impl Fixture {
    pub(crate) fn start(era: &str) -> Self {
        let mut command = Command::new(FIXTURE_PATH);
        command.args(["--http", "0", "--era", era]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
        let http = McpHttp::new(&address, "/mcp", "");
        Self { child, address, http }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Posts a request on its own connection, and returns the unread lines of the answer.
    pub(crate) fn open(&self, method: &str, params: &Value) -> Lines {
        let body = body(method, params);
        let name = name_in(params).map(|it| format!("Mcp-Name: {it}\r\n"));
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{}\
             Content-Length: {}\r\n\r\n{body}",
            name.unwrap_or_default(),
            body.len()
        )
        .unwrap();
        BufReader::new(stream).lines()
    }

    /// Posts a request with the required headers, followed by `more`.
    pub(crate) fn post(&self, method: &str, params: &Value, more: &[(&str, &str)]) -> HttpAnswer {
        let mut headers = vec![("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        headers.extend(name_in(params).map(|name| ("Mcp-Name", name)));
        headers.extend(more);
        self.http.exchange("POST", &headers, &body(method, params))
    }

    /// Posts a request and returns its answer, from a JSON body or the end of a stream.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Value {
        let answer = self.post(method, params, &[]);
        match answer.events().last() {
            Some(last) => serde_json::from_str(last).unwrap(),
            None => answer.json(),
        }
    }
}

/// The lines of an answer; dropping them closes the connection.
pub(crate) type Lines = std::io::Lines<BufReader<TcpStream>>;

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // The fixture exits at the end of its stdin.
        let _ = self.child.wait();
    }
}

/// Returns the value of the header `Mcp-Name`.
fn name_in(params: &Value) -> Option<&str> {
    ["name", "uri", "taskId"].iter().find_map(|it| params[it].as_str())
}

fn body(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": "é1", "method": method, "params": params }).to_string()
}

/// Starts a fixture over stdio and returns its client.
pub(crate) fn stdio(era: &str) -> McpStdio {
    let mut command = Command::new(FIXTURE_PATH);
    command.args(["--stdio", "--era", era]);
    McpStdio::start(command)
}

/// Adds the required `_meta` to params, with all client capabilities.
pub(crate) fn modern(mut params: Value) -> Value {
    let elicitation = json!({ "form": {}, "url": {} });
    let extensions = json!({ "io.modelcontextprotocol/tasks": {} });
    let capabilities = json!({
        "elicitation": elicitation, "sampling": {}, "roots": {}, "extensions": extensions,
    });
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    params
}

/// Returns the params of a `tools/call`.
pub(crate) fn tool(name: &str, arguments: Value) -> Value {
    let mut params = json!({ "name": name });
    params["arguments"] = arguments;
    modern(params)
}

/// Returns the params of a legacy `initialize`.
pub(crate) fn initialize() -> Value {
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" } })
}

/// Returns the params of a `subscriptions/listen`.
pub(crate) fn listen(filter: Value) -> Value {
    let mut params = json!({});
    params["notifications"] = filter;
    modern(params)
}

/// Returns the first text of a result.
pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}"))
}

/// Returns the code of an error.
pub(crate) fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}
