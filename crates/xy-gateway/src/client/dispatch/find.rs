//! Calls of the tools of profiles in search mode: `search_tools`, `describe_tool` and `call_tool`.
//!
//! A call through `call_tool` is dispatched as if the client had called the tool directly.
//! Arguments, progress and results keep their original text.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use xy_mcp::edit::{Edits, quoted};
use xy_mcp::envelope::{self, Message, text_of};
use xy_mcp::kind::Kind;
use xy_mcp::params::Params;
use xy_mcp::reply;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::CallError;

use super::{Outcome, Request};
use crate::client::Client;
use crate::router::DEFAULT_HITS;
use crate::tools;
use crate::tools::search::{DESCRIBE, SEARCH, is_search_tool};

/// The arguments of `search_tools`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    server: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Describe {
    name: String,
}

/// The arguments of `call_tool`, as JSON text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call<'t> {
    #[serde(borrow)]
    name: &'t RawValue,
    #[serde(borrow, default)]
    arguments: Option<&'t RawValue>,
}

impl Client {
    /// Dispatches a call of one of the three tools; returns `None` for any other request.
    pub(super) fn dispatch_search(
        &self,
        request: &Request<'_>,
    ) -> Option<Result<Outcome, CallError>> {
        let is_search = self.scope().is_some_and(|scope| scope.is_search());
        if !is_search || request.method != "tools/call" || self.is_daemon() {
            return None;
        }
        let name = request.params.name().and_then(text_of).filter(|name| is_search_tool(name))?;
        let arguments = match tools::arguments_object(request.params.arguments()) {
            Ok(arguments) => arguments,
            Err(fault) => return Some(Err(fault)),
        };
        Some(match &*name {
            SEARCH => Ok(result(self.search_tools(arguments))),
            DESCRIBE => Ok(result(self.describe_tool(arguments))),
            _ => self.call_found(request, arguments),
        })
    }

    fn search_tools(&self, arguments: &str) -> Result<String, CallError> {
        let Search { query, limit, server } = tools::parse(arguments)?;
        let found =
            self.router.find_tools(self, &query, limit.unwrap_or(DEFAULT_HITS), server.as_deref());
        let tools: Vec<Value> = found
            .into_iter()
            .map(|hit| json!({ "name": hit.name, "description": hit.description }))
            .collect();
        Ok(tools::success_result(&json!({ "tools": tools })))
    }

    /// Returns the full definition of a tool, as in a list.
    fn describe_tool(&self, arguments: &str) -> Result<String, CallError> {
        let Describe { name } = tools::parse(arguments)?;
        let definition = self
            .definition(&name)
            .ok_or_else(|| self.router.unknown_name(self, Kind::Tools, &name))?;
        let text = quoted(&definition);
        Ok(format!(
            r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{{"tool":{definition}}}}}"#
        ))
    }

    fn definition(&self, name: &str) -> Option<String> {
        if self.may_call_own(name) {
            let own = tools::exposed(Kind::Tools, self.entry.may_manage);
            return own.iter().find(|it| *it.name == *name).map(|it| it.text.to_string());
        }
        let (server, _) = self.resolve(Kind::Tools, name)?;
        let known = server.shown_to(self)?;
        known.exposed(Kind::Tools).iter().find(|it| *it.name == *name).map(|it| it.text.to_string())
    }

    /// Calls another tool. An unknown tool is an error result, which the model can read.
    fn call_found(&self, request: &Request<'_>, arguments: &str) -> Result<Outcome, CallError> {
        let meant: Call<'_> = match tools::parse(arguments) {
            Ok(meant) => meant,
            Err(fault) => return Ok(result(Err(fault))),
        };
        let name = text_of(meant.name.get()).unwrap_or_default();
        let is_there = !is_search_tool(&name)
            && (self.may_call_own(&name) || self.resolve(Kind::Tools, &name).is_some());
        if !is_there {
            return Ok(result(Err(self.router.unknown_name(self, Kind::Tools, &name))));
        }
        let given = meant.arguments.map_or("{}", RawValue::get);
        if !given.starts_with('{') {
            return Ok(result(Err(reply::invalid("`arguments` is not an object"))));
        }
        let (Some(written), Some(whole)) = (request.params.name(), request.params.arguments())
        else {
            return Ok(result(Err(reply::invalid("`arguments` does not name a tool"))));
        };
        let mut edits = Edits::of(request.text.bytes());
        edits.replace(written, meant.name.get());
        edits.replace(whole, given);
        let text = edits.to_vec();
        let Ok(Message::Request { id, method, params }) = envelope::parse(&text) else {
            return Err(reply::invalid(format!(
                "`{}` cannot be called like this",
                shortened(&name)
            )));
        };
        let read = Params::checked(params).map_err(reply::invalid)?;
        self.dispatch(&Request {
            text: text.as_slice().into(),
            id,
            method: &method,
            params: read,
            params_text: params,
            request_meta: request.request_meta.clone(),
            stream: request.stream,
            retry_state: request.retry_state.clone(),
        })
    }
}

/// Converts an error into an error result.
fn result(done: Result<String, CallError>) -> Outcome {
    Outcome::Result(done.unwrap_or_else(|fault| tools::error_result(&fault)))
}
