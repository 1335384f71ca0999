//! Tells the era of a request, and checks its headers against its body. Pure.
//!
//! Each request is checked by itself. In revisions without sessions, the headers repeat parts of
//! the body for proxies. A request whose headers contradict its body is refused, since a proxy may
//! have let it pass because of the headers.
//!
//! The checks follow the order of the conformance suite: missing parts of `_meta`, the version in
//! both places, whether the version is supported, and then the other headers.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use memchr::memmem;
use xy_mcp::envelope::{self, Malformed, Message, Outcome, text_of};
use xy_mcp::members::Members;
use xy_mcp::modern::{
    self, DISCOVER, HEADER_MISMATCH, LISTEN, MISSING_CAPABILITY, RequestError, UNSUPPORTED_VERSION,
};
use xy_mcp::param_headers::{self, ParamHeader};
use xy_mcp::reply;
use xy_mcp::revision::{MODERN, VERSIONS};
use xy_protocol::control::quoted as shortened;

use crate::request_body::RequestBody;

/// The header with the protocol revision.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

const METHOD_NOT_FOUND: i64 = -32601;

/// Returns true if the headers are those of a revision without sessions. The version decides if
/// there is one, as some clients name the method in headers of older revisions too.
pub(super) fn is_modern(headers: &HeaderMap) -> bool {
    if headers.contains_key(VERSION) {
        has_modern_version(headers)
    } else {
        headers.contains_key(METHOD)
    }
}

/// Returns true if the version header names a revision without sessions. So does any text that is
/// not a date.
pub(super) fn has_modern_version(headers: &HeaderMap) -> bool {
    headers.get(VERSION).is_some_and(|version| {
        let is_known = VERSIONS.iter().any(|known| version == known);
        !is_known && !is_older_date(version.as_bytes())
    })
}

/// Returns true if a version is a date before the first revision without sessions.
fn is_older_date(version: &[u8]) -> bool {
    let is_like = |(byte, like): (&u8, &u8)| match like {
        b'-' => byte == like,
        _ => byte.is_ascii_digit(),
    };
    version.len() == MODERN.len()
        && version.iter().zip(MODERN.as_bytes()).all(is_like)
        && version < MODERN.as_bytes()
}

/// Returns true if a body is of a revision without sessions although its headers do not say so. A
/// text search rules out nearly all others.
pub(super) fn is_modern_body(body: &RequestBody) -> bool {
    if let RequestBody::Small(body) = body {
        let has = |word: &[u8]| memmem::find(body, word).is_some();
        if !has(b"modelcontextprotocol") && !has(b"discover") && !has(b"listen") {
            return false;
        }
    }
    match body.message() {
        Ok(Message::Request { method, params, .. } | Message::Notification { method, params }) => {
            let meta = || Members::read(body.members(params).get("_meta")?);
            let has_version = || meta().and_then(|it| it.get(modern::VERSION)).is_some();
            matches!(&*method, DISCOVER | LISTEN) || method != "initialize" && has_version()
        }
        _ => false,
    }
}

/// A POST in a revision without sessions.
#[derive(Debug)]
pub(super) enum ModernMessage<'t> {
    /// A request whose headers match its body.
    Request(RequestSummary<'t>),
    /// A notification, which has no effect here.
    Notification,
}

/// The parts of a request that the HTTP listener needs.
#[derive(Debug)]
pub(super) struct RequestSummary<'t> {
    /// The id, as the client wrote it.
    pub(super) id: &'t str,
    pub(super) method: Cow<'t, str>,
    /// Whether the request listens for messages and is answered when that ends.
    pub(super) listens: bool,
    /// The name of the called tool.
    tool: Option<Cow<'t, str>>,
    arguments: Option<&'t str>,
}

/// Why a POST is refused: the JSON-RPC error, and the reason for the metrics.
#[derive(Debug)]
pub(super) struct InvalidRequest {
    pub(super) response: Vec<u8>,
    pub(super) reason: &'static str,
}

impl InvalidRequest {
    fn new(id: &str, wrong: &RequestError) -> Self {
        let reason = match wrong.code {
            HEADER_MISMATCH => "header-mismatch",
            UNSUPPORTED_VERSION => "version",
            _ => "meta",
        };
        Self { response: wrong.line(id), reason }
    }

    fn malformed(problem: &Malformed) -> Self {
        let id = match problem {
            Malformed::NotAMessage { id: Some(id), .. } => id,
            _ => "null",
        };
        let response = reply::error(id, problem.code(), &problem.to_string());
        Self { response, reason: "invalid-message" }
    }

    fn unexpected_response() -> Self {
        let words = "a response is not expected here: in this revision, a server asks for input in its \
                     result";
        Self { response: reply::error("null", -32600, words), reason: "invalid-message" }
    }
}

/// Checks the headers of a POST against its body.
pub(super) fn validate<'t>(
    headers: &HeaderMap,
    body: &'t RequestBody,
) -> Result<ModernMessage<'t>, InvalidRequest> {
    match body.message() {
        Ok(Message::Request { id, method, params }) => {
            let params = body.members(params);
            let checked = check_headers(headers, &method, &params);
            checked.map_err(|wrong| InvalidRequest::new(id, &wrong))?;
            let is_tool = method == "tools/call";
            Ok(ModernMessage::Request(RequestSummary {
                id,
                listens: method == LISTEN,
                tool: params.get("name").and_then(text_of).filter(|_| is_tool),
                arguments: params.get("arguments"),
                method,
            }))
        }
        Ok(Message::Notification { .. }) => Ok(ModernMessage::Notification),
        Ok(Message::Response { .. }) => Err(InvalidRequest::unexpected_response()),
        Err(problem) => Err(InvalidRequest::malformed(&problem)),
    }
}

