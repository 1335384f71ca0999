//! The debug log of a client's requests that xy itself answers with an error.

use tokio::time::Instant;
use xy_catalog::names;
use xy_http::frontend::View;
use xy_mcp::envelope::text_of;
use xy_mcp::kind::Kind;
use xy_mcp::reply;
use xy_protocol::control::quoted;
use xy_protocol::error::CallError;
use xy_transport::error_log::{self, FailedRequest};
use xy_upstream::connection::code_of;

use super::request::Request;
use super::{Client, RequestPhase};
use crate::call::CallClient;

/// What the debug log says about an open request.
pub(super) struct RequestLog {
    method: String,
    tool: String,
    began: Instant,
}

impl RequestLog {
    /// Begins an entry, if the debug log is enabled.
    pub(super) fn begin(request: &Request<'_>) -> Option<Box<Self>> {
        error_log::is_on().then(|| {
            let (method, tool) = (request.method.to_owned(), tool_of(request));
            Box::new(Self { method, tool, began: Instant::now() })
        })
    }
}

/// Returns the name of the tool that a request calls; empty if it calls none.
fn tool_of(request: &Request<'_>) -> String {
    let name = request.params.name().filter(|_| request.method == "tools/call");
    name.and_then(text_of).unwrap_or_default().into()
}

impl Client {
    /// Returns the name and number of the client.
    pub(super) fn logged_name(&self) -> String {
        let name = self.name().map(|name| quoted(&name)).unwrap_or_default();
        format!("{name}#{}", self.number)
    }

    /// Logs a message that is rejected with this error line before dispatch. `method` is empty if
    /// unknown.
    pub(super) fn log_refused(&self, method: &str, line: &[u8]) {
        if !error_log::is_on() {
            return;
        }
        let code = code_of(line).unwrap_or_default();
        let client = &self.logged_name();
        FailedRequest { client, method, outcome: "refused", code, ..FailedRequest::default() }
            .log();
    }

    /// Logs a request that xy itself answers with an error.
    pub(super) fn log_failed(&self, request: &Request<'_>, outcome: &str, code: i64) {
        if !error_log::is_on() {
            return;
        }
        FailedRequest {
            client: &self.logged_name(),
            id: request.id,
            method: request.method,
            server: &self.target_server(request).unwrap_or_default(),
            tool: &tool_of(request),
            outcome,
            code,
            elapsed: None,
        }
        .log();
    }

    /// Logs an open request that is cancelled or answered with an error.
    pub(super) fn log_ended(&self, id: &str, outcome: &str, code: i64) {
        if !error_log::is_on() {
            return;
        }
        let open = self.open.borrow();
        let request = open.get(id);
        let log = request.and_then(|it| it.log.as_deref());
        let server = match request.map(|it| &it.phase) {
            Some(RequestPhase::Sent { upstream, .. }) => upstream.key().server.as_str(),
            Some(RequestPhase::Queued { server, .. }) => server.name.as_str(),
            _ => "",
        };
        FailedRequest {
            client: &self.logged_name(),
            id,
            method: log.map_or("", |it| &it.method),
            server,
            tool: log.map_or("", |it| &it.tool),
            outcome,
            code,
            elapsed: log.map(|it| it.began.elapsed()),
        }
        .log();
    }

    /// Logs the error that an open request is answered with.
    pub(super) fn log_error(&self, id: &str, fault: &CallError) {
        self.log_ended(id, &format!("{:?}", fault.kind), reply::code(fault.kind).into());
    }

    /// Returns the name of the server that a request addresses, if it exists.
    fn target_server(&self, request: &Request<'_>) -> Option<String> {
        if let View::Server(name) = &self.entry.view {
            return Some(name.clone());
        }
        let by_name = |kind: Kind| {
            let exposed = request.params.name().and_then(text_of)?;
            Some(self.resolve(kind, &exposed)?.0.name.to_string())
        };
        match request.method {
            "tools/call" => by_name(Kind::Tools),
            "prompts/get" => by_name(Kind::Prompts),
            _ => {
                let uri = request.params.uri().and_then(text_of)?;
                let (server, _) = names::split_exposed_uri(&uri)?;
                Some(self.router.server_for(self, server)?.name.to_string())
            }
        }
    }
}
