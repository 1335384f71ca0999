//! A gateway that does what the method says.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::value::RawValue;
use xy_mcp::envelope::{self, Malformed, Message};
use xy_mcp::members::Members;

use crate::era;
use crate::frontend::{
    Accepted, ClientSession, Entry, Frontend, Refusal, Responder, Route, StreamNo, View,
};
use crate::param_headers::{self, Mirror};
use crate::params::Params;

/// What the tool `mirrored` takes.
const MIRRORED: &str = r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"shelf":{"type":"integer","x-mcp-header":"Shelf"}}}"#;

#[derive(Default)]
pub(crate) struct FakeFront {
    conversations: RefCell<Vec<Rc<FakeConversation>>>,
    /// What is agreed on from now on, if it is not the latest.
    pub(crate) version: Cell<Option<&'static str>>,
    /// Whether the story answers `initialize` from now on.
    pub(crate) is_slow: Cell<bool>,
}

impl FakeFront {
    pub(crate) fn conversations(&self) -> Vec<Rc<FakeConversation>> {
        self.conversations.borrow().clone()
    }

    /// The conversation that was opened last.
    pub(crate) fn newest(&self) -> Rc<FakeConversation> {
        Rc::clone(self.conversations.borrow().last().expect("somebody has come"))
    }
}

impl Frontend for FakeFront {
    fn open(
        &self,
        entry: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal> {
        match &entry.view {
            View::Server(name) if name == "none" => return Err(Refusal::NoServer(name.clone())),
            View::Profile(name) if name == "none" => return Err(Refusal::NoProfile(name.clone())),
            View::Profile(name) if name == "full" => return Err(Refusal::TooMany(3)),
            _ => {}
        }
        let number = self.conversations.borrow().len();
        let client_session = Rc::new(FakeConversation {
            number,
            entry,
            responder,
            ids: RefCell::default(),
            heard: RefCell::default(),
            version: Cell::new(self.version.get().unwrap_or("2025-11-25")),
            agrees_to_all: self.version.get().is_none(),
            is_busy: Cell::new(false),
            is_slow: self.is_slow.get(),
            closed: Cell::new(false),
        });
        self.conversations.borrow_mut().push(Rc::clone(&client_session));
        Ok(client_session)
    }
}

pub(crate) struct FakeConversation {
    number: usize,
    pub(crate) entry: Entry,
    pub(crate) responder: Rc<dyn Responder>,
    /// The ids of requests, as they were written.
    ids: RefCell<Vec<String>>,
    /// Methods, and the streams they came on.
    heard: RefCell<Vec<(String, StreamNo)>>,
    /// What was agreed on, unless the story says another.
    pub(crate) version: Cell<&'static str>,
    /// True if it agrees to any revision that the client asks for.
    agrees_to_all: bool,
    /// Whether something is still to be answered, as the story says.
    pub(crate) is_busy: Cell<bool>,
    is_slow: bool,
    closed: Cell<bool>,
}

impl FakeConversation {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The streams on which `method` was heard.
    pub(crate) fn streams_of(&self, method: &str) -> Vec<StreamNo> {
        let heard = self.heard.borrow();
        heard.iter().filter(|(it, _)| it == method).map(|(_, stream)| *stream).collect()
    }

    /// All methods that were heard, in their order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.heard.borrow().iter().map(|(method, _)| method.clone()).collect()
    }

    /// Whether it was asked something under this id.
    pub(crate) fn asked(&self, id: u64) -> bool {
        self.ids.borrow().contains(&id.to_string())
    }

    /// Says something as a gateway would: nothing after the end.
    pub(crate) fn say(&self, message: &str, to: Route) {
        assert!(!self.is_closed());
        self.responder.put(message.as_bytes(), to);
    }