fn check_headers(
    headers: &HeaderMap,
    method: &str,
    params: &Members<'_>,
) -> Result<(), RequestError> {
    let meta = params.get("_meta");
    let Some(version) = modern::version_of(meta) else {
        return modern::read(method, meta, true).map(drop); // This reports that it is missing.
    };
    expect(&VERSION, plain_value(headers, &VERSION)?, &version)?;
    modern::read(method, meta, true)?;
    expect(&METHOD, plain_value(headers, &METHOD)?, method)?;
    let source = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        // Methods of the tasks extension.
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(()),
    };
    let in_header = decoded_value(headers, NAME.as_str())?;
    match (in_header, params.get(source).and_then(text_of)) {
        (None, None) => Ok(()), // The server reports that it is missing in the body.
        (Some(in_header), None) => Err(unexpected(NAME.as_str(), &in_header)),
        (in_header, Some(name)) => expect(&NAME, in_header, &name),
    }
}

impl RequestSummary<'_> {
    /// Returns the name of the called tool.
    pub(super) fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    /// Checks the headers that repeat arguments of a tool.
    pub(super) fn check_param_headers(
        &self,
        headers: &HeaderMap,
        param_headers: &[ParamHeader],
    ) -> Result<(), InvalidRequest> {
        let mut param_headers = param_headers.iter();
        let checked = param_headers
            .try_for_each(|param_header| check_param_header(headers, param_header, self.arguments));
        checked.map_err(|wrong| InvalidRequest::new(self.id, &wrong))
    }
}

fn check_param_header(
    headers: &HeaderMap,
    param_header: &ParamHeader,
    arguments: Option<&str>,
) -> Result<(), RequestError> {
    let name = param_header.header();
    let in_header = decoded_value(headers, &name)?;
    match (param_header.value(arguments), in_header) {
        (None, None) => Ok(()),
        (None, Some(in_header)) => Err(unexpected(&name, &in_header)),
        (Some(in_body), None) => Err(missing(&name, &in_body.text())),
        (Some(in_body), Some(in_header)) if in_body.is(&in_header) => Ok(()),
        (Some(in_body), Some(in_header)) => Err(differs(&name, &in_header, &in_body.text())),
    }
}

fn expect(
    name: &HeaderName,
    in_header: Option<Cow<'_, str>>,
    in_body: &str,
) -> Result<(), RequestError> {
    match in_header {
        None => Err(missing(name.as_str(), in_body)),
        Some(in_header) if in_header == in_body => Ok(()),
        Some(in_header) => Err(differs(name.as_str(), &in_header, in_body)),
    }
}

/// Returns the value of a header, if there is one.
fn plain_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'h, str>>, RequestError> {
    single_value(headers, name.as_str()).map(|text| text.map(Cow::Borrowed))
}

/// Returns the decoded value of a header that may be encoded, if there is one.
fn decoded_value<'h>(
    headers: &'h HeaderMap,
    name: &str,
) -> Result<Option<Cow<'h, str>>, RequestError> {
    let Some(text) = single_value(headers, name)? else { return Ok(None) };
    let unreadable = || {
        let text = shortened(text);
        mismatch(format!("the header `{name}` is `{text}`, which is not valid encoded text"))
    };
    param_headers::decode(text).map(Some).ok_or_else(unreadable)
}

fn single_value<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, RequestError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(mismatch(format!("the header `{name}` occurs more than once")));
    }
    let no_text = |_| mismatch(format!("the header `{name}` is not ASCII text"));
    first.to_str().map(Some).map_err(no_text)
}

fn missing(name: &str, in_body: &str) -> RequestError {
    let in_body = shortened(in_body);
    mismatch(format!("the header `{name}` is missing, but the body says `{in_body}`"))
}

fn differs(name: &str, in_header: &str, in_body: &str) -> RequestError {
    let (in_header, in_body) = (shortened(in_header), shortened(in_body));
    mismatch(format!("the header `{name}` is `{in_header}`, but the body says `{in_body}`"))
}

fn unexpected(name: &str, in_header: &str) -> RequestError {
    let in_header = shortened(in_header);
    mismatch(format!("the header `{name}` is `{in_header}`, but the body has no such value"))
}

fn mismatch(words: String) -> RequestError {
    RequestError::new(HEADER_MISMATCH, words)
}

/// Returns the HTTP status of a response. Only responses that may contain an error with a status of
/// its own are parsed.
pub(super) fn status_of(response: &[u8]) -> StatusCode {
    let has = |digits: &[u8]| memmem::find(response, digits).is_some();
    if !has(b"-3202") && !has(b"-32601") {
        return StatusCode::OK;
    }
    let Ok(Message::Response { outcome: Outcome::Error(error), .. }) = envelope::parse(response)
    else {
        return StatusCode::OK;
    };
    let code = Members::read(error).and_then(|error| error.get("code")?.parse().ok());
    match code {
        Some(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests;
