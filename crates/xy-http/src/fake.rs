//! A gateway whose behaviour is chosen by the method of each request, for tests of the listeners.

#![expect(clippy::unwrap_used, reason = "only tests use it")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::value::RawValue;
use xy_mcp::envelope::{self, Malformed, Message};
use xy_mcp::members::Members;
use xy_mcp::param_headers::{self, ParamHeader};
use xy_mcp::params::Params;
use xy_mcp::revision;

use crate::frontend::{
    ClientSession, Disposition, Entry, Frontend, Refusal, Responder, Route, StreamNo, View,
};

/// The input schema of the tool `mirrored`.
const MIRRORED: &str = r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"shelf":{"type":"integer","x-mcp-header":"Shelf"}}}"#;

/// The fake gateway.
#[derive(Default)]
pub struct FakeFrontend {
    sessions: RefCell<Vec<Rc<FakeSession>>>,
    /// The protocol revision that sessions negotiate from now on, if not the latest.
    pub version: Cell<Option<&'static str>>,
    /// True if the test itself answers `initialize` from now on.
    pub is_slow: Cell<bool>,
}

impl FakeFrontend {
    /// Returns all sessions.
    pub fn sessions(&self) -> Vec<Rc<FakeSession>> {
        self.sessions.borrow().clone()
    }

    /// Returns the session that was opened last.
    pub fn newest(&self) -> Rc<FakeSession> {
        Rc::clone(self.sessions.borrow().last().expect("a session was opened"))
    }
}

impl Frontend for FakeFrontend {
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
        let number = self.sessions.borrow().len();
        let client_session = Rc::new(FakeSession {
            number,
            entry,
            responder,
            ids: RefCell::default(),
            received: RefCell::default(),
            version: Cell::new(self.version.get().unwrap_or("2025-11-25")),
            agrees_to_all: self.version.get().is_none(),
            is_busy: Cell::new(false),
            is_slow: self.is_slow.get(),
            closed: Cell::new(false),
        });
        self.sessions.borrow_mut().push(Rc::clone(&client_session));
        Ok(client_session)
    }
}

/// A session of the fake gateway.
pub struct FakeSession {
    number: usize,
    /// How the client connected.
    pub entry: Entry,
    /// Sends messages to the client.
    pub responder: Rc<dyn Responder>,
    /// The ids of received requests, as they were written.
    ids: RefCell<Vec<String>>,
    /// The received methods, and the streams that they came on.
    received: RefCell<Vec<(String, StreamNo)>>,
    /// The negotiated protocol revision.
    pub version: Cell<&'static str>,
    /// True if the session accepts any revision that the client asks for.
    agrees_to_all: bool,
    /// True if the session has open requests. Tests set this.
    pub is_busy: Cell<bool>,
    is_slow: bool,
    closed: Cell<bool>,
}

impl FakeSession {
    /// Returns true if the session has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns the streams on which `method` was received.
    pub fn streams_of(&self, method: &str) -> Vec<StreamNo> {
        let received = self.received.borrow();
        received.iter().filter(|(it, _)| it == method).map(|(_, stream)| *stream).collect()
    }

    /// Returns all received methods, in order.
    pub fn methods(&self) -> Vec<String> {
        self.received.borrow().iter().map(|(method, _)| method.clone()).collect()
    }

    /// Returns true if a request with this id was received.
    pub fn has_request(&self, id: u64) -> bool {
        self.ids.borrow().contains(&id.to_string())
    }

    /// Sends a message to the client. Like the gateway, it sends nothing after the session has
    /// ended.
    pub fn send(&self, message: &str, to: Route) {
        assert!(!self.is_closed());
        self.responder.put(message.as_bytes(), to);
    }

