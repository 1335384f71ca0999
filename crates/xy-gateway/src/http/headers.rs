//! Which era a request is of, and whether its head says what its body says. Pure.
//!
//! Each request is judged by itself. One of the revision without sessions says in its head what
//! whatever stands in between may want to know; a head that says other things than the body
//! is refused, since somebody may have let it pass for what the head says.
//!
//! The order in which things are checked is that of the conformance suite: what `_meta` lacks,
//! the version in both places, whether it is spoken, and only then the other headers.

use std::borrow::Cow;

use hyper::header::{HeaderMap, HeaderName};
use memchr::memmem;
use xy_mcp::envelope::{self, Malformed, Message, Outcome, text_of};
use xy_mcp::members::Members;
use xy_protocol::control::quoted as shortened;

use hyper::StatusCode;

use crate::era::{MODERN, VERSIONS};
use crate::modern::{
    self, DISCOVER, HEADER_MISMATCH, LISTEN, MISSING_CAPABILITY, UNSUPPORTED_VERSION, Wrong,
};
use crate::param_headers::{self, Mirror};
use crate::reply;

use super::received::Received;

/// The header that says which revision it is.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

const METHOD_NOT_FOUND: i64 = -32601;

/// Whether the head says that it is of the revision without sessions, or of a later one. Where
/// there is a version it decides: some clients name the method in the head of older ones too.
pub(super) fn is_modern(headers: &HeaderMap) -> bool {
    if headers.contains_key(VERSION) {
        has_modern_version(headers)
    } else {
        headers.contains_key(METHOD)
    }
}

/// The same by the version alone. What is no version at all is none of the older ones.
pub(super) fn has_modern_version(headers: &HeaderMap) -> bool {
    headers.get(VERSION).is_some_and(|version| {
        let is_known = VERSIONS.iter().any(|known| version == known);
        !is_known && !is_older_date(version.as_bytes())
    })
}

/// Revisions are dates.
fn is_older_date(version: &[u8]) -> bool {
    let is_like = |(byte, like): (&u8, &u8)| match like {
        b'-' => byte == like,
        _ => byte.is_ascii_digit(),
    };
    version.len() == MODERN.len()
        && version.iter().zip(MODERN.as_bytes()).all(is_like)
        && version < MODERN.as_bytes()
}

/// Whether a body is of the revision without sessions, whose head does not say so. Of nearly
/// all it is clear at a glance that they are not.
pub(super) fn is_modern_body(body: &Received) -> bool {
    if let Received::Small(body) = body {
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

/// What a POST of the revision without sessions is.
#[derive(Debug)]
pub(super) enum Posted<'t> {
    /// A request whose head and body agree.
    Request(Call<'t>),
    /// Something that nobody here has to know.
    Notification,
}

/// A request, as far as the door has to know it.
#[derive(Debug)]
pub(super) struct Call<'t> {
    /// As it was written.
    pub(super) id: &'t str,
    pub(super) method: Cow<'t, str>,
    /// Whether it only listens, and is answered at its end.
    pub(super) listens: bool,
    /// Of a call of a tool.
    tool: Option<Cow<'t, str>>,
    arguments: Option<&'t str>,
}

/// Why a POST is not taken: an answer of JSON-RPC, and the word for it among the metrics.
#[derive(Debug)]
pub(super) struct Unfit {
    pub(super) answer: Vec<u8>,
    pub(super) reason: &'static str,
}

impl Unfit {
    fn new(id: &str, wrong: &Wrong) -> Self {
        let reason = match wrong.code {
            HEADER_MISMATCH => "header-mismatch",
            UNSUPPORTED_VERSION => "version",
            _ => "meta",
        };
        Self { answer: wrong.line(id), reason }
    }

    fn malformed(problem: &Malformed) -> Self {
        let id = match problem {
            Malformed::NotAMessage { id: Some(id), .. } => id,
            _ => "null",
        };
        let answer = reply::error(id, problem.code(), &problem.to_string());
        Self { answer, reason: "no-message" }
    }

    fn answer() -> Self {
        let words = "this is an answer, and nothing is asked here: what a server wants to know \
                     is in its result";
        Self { answer: reply::error("null", -32600, words), reason: "no-message" }
    }
}

/// Checks the head of a POST against its body.
pub(super) fn read<'t>(headers: &HeaderMap, body: &'t Received) -> Result<Posted<'t>, Unfit> {
    match body.message() {
        Ok(Message::Request { id, method, params }) => {
            let params = body.members(params);
            let checked = check(headers, &method, &params);
            checked.map_err(|wrong| Unfit::new(id, &wrong))?;
            let is_tool = method == "tools/call";
            Ok(Posted::Request(Call {
                id,
                listens: method == LISTEN,
                tool: params.get("name").and_then(text_of).filter(|_| is_tool),
                arguments: params.get("arguments"),
                method,
            }))
        }
        Ok(Message::Notification { .. }) => Ok(Posted::Notification),
        Ok(Message::Answer { .. }) => Err(Unfit::answer()),
        Err(problem) => Err(Unfit::malformed(&problem)),
    }
}

