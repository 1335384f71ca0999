//! What the head of a request says of its message, in the revision without sessions. It is read
//! from the very text that is sent, so that both always say the same.

use xy_mcp::envelope::{self, Message, text_of};

use hyper::header::{HeaderName, HeaderValue};

use super::fetch::Ask;
use super::{VERSION, Web};
use crate::era::MODERN;
use crate::modern::DISCOVER;
use crate::params::Params;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// What heads are made of.
#[derive(Default)]
pub(super) struct Heads;

/// Whether a message calls a tool.
pub(super) fn is_of_tool(text: &[u8]) -> bool {
    matches!(envelope::parse(text), Ok(Message::Request { method, .. }) if method == "tools/call")
}

impl Web {
    /// Says in the head of a request what its message is about, if that is how it is spoken
    /// with.
    pub(super) fn add_heads(&self, ask: &mut Ask) {
        let body = ask.body.clone();
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
            _ => None,
        };
        if let Some(name) = name.and_then(text_of)
            && let Ok(value) = HeaderValue::from_str(&name)
        {
            headers.insert(NAME, value);
        }
    }
}
