//! The debug log of calls: server, tool, client, duration and outcome. It never holds arguments,
//! results or error messages, which may quote them.

use tokio::time::Instant;
use xy_mcp::envelope::{Outcome, text_of};
use xy_mcp::members::Members;
use xy_protocol::control::quoted;

use super::Caller;
use crate::call::{CallClient, CallRequest};

/// A call that is logged when it ends.
#[derive(Debug)]
pub(crate) struct CallLog {
    server: String,
    method: String,
    /// The tool, for `tools/call`.
    tool: String,
    client: String,
    began: Instant,
    outcome: String,
    span: tracing::Span,
}

impl CallLog {
    /// Begins an entry for a client's call, if the debug log is enabled.
    pub(super) fn begin(
        request: &CallRequest<'_>,
        caller: &Caller,
        upstream_id: u64,
    ) -> Option<Box<Self>> {
        let Caller::Client { client, alias, .. } = caller else { return None };
        let (method, about) = request.method_and_target;
        let inside = request.renamed.as_ref().map(|(_, inside)| inside.as_str()).or(about);
        let tool = inside.filter(|_| method == "tools/call").and_then(text_of).unwrap_or_default();
        Self::of(&**client, Some(upstream_id), alias.name.as_str(), method, &tool)
    }

    /// Begins an entry for a call of one of xy's own tools.
    pub(crate) fn of_own(client: &dyn CallClient, tool: &str) -> Option<Box<Self>> {
        Self::of(client, None, "xy", "tools/call", tool)
    }

    fn of(
        client: &dyn CallClient,
        id: Option<u64>,
        server: &str,
        method: &str,
        tool: &str,
    ) -> Option<Box<Self>> {
        tracing::enabled!(tracing::Level::DEBUG).then(|| {
            let name = client.name().map(|name| quoted(&name)).unwrap_or_default();
            Box::new(Self {
                server: server.to_owned(),
                method: quoted(method),
                tool: quoted(tool),
                client: format!("{name}#{}", client.number()),
                began: Instant::now(),
                outcome: "not answered".to_owned(),
                span: tracing::debug_span!(parent: client.span(), "call", id),
            })
        })
    }

    /// Records the server's response.
    pub(crate) fn answered(mut self, outcome: Outcome<'_>) {
        self.outcome = match outcome {
            Outcome::Error(error) => {
                let code = Members::read(error).and_then(|it| it.get("code"));
                format!("error {}", code.map(quoted).unwrap_or_default())
            }
            Outcome::Result(result) if is_tool_error(result) => "tool error".to_owned(),
            Outcome::Result(_) => "ok".to_owned(),
        };
    }

    /// Records that the call ended without a response.
    pub(crate) fn ended(mut self, outcome: &str) {
        outcome.clone_into(&mut self.outcome);
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        let Self { server, method, tool, client, began, outcome, span } = self;
        let _entered = span.enter();
        let elapsed = began.elapsed();
        tracing::debug!(server, method, tool, client, ?elapsed, outcome, "call");
    }
}

fn is_tool_error(result: &str) -> bool {
    memchr::memmem::find(result.as_bytes(), b"isError").is_some()
        && Members::read(result).and_then(|it| it.get("isError")) == Some("true")
}
