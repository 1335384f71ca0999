//! What a server says, and what each of it means: an answer goes to whoever asked, the rest to
//! whoever it is about, and what is no message to its log.

use std::fmt::Display;
use std::rc::Rc;

use bytes::Bytes;
use tokio::sync::oneshot;
use xy_mcp::batch;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Malformed, Message, Outcome};
use xy_mcp::head::Head;
use xy_supervisor::logs::OWN_PREFIX;
use xy_supervisor::speak::Said;

use super::response::SaidError;
use super::{Answer, Caller, Follow, Told, Upstream, caller, ids, pipes};
use crate::bridge::Across;
use crate::bridge::pending_input::Came;
use crate::bridge::rounds::{self, Round};
use crate::client::Client;
use crate::frontend::{Route, StreamNo};
use crate::large::{LARGE, LargeMessage};
use crate::modern::RequestMeta;
use crate::params::Params;

/// What is said of a server that writes messages over several lines.
pub(crate) const UNFRAMED: &str = "it writes messages over several lines, which MCP forbids on \
    stdio: have it write each on one line";

impl Upstream {
    /// Takes what the server has said, a message or a few; `during` is the call it was said
    /// about, if that is known.
    pub(crate) fn handle(self: &Rc<Self>, line: &[u8], during: Option<u64>) {
        self.hear_unless(line, during, |_| false);
    }

    /// Takes a message over several lines, or such output that only looks like one.
    pub(super) fn hear_lines(self: &Rc<Self>, mut text: Vec<u8>) {
        if envelope::parse(&text).is_ok() || batch::parts(&text).is_some() {
            // No string of JSON has a bare line break.
            text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
            self.breaks_framing();
        }
        self.handle(&text, None);
    }

    fn breaks_framing(&self) {
        if !self.is_unframed.replace(true) {
            tracing::warn!(server = %self.key, "{UNFRAMED}");
            self.log_own(UNFRAMED);
            self.company.breaks_framing(self);
        }
    }

    /// Takes what the server has said, unless it is no message and `is_held`, as more may come.
    pub(super) fn hear_unless(
        self: &Rc<Self>,
        line: &[u8],
        during: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let message = envelope::parse(line);
        // One revision has them, and they mean the same in any other.
        if let (Err(Malformed::Batch), Some(parts)) = (&message, batch::parts(line)) {
            for part in parts.into_iter().map(|part| part.get().as_bytes()) {
                if part.starts_with(b"{") { self.handle(part, during) } else { self.unparsed(part) }
            }
            return;
        }
        if message.is_err() && is_held(line) {
            return;
        }
        self.hear_parsed(message, line, during);
    }

    /// Handles a large message, which was parsed on another thread.
    fn handle_large(self: &Rc<Self>, message: &LargeMessage, during: Option<u64>) {
        match message.parts() {
            Some(parts) => parts.iter().for_each(|part| self.handle_large(part, during)),
            None => self.hear_parsed(message.message(), message.text(), during),
        }
    }

    /// Handles a message of any length. A large one is parsed on another thread meanwhile.
    pub(super) async fn hear_whole(self: &Rc<Self>, text: Bytes, during: Option<u64>) {
        if text.len() <= LARGE {
            return self.handle(&text, during);
        }
        self.hear_large_unless(text, during, |_| false).await;
    }

    /// Has a large text parsed on another thread and handles it, unless it is no message and
    /// `is_held`, as more may come. Cancel-safe: nothing is handled before it is parsed.
    pub(super) async fn hear_large_unless(
        self: &Rc<Self>,
        text: Bytes,
        during: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let Some(message) = self.company.large_reader().read(text.clone()).await else { return };
        let is_message = message.parts().is_some() || message.message().is_ok();
        if is_message {
            return self.handle_large(&message, during);
        }
        // The original is held or logged: it need not be UTF-8.
        if !is_held(&text) {
            self.hear_parsed(message.message(), &text, during);
        }
    }

