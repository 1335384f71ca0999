//! Clients of every kind: over the local socket, `xy connect` and HTTP, and of both eras.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Exchange, Home, McpClient, McpHttp, McpModern, McpSocket, McpStdio};

use crate::ledger::{Kind, Outcome};

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

/// The start of the response to the hello, which is not an MCP message.
const WELCOME: &str = r#"{"xy":"welcome""#;

/// Longer than a call may wait in the queue: a call without an answer by then is lost.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// The era of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// A client over any transport.
pub(crate) enum Client {
    Local(McpSocket, Era),
    Bridge(McpStdio, Era),
    Web(McpHttp),
    Stateless(McpModern),
}

/// A call that has been sent.
pub(crate) enum PendingCall {
    Id(u64),
    Exchange(Box<Exchange>),
}

impl Client {
    /// Creates a client whose kind follows from its number.
    pub(crate) fn number(home: &Home, number: usize) -> Self {
        match number % 6 {
            0 => Self::Local(socket(home), Era::Legacy).introduced(),
            1 => Self::Local(socket(home), Era::Modern),
            2 | 3 => Self::bridge(home, number),
            4 => Self::Web(home.mcp_http("/mcp")).introduced(),
            _ => Self::Stateless(home.mcp_modern("/mcp")),
        }
    }

    /// Creates a client behind `xy connect`, in alternating eras. The test starts the daemons.
    pub(crate) fn bridge(home: &Home, number: usize) -> Self {
        let client = home.mcp_connect(&["--no-start"]);
        if number.is_multiple_of(2) {
            return Self::Bridge(client, Era::Legacy).introduced();
        }
        // A modern client sends no handshake: only a response shows that it has found the first
        // daemon.
        client.request("tools/list", json!({ "_meta": meta() }));
        Self::Bridge(client, Era::Modern)
    }

    fn introduced(self) -> Self {
        if let Some(client) = self.plain() {
            client.initialize();
        }
        self
    }

    /// Returns the client if its answers arrive on one connection or in one session.
    fn plain(&self) -> Option<&McpClient> {
        match self {
            Self::Local(client, _) => Some(client),
            Self::Bridge(client, _) => Some(client),
            Self::Web(client) => Some(client),
            Self::Stateless(_) => None,
        }
    }

    /// Returns true if all messages use one connection, and so keep their order.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self, Self::Local(..) | Self::Bridge(..))
    }

    /// Sends a call without waiting.
    pub(crate) fn call(&self, server: &str, kind: Kind, number: u64, ms: u64) -> PendingCall {
        let tool = match kind {
            Kind::Record => "record",
            Kind::Idempotent => "record_idempotent",
            Kind::Look => "look",
        };
        let mut params = json!({ "name": format!("{server}__{tool}") });
        params["arguments"] = json!({ "number": number, "ms": ms });
        if matches!(self, Self::Local(_, Era::Modern) | Self::Bridge(_, Era::Modern)) {
            params["_meta"] = meta();
        }
        let client: &McpClient = match self {
            Self::Local(client, _) => client,
            Self::Bridge(client, _) => client,
            Self::Web(client) => client,
            Self::Stateless(client) => {
                return PendingCall::Exchange(Box::new(client.start("tools/call", params, &[])));
            }
        };
        PendingCall::Id(client.start_request("tools/call", params))
    }

    /// Waits for the outcome of a call. Returns `None` if there is none.
    pub(crate) fn answer(&self, request: PendingCall, number: u64) -> Option<Outcome> {
        self.answer_within(request, number, ANSWER_WITHIN)
    }

    /// Returns the outcome of a call that has arrived by now.
    pub(crate) fn answer_now(&self, request: PendingCall, number: u64) -> Option<Outcome> {
        self.answer_within(request, number, Duration::ZERO)
    }

    fn answer_within(&self, request: PendingCall, number: u64, limit: Duration) -> Option<Outcome> {
        let answer = match request {
            PendingCall::Id(id) => self.plain()?.answer_within(id, limit),
            PendingCall::Exchange(mut exchange) => exchange.answer_within(limit),
        };
        answer.map(|answer| outcome(&answer, number))
    }

    /// Returns unexpected and duplicate answers.
    pub(crate) fn unclaimed(&self) -> Vec<String> {
        let Some(client) = self.plain() else { return Vec::new() };
        let strays = client.strays().into_iter().filter(|it| !it.starts_with(WELCOME));
        client.unclaimed_answers().into_iter().chain(strays).collect()
    }
}

#[track_caller]
fn socket(home: &Home) -> McpSocket {
    McpSocket::connect(&home.mcp_socket(), HELLO)
}

/// Returns the `_meta` of a modern client.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "storm", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// Returns the outcome that an answer to the call with this number reports.
fn outcome(answer: &Value, number: u64) -> Outcome {
    let text = answer["result"]["content"][0]["text"].as_str();
    let pid = text.filter(|_| answer["result"]["isError"] != true).and_then(|text| {
        let (echoed, pid) = text.split_once(' ')?;
        (echoed.parse() == Ok(number)).then(|| pid.parse().ok())?
    });
    if let Some(pid) = pid {
        return Outcome::Done { pid };
    }
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    match answer["error"]["code"].as_i64() {
        Some(-32010) if message.contains("outcome unknown") => Outcome::Unknown(message.to_owned()),
        Some(-32005) => Outcome::Refused(message.to_owned()),
        _ => Outcome::Unexpected(answer.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_follows_from_the_answer() {
        let text = |text: &str| json!({ "result": { "content": [{ "text": text }] } });
        assert_eq!(outcome(&text("5 42"), 5), Outcome::Done { pid: 42 });
        assert!(
            matches!(outcome(&text("6 42"), 5), Outcome::Unexpected(_)),
            "another call's answer"
        );
        assert!(matches!(outcome(&text("no such thing"), 5), Outcome::Unexpected(_)));
        let error =
            |code: i64, message: &str| json!({ "error": { "code": code, "message": message } });
        let unknown = "outcome unknown: it died";
        assert_eq!(outcome(&error(-32010, unknown), 5), Outcome::Unknown(unknown.to_owned()));
        assert!(matches!(outcome(&error(-32010, "?"), 5), Outcome::Unexpected(_)));
        assert_eq!(outcome(&error(-32005, "gone"), 5), Outcome::Refused("gone".to_owned()));
        assert!(matches!(outcome(&error(-32602, "which?"), 5), Outcome::Unexpected(_)));
    }
}
