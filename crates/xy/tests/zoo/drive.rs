//! One client of one era, which records each result or error as the original text.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::json::Members;
use xy_testkit::{McpClient, McpHttp, McpModern, McpStdio};

use crate::Way;
use crate::script::Step;
use crate::servers::Server;
use crate::stage::Stage;

/// Maximum number of pages of a list.
const MAX_PAGES: usize = 50;

/// Timeout of a server's first answer.
const DISCOVER_WITHIN: Duration = Duration::from_secs(30);

const LEGACY: &str = "2025-11-25";
pub(crate) const MODERN: &str = "2026-07-28";

/// The lists of a server: their label, method and member.
const LISTS: [(&str, &str, &str); 4] = [
    ("tools", "tools/list", "tools"),
    ("prompts", "prompts/list", "prompts"),
    ("resources", "resources/list", "resources"),
    ("templates", "resources/templates/list", "resourceTemplates"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The revision after them.
    Modern,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) label: String,
    /// `result` or `error`.
    pub(crate) member: &'static str,
    /// The text of that member, with `<home>` for the folder of the run.
    pub(crate) text: String,
}

/// A client that is connected.
pub(crate) enum Session {
    Stdio { client: McpStdio, era: Era },
    LegacyHttp(McpHttp),
    ModernHttp(McpModern),
}

impl Session {
    /// Starts a server without xy.
    #[track_caller]
    pub(crate) fn direct(stage: &Stage, server: &Server, era: Era) -> Self {
        Self::stdio(McpStdio::start(stage.command(server)), era)
    }

    /// Connects to a server through xy.
    #[track_caller]
    pub(crate) fn through(stage: &Stage, server: &Server, way: Way) -> Self {
        let (id, home) = (server.id(), &stage.home);
        let path = format!("/mcp/s/{id}");
        match way {
            Way::LegacyHttp => {
                let client = McpHttp::new(&home.gateway_address(), &path, "");
                refuse_questions(&client);
                Self::LegacyHttp(client)
            }
            Way::ModernHttp => {
                let client = McpModern::http(&home.gateway_address(), &path, "");
                Self::ModernHttp(client.with_capabilities(capabilities()))
            }
            Way::LegacyStdio | Way::ModernStdio => {
                Self::stdio(home.mcp_connect(&["--server", &id]), way.era())
            }
        }
    }

    fn stdio(client: McpStdio, era: Era) -> Self {
        refuse_questions(&client);
        Self::Stdio { client, era }
    }

    /// Ends the session, and the server if it is a child.
    pub(crate) fn end(self) {
        if let Self::LegacyHttp(client) = self {
            client.close();
        }
    }

    /// Calls a tool that the server does not have.
    #[track_caller]
    pub(crate) fn call_unknown_tool(&self) {
        self.ask("tools/call", json!({ "name": "no such tool", "arguments": {} }));
    }

    /// Performs the handshake, and returns the text of the answer.
    #[track_caller]
    fn handshake(&self) -> String {
        match self {
            Self::Stdio { client, era: Era::Legacy } => initialize(client),
            Self::LegacyHttp(client) => initialize(client),
            Self::Stdio { era: Era::Modern, .. } | Self::ModernHttp(_) => {
                self.ask("server/discover", json!({}))
            }
        }
    }

    /// Sends a request, and returns the text of the answer.
    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> String {
        match self {
            Self::Stdio { client, era } => {
                let params = if *era == Era::Modern { with_envelope(params) } else { params };
                ask(client, method, params)
            }
            Self::LegacyHttp(client) => ask(client, method, params),
            Self::ModernHttp(client) => client.start(method, params, &[]).answer_text(),
        }
    }
}

/// Returns true if a server that was just started answers `server/discover`.
pub(crate) fn discovers(client: &McpStdio) -> bool {
    let id = client.start_request("server/discover", with_envelope(json!({})));
    client.answer_within(id, DISCOVER_WITHIN).is_some_and(|it| it.get("result").is_some())
}

/// Performs the handshake, reads the lists and runs the steps.
#[track_caller]
pub(crate) fn run(session: &Session, stage: &Stage, steps: &[Step]) -> Vec<Record> {
    [ask_lists(session, stage), ask_steps(session, stage, steps)].concat()
}

/// Runs the steps.
#[track_caller]
pub(crate) fn ask_steps(session: &Session, stage: &Stage, steps: &[Step]) -> Vec<Record> {
    let mut records = Vec::new();
    for step in steps {
        let params = stage.with_paths(&step.params.to_string());
        let params = serde_json::from_str(&params).expect("a path changes no JSON");
        records.push(record(stage, step.label, &session.ask(step.method, params)));
    }
    records
}

/// Performs the handshake, and reads all pages of the lists.
#[track_caller]
pub(crate) fn ask_lists(session: &Session, stage: &Stage) -> Vec<Record> {
    let mut records = vec![record(stage, "handshake", &session.handshake())];
    for (label, method, _) in LISTS {
        let mut params = json!({});
        for page in 1..=MAX_PAGES {
            let label = if page == 1 { label.to_owned() } else { format!("{label}, page {page}") };
            let answer = session.ask(method, params);
            records.push(record(stage, &label, &answer));
            let result = Members::of(&answer).unwrap_or_default().members("result");
            match result.string("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
    }
    records
}

#[track_caller]
fn record(stage: &Stage, label: &str, answer: &str) -> Record {
    let members = Members::of(answer).unwrap_or_default();
    let found = ["result", "error"].into_iter().find_map(|it| Some((it, members.raw(it)?)));
    let (member, text) = found.unwrap_or_else(|| panic!("{label}: no answer: {answer}"));
    Record { label: label.to_owned(), member, text: stage.without_paths(text) }
}

/// Returns the capabilities of the clients, without roots: roots belong to one client, and a server
/// behind xy is shared.
fn capabilities() -> Value {
    json!({ "sampling": { "tools": {} }, "elicitation": { "form": {}, "url": {} } })
}

fn client_info() -> Value {
    json!({ "name": "xy-testkit", "version": "1" })
}

/// Adds a modern client's metadata to the params of a request.
fn with_envelope(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities(),
        "io.modelcontextprotocol/clientInfo": client_info(),
    });
    params
}

/// Answers server requests with an error, so that no call waits for a user.
fn refuse_questions(client: &McpClient) {
    client.answer_with(|question| {
        let refusal = json!({ "code": -32601, "message": "not here" });
        (question["method"] != "ping").then_some(Err(refusal))
    });
}

#[track_caller]
fn initialize(client: &McpClient) -> String {
    client.record();
    let answer = client.initialize_as(json!({
        "protocolVersion": LEGACY, "capabilities": capabilities(), "clientInfo": client_info(),
    }));
    for index in 0.. {
        let text = client.recorded(index, Duration::ZERO).expect("the answer is recorded");
        if Members::of(&text).is_some_and(|it| it.has("id") && !it.has("method")) {
            return text;
        }
    }
    panic!("no text of {answer}");
}

#[track_caller]
fn ask(client: &McpClient, method: &str, params: Value) -> String {
    let id = client.start_request(method, params);
    client.wait_answer_text(id)
}