    fn hear_parsed(
        self: &Rc<Self>,
        message: Result<Message<'_>, Malformed>,
        line: &[u8],
        during: Option<u64>,
    ) {
        let during = during.filter(|ours| !self.is_ear(*ours));
        self.heard.message(message.is_ok());
        match message {
            Ok(Message::Answer { id: Some(id), outcome: Outcome::Error(error) })
                if self.is_for_somebody(id) && SaidError::read(error).is_none() =>
            {
                self.unparsed(line);
                self.answered_badly(id, "its `error` is no object with a `code` and a `message`");
            }
            Ok(Message::Answer { id: Some(id), outcome }) => self.answered(id, outcome, line),
            Ok(Message::Notification { method, params }) if method == "notifications/progress" => {
                self.progressed(params, line);
            }
            Ok(Message::Notification { method, params }) => {
                let method = &*method;
                if self.is_for_ears(method, params) {
                    return;
                }
                self.company.told(self, &Told { method, params, line, during });
            }
            Ok(Message::Request { id, method, .. }) if method == "ping" => {
                self.send(&crate::reply::result(id, "{}"));
            }
            Ok(Message::Request { id, method, params }) => {
                let method = &*method;
                self.company.asked(self, id, &Told { method, params, line, during });
            }
            Err(malformed) => {
                self.unparsed(line);
                if let Some(id) = id_in(line) {
                    self.answered_badly(id, &malformed.to_string());
                }
            }
            // An answer to nobody is for people to read.
            Ok(Message::Answer { id: None, .. }) => self.unparsed(line),
        }
    }

    /// Whether an answer goes to whoever asked as it is.
    fn is_for_somebody(&self, id: &str) -> bool {
        let calls = self.calls.borrow();
        let call = ids::ours(id).and_then(|ours| calls.get(&ours));
        call.is_some_and(|call| {
            matches!(call.caller, Caller::Client { .. } | Caller::Parked(_) | Caller::Visitor(_))
        })
    }

    fn answered(self: &Rc<Self>, id: &str, outcome: Outcome<'_>, line: &[u8]) {
        let ours = ids::ours(id);
        let mut call = ours.and_then(|ours| self.calls.borrow_mut().remove(&ours));
        if let Some(log) = call.as_mut().and_then(|call| call.log.take()) {
            log.answered(outcome);
        }
        match call.map(|call| call.caller) {
            Some(Caller::Client {
                client,
                asked,
                id: theirs,
                stream,
                token,
                follow,
                manner,
                mut across,
            }) => {
                let whose = (&client, &*theirs, stream);
                if self.wants_more(across.as_deref_mut(), manner.as_deref(), whose, outcome) {
                    return self.call_is_over();
                }
                let mut edits = Edits::of(line);
                edits.replace(id, &*theirs);
                if let Some(across) = across {
                    let info = self.introduction().and_then(|it| it.info.clone());
                    across.edit_answer(outcome, info.as_deref(), &mut edits);
                }
                if follow != Follow::Nothing || matches!(outcome, Outcome::Error(_)) {
                    let (ours, token) = (ours.unwrap_or_default(), token.as_deref());
                    let (client, asked, follow) = (&client, &asked, &follow);
                    let answer = Answer { client, asked, ours, token, follow, outcome };
                    if let Some((part, new)) = self.company.answers(self, &answer) {
                        edits.replace(part, new);
                    }
                }
                let mut scratch = self.scratch.borrow_mut();
                scratch.clear();
                edits.append_to(&mut scratch);
                client.answered(&theirs, stream, &scratch);
                scratch.shrink_to(pipes::READ_BYTES);
                drop(scratch);
                self.call_is_over();
            }
            Some(Caller::Visitor(answer)) => {
                self.is_called();
                answer_own(answer, line);
            }
            // What we ask for ourselves, how it is for one, is no use of it.
            Some(Caller::Own(answer) | Caller::Ears(answer)) => answer_own(answer, line),
            Some(nobody @ Caller::Nobody { .. }) => {
                if let (Some(ours), Outcome::Result(result)) = (ours, outcome) {
                    self.answered_nobody(ours, &nobody, result);
                }
            }
            Some(Caller::Parked(hold)) => {
                hold.came(Came::Answer(line.into()));
                self.call_is_over();
            }
            Some(Caller::Unheard) => {}
            // A call of an earlier daemon, or one that is answered twice.
            None => tracing::debug!(server = %self.key, id, "response for unknown request id"),
        }
    }

