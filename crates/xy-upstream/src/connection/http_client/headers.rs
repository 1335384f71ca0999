//! The headers that repeat parts of a message, in the modern era. They are derived from the text
//! that is sent, so that both always agree.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use xy_catalog::catalog::ServerCatalog;
use xy_mcp::envelope::{self, Message, text_of};
use xy_mcp::kind::Kind;
use xy_mcp::modern::DISCOVER;
use xy_mcp::param_headers::{self, ParamHeader, encode};
use xy_mcp::params::Params;
use xy_mcp::revision::MODERN;

use super::fetch::OutgoingRequest;
use super::{HttpClient, VERSION};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The arguments that are mirrored into headers, by tool.
#[derive(Default)]
pub(super) struct ToolHeaders(RefCell<Option<(Rc<ServerCatalog>, Tools)>>);

type Tools = HashMap<Arc<str>, Rc<[ParamHeader]>>;

impl ToolHeaders {
    /// Returns the mirrored arguments of a tool, as far as its server has listed it.
    fn of(&self, tool: &str, known: &Rc<ServerCatalog>) -> Option<Rc<[ParamHeader]>> {
        let mut read = self.0.borrow_mut();
        if !read.as_ref().is_some_and(|(of, _)| Rc::ptr_eq(of, known)) {
            let tools = known.lists.of(Kind::Tools).iter();
            let marked = tools.filter_map(|tool| {
                let param_headers_of_tool =
                    param_headers::of_tool(&tool.raw).ok().filter(|it| !it.is_empty())?;
                Some((tool.name.clone(), param_headers_of_tool.into()))
            });
            *read = Some((known.clone(), marked.collect()));
        }
        read.as_ref().and_then(|(_, tools)| tools.get(tool).cloned())
    }
}

/// Returns true if a message calls a tool.
pub(super) fn is_of_tool(text: &[u8]) -> bool {
    is(text, |method| method == "tools/call")
}

/// Returns true if a message requests a list.
pub(super) fn is_list(text: &[u8]) -> bool {
    is(text, |method| Kind::listed_by(method).is_some())
}

fn is(text: &[u8], is_it: impl Fn(&str) -> bool) -> bool {
    matches!(envelope::parse(text), Ok(Message::Request { method, .. }) if is_it(&method))
}

impl HttpClient {
    /// Adds the headers that repeat parts of the message, for a modern server or a probe for one.
    pub(super) fn add_message_headers(&self, request: &mut OutgoingRequest) {
        let body = request.body.clone();
        if !self.is_modern() && memchr::memmem::find(&body, DISCOVER.as_bytes()).is_none() {
            return; // The cheap check for nearly all messages.
        }
        let Ok(Message::Request { method, params, .. }) = envelope::parse(&body) else { return };
        if !self.is_modern() && method != DISCOVER {
            return;
        }
        let headers = &mut request.headers;
        headers.insert(VERSION, HeaderValue::from_static(MODERN));
        if let Ok(value) = HeaderValue::from_str(&method) {
            headers.insert(METHOD, value);
        }
        let params = Params::read(params);
        let name = match &*method {
            "tools/call" | "prompts/get" => params.name(),
            "resources/read" => params.uri(),
            "tasks/get" | "tasks/update" | "tasks/cancel" => params.task_id_as_written(),
            _ => None,
        };
        let Some(name) = name.and_then(text_of) else { return };
        insert(headers, NAME, &name);
        let known = self.connection().and_then(|connection| connection.known());
        let Some(known) = known.filter(|_| method == "tools/call") else { return };
        for param_header in self.tool_headers.of(&name, &known).iter().flat_map(|it| it.iter()) {
            let value = param_header.value(params.arguments());
            if let (Some(value), Ok(header)) = (value, param_header.header().parse()) {
                insert(headers, header, &value.text());
            }
        }
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(&encode(text)) {
        headers.insert(name, value);
    }
}
