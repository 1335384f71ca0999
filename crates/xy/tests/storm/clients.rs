//! Clients of every kind: at the local door, behind `xy connect`, over HTTP; of either era.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Exchange, Home, McpClient, McpHttp, McpModern, McpSocket, McpStdio};

use crate::ledger::{Kind, Outcome};

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

/// What is said to that, and is no message.
const WELCOME: &str = r#"{"xy":"welcome""#;

/// Longer than a call may be parked: what has no answer then has none.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// Whether a client says hello, or all there is to say with each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// One client, whichever door it came in by.
pub(crate) enum Client {
    Local(McpSocket, Era),
    Bridge(McpStdio, Era),
    Web(McpHttp),
    Stateless(McpModern),
}

/// A call that has been sent.
pub(crate) enum Asked {
    Id(u64),
    Exchange(Box<Exchange>),
}

impl Client {
    /// The kinds take turns.
    pub(crate) fn number(home: &Home, number: usize) -> Self {
        match number % 6 {
            0 => Self::Local(socket(home), Era::Legacy).introduced(),
            1 => Self::Local(socket(home), Era::Modern),
            2 | 3 => Self::bridge(home, number),
            4 => Self::Web(home.mcp_http("/mcp")).introduced(),
            _ => Self::Stateless(home.mcp_modern("/mcp")),
        }
    }

    /// One behind `xy connect`, which leaves it to the test to start daemons; the eras take
    /// turns.
    pub(crate) fn bridge(home: &Home, number: usize) -> Self {
        let client = home.mcp_connect(&["--no-start"]);
        if number.is_multiple_of(2) {
            return Self::Bridge(client, Era::Legacy).introduced();
        }
        // It greets nobody: only an answer shows that it has found the first daemon.
        client.request("tools/list", json!({ "_meta": meta() }));
        Self::Bridge(client, Era::Modern)
    }

    fn introduced(self) -> Self {
        if let Some(client) = self.plain() {
            client.initialize();
        }
        self
    }

    /// The client, if it hears its answers on one line or in one session.
    fn plain(&self) -> Option<&McpClient> {
        match self {
            Self::Local(client, _) => Some(client),
            Self::Bridge(client, _) => Some(client),
            Self::Web(client) => Some(client),
            Self::Stateless(_) => None,
        }
    }

    /// Whether everything it says is on one line, and so in order.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self, Self::Local(..) | Self::Bridge(..))
    }

    /// Calls, and does not wait.
    pub(crate) fn call(&self, server: &str, kind: Kind, number: u64, ms: u64) -> Asked {
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
                return Asked::Exchange(Box::new(client.start("tools/call", params, &[])));
            }
        };
        Asked::Id(client.start_request("tools/call", params))
    }

    /// Waits for what comes of a call; `None` if nothing does.
    pub(crate) fn answer(&self, asked: Asked, number: u64) -> Option<Outcome> {
        self.answer_within(asked, number, ANSWER_WITHIN)
    }

    /// What has come of a call by now.
    pub(crate) fn answer_now(&self, asked: Asked, number: u64) -> Option<Outcome> {
        self.answer_within(asked, number, Duration::ZERO)
    }

    fn answer_within(&self, asked: Asked, number: u64, limit: Duration) -> Option<Outcome> {
        let answer = match asked {
            Asked::Id(id) => self.plain()?.answer_within(id, limit),
            Asked::Exchange(mut exchange) => exchange.answer_within(limit),
        };
        answer.map(|answer| outcome(&answer, number))
    }

    /// Answers that nobody asked for, or that came a second time.
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

/// What a client of the younger era says with each request.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "storm", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// What an answer to the call with this number says.
fn outcome(answer: &Value, number: u64) -> Outcome {
    let text = answer["result"]["content"][0]["text"].as_str();
    let pid = text.filter(|_| answer["result"]["isError"] != true).and_then(|text| {
        let (said, pid) = text.split_once(' ')?;
        (said.parse() == Ok(number)).then(|| pid.parse().ok())?
    });
    if let Some(pid) = pid {
        return Outcome::Done { pid };
    }
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    match answer["error"]["code"].as_i64() {
        Some(-32010) if message.contains("outcome unknown") => Outcome::Unknown(message.to_owned()),
        Some(-32005) => Outcome::Refused(message.to_owned()),
        _ => Outcome::Strange(answer.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_for_what_it_says() {
        let text = |text: &str| json!({ "result": { "content": [{ "text": text }] } });
        assert_eq!(outcome(&text("5 42"), 5), Outcome::Done { pid: 42 });
        assert!(matches!(outcome(&text("6 42"), 5), Outcome::Strange(_)), "of somebody else");
        assert!(matches!(outcome(&text("no such thing"), 5), Outcome::Strange(_)));
        let error =
            |code: i64, message: &str| json!({ "error": { "code": code, "message": message } });
        let unknown = "outcome unknown: it died";
        assert_eq!(outcome(&error(-32010, unknown), 5), Outcome::Unknown(unknown.to_owned()));
        assert!(matches!(outcome(&error(-32010, "?"), 5), Outcome::Strange(_)));
        assert_eq!(outcome(&error(-32005, "gone"), 5), Outcome::Refused("gone".to_owned()));
        assert!(matches!(outcome(&error(-32602, "which?"), 5), Outcome::Strange(_)));
    }
}