    /// Whether an answer wants to know something of a client of the other era first: then that
    /// client is being asked, or told that it cannot be.
    fn wants_more(
        &self,
        across: Option<&mut Across>,
        manner: Option<&RequestMeta>,
        (client, id, stream): (&Rc<Client>, &str, StreamNo),
        outcome: Outcome<'_>,
    ) -> bool {
        if let Some(wrong) = across.as_ref().and_then(|across| across.instead(outcome)) {
            client.answered(id, stream, &wrong.line(id));
            return true;
        }
        match (across, outcome) {
            (Some(Across::ToModern { asked, .. }), Outcome::Result(result)) => {
                let Some((asked, wanted)) = asked.take().zip(rounds::wanted(result)) else {
                    return false;
                };
                match Round::begin(client, (id, stream), asked, &wanted) {
                    Ok(round) if round.is_answered() => round.ask_again(client),
                    Ok(round) => client.waits_for_answers(id, round, stream),
                    Err(fault) => client.failed(id, stream, &fault),
                }
                true
            }
            (Some(Across::ToLegacy { bond: Some(bond), .. }), Outcome::Error(error)) => {
                let request = (id, stream);
                manner.is_some_and(|manner| {
                    self.company.wants_elsewhere(client, request, manner, bond, error)
                })
            }
            _ => false,
        }
    }

    fn progressed(self: &Rc<Self>, params: Option<&str>, line: &[u8]) {
        let Some(part) = Params::read(params).token() else { return self.unparsed(line) };
        let Some(ours) = ids::ours(part) else { return };
        let calls = self.calls.borrow();
        let Some(call) = calls.get(&ours) else {
            drop(calls);
            return self.company.progressed(self, ours, part, line);
        };
        if let Some(watch) = &call.watch {
            watch.touch();
        }
        if let Caller::Client { client, stream, token: Some(token), .. } = &call.caller {
            let mut edits = Edits::of(line);
            edits.replace(part, &**token);
            client.tell(&edits.to_vec(), Route::Related(*stream));
        }
        // Progress of what has been answered or cancelled is of no use to anybody.
    }

    /// Has a line that is no message written to the server's log, with the next
    /// [`Upstream::log_unparsed`].
    pub(crate) fn unparsed(&self, line: &[u8]) {
        let mut strays = self.strays.borrow_mut();
        if !line.is_empty() {
            if !strays.is_empty() {
                strays.push(b'\n');
            }
            strays.extend_from_slice(line);
        }
    }

    /// Adds a line of xy itself to the server's log.
    pub(crate) fn log_own(&self, words: impl Display) {
        self.unparsed(format!("{OWN_PREFIX}{words}").as_bytes());
    }

    /// Passes on what has strayed. Cancel-safe; a server that says more than can be logged
    /// is not heard until that is done.
    pub(crate) async fn log_unparsed(&self) {
        if self.strays.borrow().is_empty() {
            return;
        }
        let Ok(room) = self.said.reserve().await else { return };
        let strays = std::mem::take(&mut *self.strays.borrow_mut());
        if !strays.is_empty() {
            room.send(Said::Stray(strays)); // Unless somebody else has passed them on.
        }
    }
}

/// The id in what was to be an answer and is none. Programs print all kinds of things, with
/// ids of their own, and ask under their own ids too.
fn id_in(line: &[u8]) -> Option<&str> {
    let head = Head::of(line);
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let is_to_be_one = is_object && !head.has_method && (head.is_answer || head.is_rpc);
    head.id.filter(|_| is_to_be_one)
}

/// Somebody here asked, and may have left.
fn answer_own(asked: oneshot::Sender<caller::Answered>, line: &[u8]) {
    let _ = asked.send(Ok(String::from_utf8_lossy(line).into())); // All of it was read as JSON.
}