    fn answer(&self, id: &str, params: &str, stream: StreamNo) {
        let number = self.number;
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"by":{number},"for":{params}}}}}"#);
        self.send(&answer, Route::Response(stream));
    }

    fn ask(&self, id: &str, method: &str, params: &str, stream: StreamNo) {
        let revision = Params::read(Some(params)).version().and_then(|it| revision::known(&it));
        if let Some(revision) = revision.filter(|_| method == "initialize" && self.agrees_to_all) {
            self.version.set(revision);
        }
        let message_of =
            |count: u64| format!(r#"{{"jsonrpc":"2.0","method":"told","params":{count}}}"#);
        match method {
            "fail" => {
                let error =
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"no"}}}}"#);
                self.send(&error, Route::Response(stream));
            }
            "initialize" if params == "[]" => self.ask(id, "fail", params, stream),
            "initialize" if params == "[1]" || self.is_slow => {} // The test may answer.
            "cancelled" => self.send("", Route::Cancelled(stream)),
            // Sends `count` notifications, then the response.
            "tell" => {
                for count in 0..number(params, "count") {
                    self.send(&message_of(count), Route::Related(stream));
                }
                self.answer(id, params, stream);
            }
            "wait" => {} // The test answers.
            "resources/subscribe" if params.contains("refused") => {
                self.ask(id, "fail", params, stream);
            }
            "resources/subscribe" if params.contains("slow") => {} // The test answers.
            "error" => {
                let code = -number(params, "minus").cast_signed();
                let error = xy_mcp::reply::error(id, code, "no");
                self.responder.put(&error, Route::Response(stream));
            }
            "subscriptions/listen" => self.send(ACKNOWLEDGED, Route::Related(stream)),
            _ => self.answer(id, params, stream),
        }
    }
}

impl ClientSession for FakeSession {
    fn handle(&self, message: &[u8], stream: StreamNo) -> Disposition {
        assert!(!self.is_closed());
        self.handle_one(message, stream)
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

    fn param_headers(&self, tool: &str) -> Vec<ParamHeader> {
        if tool == "mirrored" { param_headers::of_schema(MIRRORED).unwrap() } else { Vec::new() }
    }

    fn close(&self) {
        assert!(!self.closed.replace(true), "a conversation is closed once");
    }
}

impl FakeSession {
    fn handle_one(&self, message: &[u8], stream: StreamNo) -> Disposition {
        match envelope::parse(message) {
            Ok(Message::Request { id, method, .. }) if method == "refuse" => {
                Disposition::Rejected(xy_mcp::reply::error(id, -32602, "not like this"))
            }
            Ok(Message::Request { id, method, params }) => {
                self.received.borrow_mut().push((method.to_string(), stream));
                self.ids.borrow_mut().push(id.to_owned());
                self.ask(id, &method, params.unwrap_or("null"), stream);
                Disposition::ResponsePending
            }
            Ok(Message::Notification { method, .. }) => {
                self.received.borrow_mut().push((method.to_string(), stream));
                Disposition::NoResponse
            }
            Ok(Message::Response { .. }) => Disposition::NoResponse,
            Err(Malformed::Batch) if message != b"[]" => {
                let parts: Vec<&RawValue> = serde_json::from_slice(message).unwrap();
                for part in parts {
                    self.handle_one(part.get().as_bytes(), stream);
                }
                Disposition::ResponsePending
            }
            Err(malformed) => {
                Disposition::Rejected(format!(r#"{{"no":{}}}"#, malformed.code()).into())
            }
        }
    }
}

/// The first message on a subscription stream.
pub const ACKNOWLEDGED: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}"#;

/// Returns the number in a request's params: the only item of an array, or the member `name`.
fn number(params: &str, name: &str) -> u64 {
    let members = Members::read(params);
    let written = members.as_ref().and_then(|members| members.get(name));
    written.unwrap_or(params.trim_matches(['[', ']'])).parse().unwrap()
}

/// Answers the only `wait` request of a session after a while.
pub fn answer_later(client_session: Rc<FakeSession>, id: u64, after: Duration) {
    tokio::task::spawn_local(async move {
        tokio::time::sleep(after).await;
        let stream = *client_session.streams_of("wait").last().unwrap();
        client_session.answer(&id.to_string(), "null", stream);
    });
}
