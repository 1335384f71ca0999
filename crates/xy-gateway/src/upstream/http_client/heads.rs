//! What the head of a request says of its message, in the revision without sessions. It is read
//! from the very text that is sent, so that both always say the same.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use xy_mcp::envelope::{self, Message, text_of};

use super::fetch::Ask;
use super::{VERSION, Web};
use crate::catalog::{Kind, Known};
use crate::era::MODERN;
use crate::modern::DISCOVER;
use crate::param_headers::{self, Mirror, encode};
use crate::params::Params;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The arguments that are said in the head too, of the tools that have any.
#[derive(Default)]
pub(super) struct Heads(RefCell<Option<(Rc<Known>, Tools)>>);

type Tools = HashMap<Arc<str>, Rc<[Mirror]>>;

impl Heads {
    /// Those of one tool, as far as its server has said.
    fn of(&self, tool: &str, known: &Rc<Known>) -> Option<Rc<[Mirror]>> {
        let mut read = self.0.borrow_mut();
        if !read.as_ref().is_some_and(|(of, _)| Rc::ptr_eq(of, known)) {
            let tools = known.lists.of(Kind::Tools).iter();
            let marked = tools.filter_map(|tool| {
                let mirrors = param_headers::of_tool(&tool.raw).ok().filter(|it| !it.is_empty())?;
                Some((tool.name.clone(), mirrors.into()))
            });
            *read = Some((known.clone(), marked.collect()));
        }
        read.as_ref().and_then(|(_, tools)| tools.get(tool).cloned())
    }
}

/// Whether a message calls a tool.
pub(super) fn is_of_tool(text: &[u8]) -> bool {
    is(text, |method| method == "tools/call")
}

/// Whether a message asks for a list.
pub(super) fn is_list(text: &[u8]) -> bool {
    is(text, |method| Kind::listed_by(method).is_some())
}

fn is(text: &[u8], is_it: impl Fn(&str) -> bool) -> bool {
    matches!(envelope::parse(text), Ok(Message::Request { method, .. }) if is_it(&method))
}

impl Web {
    /// Says in the head of a request what its message is about, if that is how it is spoken
    /// with.
    pub(super) fn add_heads(&self, ask: &mut Ask) {
        let body = ask.body.clone();
        if !self.is_modern() && memchr::memmem::find(&body, DISCOVER.as_bytes()).is_none() {
            return; // Nearly always that is clear at a glance.
        }
        let Ok(Message::Request { method, params, .. }) = envelope::parse(&body) else { return };
        if !self.is_modern() && method != DISCOVER {
            return;
        }
        let headers = &mut ask.headers;
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
        say(headers, NAME, &name);
        let known = self.upstream().and_then(|upstream| upstream.known());
        let Some(known) = known.filter(|_| method == "tools/call") else { return };
        for mirror in self.heads.of(&name, &known).iter().flat_map(|it| it.iter()) {
            let said = mirror.said(params.arguments());
            if let (Some(said), Ok(header)) = (said, mirror.header().parse()) {
                say(headers, header, &said.text());
            }
        }
    }
}

fn say(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(&encode(text)) {
        headers.insert(name, value);
    }
}