    fn answer(&self, id: &str, params: &str, stream: StreamNo) {
        let number = self.number;
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"by":{number},"for":{params}}}}}"#);
        self.say(&answer, Route::Answer(stream));
    }

    fn ask(&self, id: &str, method: &str, params: &str, stream: StreamNo) {
        let revision = Params::read(Some(params)).version().and_then(|it| era::known(&it));
        if let Some(revision) = revision.filter(|_| method == "initialize" && self.agrees_to_all) {
            self.version.set(revision);
        }
        let told = |count: u64| format!(r#"{{"jsonrpc":"2.0","method":"told","params":{count}}}"#);
        match method {
            "fail" => {
                let error =
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"no"}}}}"#);
                self.say(&error, Route::Answer(stream));
            }
            "initialize" if params == "[]" => self.ask(id, "fail", params, stream),
            "initialize" if params == "[1]" || self.is_slow => {} // The story may answer.
            "cancelled" => self.say("", Route::Cancelled(stream)),
            // As many words as asked for, and then the answer.
            "tell" => {
                for count in 0..number(params, "count") {
                    self.say(&told(count), Route::Related(stream));
                }
                self.answer(id, params, stream);
            }
            "wait" => {} // Whoever tells the story answers.
            "resources/subscribe" if params.contains("refused") => {
                self.ask(id, "fail", params, stream);
            }
            "resources/subscribe" if params.contains("slow") => {} // The story answers.
            "error" => {
                let code = -number(params, "minus").cast_signed();
                let error = crate::reply::error(id, code, "no");
                self.responder.put(&error, Route::Answer(stream));
            }
            "subscriptions/listen" => self.say(ACKNOWLEDGED, Route::Related(stream)),
            _ => self.answer(id, params, stream),
        }
    }
}

impl ClientSession for FakeConversation {
    fn handle(&self, message: &[u8], stream: StreamNo) -> Accepted {
        assert!(!self.is_closed());
        self.hear_one(message, stream)
    }

    fn version(&self) -> Option<&'static str> {
        Some(self.version.get())
    }

    fn is_busy(&self) -> bool {
        self.is_busy.get()
    }

    fn logged_name(&self) -> String {
        format!("fake #{}", self.number)
    }

    fn mirrors(&self, tool: &str) -> Vec<Mirror> {
        if tool == "mirrored" { param_headers::of_schema(MIRRORED).unwrap() } else { Vec::new() }
    }

    fn close(&self) {
        assert!(!self.closed.replace(true), "a conversation is closed once");
    }
}

impl FakeConversation {
    fn hear_one(&self, message: &[u8], stream: StreamNo) -> Accepted {
        match envelope::parse(message) {
            Ok(Message::Request { id, method, .. }) if method == "refuse" => {
                Accepted::Refused(crate::reply::error(id, -32602, "not like this"))
            }
            Ok(Message::Request { id, method, params }) => {
                self.heard.borrow_mut().push((method.to_string(), stream));
                self.ids.borrow_mut().push(id.to_owned());
                self.ask(id, &method, params.unwrap_or("null"), stream);
                Accepted::Asked
            }
            Ok(Message::Notification { method, .. }) => {
                self.heard.borrow_mut().push((method.to_string(), stream));
                Accepted::Taken
            }
            Ok(Message::Answer { .. }) => Accepted::Taken,
            Err(Malformed::Batch) if message != b"[]" => {
                let parts: Vec<&RawValue> = serde_json::from_slice(message).unwrap();
                for part in parts {
                    self.hear_one(part.get().as_bytes(), stream);
                }
                Accepted::Asked
            }
            Err(malformed) => Accepted::Refused(format!(r#"{{"no":{}}}"#, malformed.code()).into()),
        }
    }
}

/// What is said first to who listens.
pub(crate) const ACKNOWLEDGED: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}"#;

/// The number that a request is about: the only one of an array, or the one of this name.
fn number(params: &str, name: &str) -> u64 {
    let members = Members::read(params);
    let written = members.as_ref().and_then(|members| members.get(name));
    written.unwrap_or(params.trim_matches(['[', ']'])).parse().unwrap()
}

/// Answers the only `wait` of a conversation after a while.
pub(crate) fn answer_later(client_session: Rc<FakeConversation>, id: u64, after: Duration) {
    tokio::task::spawn_local(async move {
        tokio::time::sleep(after).await;
        let stream = *client_session.streams_of("wait").last().unwrap();
        client_session.answer(&id.to_string(), "null", stream);
    });
}
