//! The debug log of calls: server, tool, client, duration and outcome. It never holds arguments,
//! results or the words of an error, which may quote them.

use std::rc::Rc;

use tokio::time::Instant;
use xy_mcp::envelope::{Outcome, text_of};
use xy_mcp::members::Members;
use xy_protocol::control::quoted;

use super::{Caller, Request};
use crate::client::Client;

/// A call that is told of when it is over.
#[derive(Debug)]
pub(crate) struct CallLog {
    server: String,
    method: String,
    /// The tool, if it is one that is called.
    tool: String,
    client: String,
    began: Instant,
    outcome: String,
}

impl CallLog {
    /// Begins to measure a call of a client that is sent to a server, if anybody wants to know.
    pub(super) fn begin(request: &Request<'_>, caller: &Caller) -> Option<Box<Self>> {
        let Caller::Client { client, asked, .. } = caller else { return None };
        let (method, about) = request.what;
        let inside = request.renamed.as_ref().map(|(_, inside)| inside.as_str()).or(about);
        let tool = inside.filter(|_| method == "tools/call").and_then(text_of).unwrap_or_default();
        Self::of(client, asked.name.as_str(), method, &tool)
    }

    /// Begins to measure a call of one of xy's own tools.
    pub(crate) fn of_own(client: &Rc<Client>, tool: &str) -> Option<Box<Self>> {
        Self::of(client, "xy", "tools/call", tool)
    }

    fn of(client: &Rc<Client>, server: &str, method: &str, tool: &str) -> Option<Box<Self>> {
        tracing::enabled!(tracing::Level::DEBUG).then(|| {
            let name = client.called().map(|name| quoted(&name)).unwrap_or_default();
            Box::new(Self {
                server: server.to_owned(),
                method: quoted(method),
                tool: quoted(tool),
                client: format!("{name}#{}", client.number()),
                began: Instant::now(),
                outcome: "not answered".to_owned(),
            })
        })
    }

    /// The server has answered.
    pub(super) fn answered(mut self, outcome: Outcome<'_>) {
        self.outcome = match outcome {
            Outcome::Error(error) => {
                let code = Members::read(error).and_then(|it| it.get("code"));
                format!("error {}", code.map(quoted).unwrap_or_default())
            }
            Outcome::Result(result) if is_tool_error(result) => "tool error".to_owned(),
            Outcome::Result(_) => "ok".to_owned(),
        };
    }

    /// It ended like this.
    pub(crate) fn ended(mut self, outcome: &str) {
        outcome.clone_into(&mut self.outcome);
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        let Self { server, method, tool, client, began, outcome } = self;
        let elapsed = began.elapsed();
        tracing::debug!(server, method, tool, client, ?elapsed, outcome, "call");
    }
}

fn is_tool_error(result: &str) -> bool {
    memchr::memmem::find(result.as_bytes(), b"isError").is_some()
        && Members::read(result).and_then(|it| it.get("isError")) == Some("true")
}