fn check(headers: &HeaderMap, method: &str, params: &Members<'_>) -> Result<(), Wrong> {
    let meta = params.get("_meta");
    let Some(version) = modern::version_of(meta) else {
        return modern::read(method, meta, true).map(drop); // It is missing, and that is said.
    };
    expect(&VERSION, plain(headers, &VERSION)?, &version)?;
    modern::read(method, meta, true)?;
    expect(&METHOD, plain(headers, &METHOD)?, method)?;
    let source = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId", // Of the extension.
        _ => return Ok(()),
    };
    let heard = decoded(headers, NAME.as_str())?;
    match (heard, params.get(source).and_then(text_of)) {
        (None, None) => Ok(()), // That it is missing from the body is for others to say.
        (Some(heard), None) => Err(needless(NAME.as_str(), &heard)),
        (heard, Some(name)) => expect(&NAME, heard, &name),
    }
}

impl Call<'_> {
    /// Which tool is called.
    pub(super) fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    /// Checks the headers that say what the arguments say.
    pub(super) fn check_mirrors(
        &self,
        headers: &HeaderMap,
        mirrors: &[Mirror],
    ) -> Result<(), Unfit> {
        let mut mirrors = mirrors.iter();
        let checked = mirrors.try_for_each(|mirror| check_mirror(headers, mirror, self.arguments));
        checked.map_err(|wrong| Unfit::new(self.id, &wrong))
    }
}

fn check_mirror(
    headers: &HeaderMap,
    mirror: &Mirror,
    arguments: Option<&str>,
) -> Result<(), Wrong> {
    let name = mirror.header();
    let heard = decoded(headers, &name)?;
    match (mirror.said(arguments), heard) {
        (None, None) => Ok(()),
        (None, Some(heard)) => Err(needless(&name, &heard)),
        (Some(said), None) => Err(missing(&name, &said.text())),
        (Some(said), Some(heard)) if said.is(&heard) => Ok(()),
        (Some(said), Some(heard)) => Err(differs(&name, &heard, &said.text())),
    }
}

fn expect(name: &HeaderName, heard: Option<Cow<'_, str>>, said: &str) -> Result<(), Wrong> {
    match heard {
        None => Err(missing(name.as_str(), said)),
        Some(heard) if heard == said => Ok(()),
        Some(heard) => Err(differs(name.as_str(), &heard, said)),
    }
}

/// What a header says, if it is there once and says anything.
fn plain<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<Cow<'h, str>>, Wrong> {
    only(headers, name.as_str()).map(|text| text.map(Cow::Borrowed))
}

/// The same of a header whose value may be encoded.
fn decoded<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<Cow<'h, str>>, Wrong> {
    let Some(text) = only(headers, name)? else { return Ok(None) };
    let unreadable = || {
        let text = shortened(text);
        mismatch(format!("the header `{name}` is `{text}`, which is not well encoded"))
    };
    param_headers::decode(text).map(Some).ok_or_else(unreadable)
}

fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Wrong> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(mismatch(format!("the header `{name}` is there more than once")));
    }
    let no_text = |_| mismatch(format!("the header `{name}` holds what no header may hold"));
    first.to_str().map(Some).map_err(no_text)
}

fn missing(name: &str, said: &str) -> Wrong {
    let said = shortened(said);
    mismatch(format!("there is no header `{name}`, and the body says `{said}`"))
}

fn differs(name: &str, heard: &str, said: &str) -> Wrong {
    let (heard, said) = (shortened(heard), shortened(said));
    mismatch(format!("the header `{name}` says `{heard}`, and the body `{said}`"))
}

fn needless(name: &str, heard: &str) -> Wrong {
    let heard = shortened(heard);
    mismatch(format!("the header `{name}` says `{heard}`, and the body nothing of the kind"))
}

fn mismatch(words: String) -> Wrong {
    Wrong::new(HEADER_MISMATCH, words)
}

/// The status of an answer that comes whole. Only the few that have one of their own are looked
/// into, and what may be one of them.
pub(super) fn status_of(answer: &[u8]) -> StatusCode {
    let has = |digits: &[u8]| memmem::find(answer, digits).is_some();
    if !has(b"-3202") && !has(b"-32601") {
        return StatusCode::OK;
    }
    let Ok(Message::Answer { outcome: Outcome::Error(error), .. }) = envelope::parse(answer) else {
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
