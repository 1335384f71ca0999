//! Calls that end otherwise than by an answer: cancelled, failed, lost; and the end of it all.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use xy_mcp::edit::Edits;
use xy_mcp::head::Head;
use xy_protocol::error::{CallError, ErrorKind};

use super::kept::Kept;
use super::retry::{self, Text};
use super::wire::MAX_MESSAGE;
use super::{Call, Caller, Follow, Stage, Upstream, ids};
use crate::backend::{Backend, RetryState};
use crate::client::Client;
use crate::frontend::StreamNo;
use crate::message_text::StoredText;

/// A server whose connections break because it dies is known to be dead by then.
const DEAD_WITHIN: Duration = Duration::from_secs(2);

/// How it comes that a server does not answer, for people to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cause<'w> {
    /// It is there, as far as anybody knows: only the way to it broke.
    is_breach: bool,
    words: &'w str,
}

impl<'w> Cause<'w> {
    /// It has ended, or is not asked any more.
    pub(crate) fn end(words: &'w str) -> Self {
        Self { is_breach: false, words }
    }

    /// The way to it broke.
    pub(crate) fn breach(words: &'w str) -> Self {
        Self { is_breach: true, words }
    }
}

/// A client's call that its server does not answer.
pub(crate) struct UnansweredCall {
    pub(crate) client: Rc<Client>,
    /// The server, by the name that the client used.
    pub(crate) asked: Rc<Backend>,
    /// The client's own id of it.
    pub(crate) id: Box<str>,
    pub(crate) stream: StreamNo,
    pub(crate) follow: Follow,
    /// It says everything of its client by itself.
    pub(crate) is_modern: bool,
    pub(crate) stage: retry::Stage,
    /// The server has asked its client something meanwhile.
    pub(crate) has_asked: bool,
    /// What was before.
    pub(crate) past: RetryState,
    pub(crate) text: Text,
    /// What the client wrote, if that was kept.
    pub(crate) written: Option<StoredText>,
}

impl UnansweredCall {
    /// Whoever waits for something else than a client's call comes back.
    fn of(call: Call, stage: retry::Stage) -> Result<Self, Caller> {
        let Call { caller, watch, has_asked, mut past, kept, .. } = call;
        let Caller::Client { client, asked, id, stream, follow, manner, .. } = caller else {
            return Err(caller);
        };
        let is_modern = manner.is_some();
        past.rounds.watch = watch.or(past.rounds.watch);
        past.waits_since = None;
        past.was_sent = true;
        let text = if kept.is_some() { Text::Kept } else { Text::NotKept };
        let written = kept.map(Kept::into_text);
        Ok(Self {
            client,
            asked,
            id,
            stream,
            follow,
            is_modern,
            stage,
            has_asked,
            past,
            text,
            written,
        })
    }
}

impl Upstream {
    /// Gives up a call, and tells the server so.
    pub(crate) fn cancel(self: &Rc<Self>, ours: u64, reason: &str) {
        let reason = crate::names::quoted(reason);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{ours},"reason":{reason}}}}}"#
        );
        self.cancel_saying(ours, message.as_bytes());
    }

    /// The same in the words of the client, where `theirs` is what it calls the call.
    pub(crate) fn cancel_as(self: &Rc<Self>, ours: u64, text: &[u8], theirs: &str) {
        let mut edits = Edits::of(text);
        edits.replace(theirs, ours.to_string());
        self.cancel_saying(ours, &edits.to_vec());
    }

    pub(super) fn cancel_saying(self: &Rc<Self>, ours: u64, message: &[u8]) {
        if let Some(caller) = self.give_up(ours) {
            if !matches!(caller, Caller::Own(_) | Caller::Ears(_)) {
                self.forget_in_time();
            }
            self.tell_given_up(ours, message);
            self.call_is_over();
        }
    }

    /// Lets the server know that a call was given up.
    pub(super) fn tell_given_up(&self, ours: u64, message: &[u8]) {
        if self.wire.given_up(ours) {
            self.calls.borrow_mut().remove(&ours); // Nothing more can come of it.
        } else {
            self.send(message);
        }
    }

    /// What was to be an answer is none: whoever waits for it need not wait any longer.
    pub(super) fn answered_badly(self: &Rc<Self>, id: &str, reason: &str) {
        let call = ids::ours(id).and_then(|ours| self.calls.borrow_mut().remove(&ours));
        if let Some(call) = call {
            let message =
                format!("`{}` answered with something that is no answer", self.key.server);
            let fault = CallError::new(ErrorKind::Internal, message).cause(reason);
            call.caller.fail(&self.key.server, &fault);
            self.call_is_over();
        }
    }

    /// A line that is too long for a message, of which this is the beginning; whoever waits
    /// for it is told, if it would have been an answer at all.
    pub(super) fn too_long(self: &Rc<Self>, head: &[u8]) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it said a line of more than {limit} MiB"));
        let head = Head::of(head);
        if !head.is_answer {
            return;
        }
        let named = head.id.and_then(ids::ours);
        // Some servers write the id last; then it is known only if one call is open.
        let calls = self.calls.borrow();
        let can_be = |call: &Call| !matches!(call.caller, Caller::Ears(_));
        let open: Vec<u64> =
            calls.iter().filter(|(_, call)| can_be(call)).map(|(ours, _)| *ours).collect();
        drop(calls);
        let ours = named.or_else(|| (open.len() == 1).then(|| open[0]));
        if let Some(ours) = ours {
            self.fail_too_long(ours);
        }
    }

    /// The same, where it is known whose answer it would be.
    pub(super) fn too_long_for(self: &Rc<Self>, ours: u64) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it said a message of more than {limit} MiB"));
        self.fail_too_long(ours);
    }

    pub(super) fn fail_too_long(self: &Rc<Self>, ours: u64) {
        let (server, limit) = (&self.key.server, MAX_MESSAGE >> 20);
        let message = format!("the answer of `{server}` is longer than {limit} MiB");
        let fault = CallError::new(ErrorKind::Internal, message);
        self.fail(ours, &fault.cause("xy does not pass on such answers"));
    }

    /// From now on nothing can be asked; what has been asked may still be answered.
    pub(crate) fn take_no_more(&self) {
        self.stage.replace(Stage::Closed);
        self.wire.close();
    }

    /// Whether nothing can be asked any more.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Closed)
    }

    /// The server has to be greeted again before it can be asked.
    pub(crate) fn begin_anew(&self) {
        let mut stage = self.stage.borrow_mut();
        if !matches!(*stage, Stage::Closed) {
            *stage = Stage::Greeted;
        }
    }

    /// Whether somebody waits for the answer to a call.
    pub(super) fn is_open(&self, ours: u64) -> bool {
        self.calls.borrow().get(&ours).is_some_and(|call| call.caller.is_there())
    }

    /// Whether a call is still to be answered, or done.
    pub(super) fn is_wanted(&self, ours: u64) -> bool {
        let calls = self.calls.borrow();
        calls.get(&ours).is_some_and(|call| !matches!(call.caller, Caller::Nobody { .. }))
    }

    /// Whether a call has not been answered, whoever waits for it.
    pub(super) fn is_known(&self, ours: u64) -> bool {
        self.calls.borrow().contains_key(&ours)
    }

    /// A call gets no answer, for this reason.
    pub(super) fn fail(self: &Rc<Self>, ours: u64, fault: &CallError) {
        let call = self.calls.borrow_mut().remove(&ours);
        if let Some(call) = call {
            call.caller.fail(&self.key.server, fault);
            self.call_is_over();
        }
    }

    /// A call gets no answer, as the way to the server broke: `why` says how. If `is_final`,
    /// nothing else would come of sending it again.
    pub(crate) fn lose(self: &Rc<Self>, ours: u64, stage: retry::Stage, why: &str, is_final: bool) {
        let is_visitor = |call: &Call| matches!(call.caller, Caller::Visitor(_));
        let is_asked = self.calls.borrow().get(&ours).is_some_and(is_visitor);
        if is_asked && stage == retry::Stage::Written && !is_final && self.wire.has_process() {
            return self.lose_soon(ours, why);
        }
        self.lose_now(ours, stage, why, is_final);
    }

    /// The same, unless the server turns out to have died: that is another answer to a person.
    fn lose_soon(self: &Rc<Self>, ours: u64, why: &str) {
        let (upstream, why) = (self.clone(), why.to_owned());
        tokio::task::spawn_local(async move {
            sleep(DEAD_WITHIN).await;
            upstream.lose_now(ours, retry::Stage::Written, &why, false);
        });
    }

    fn lose_now(self: &Rc<Self>, ours: u64, stage: retry::Stage, why: &str, is_final: bool) {
        let why = Cause::breach(why);
        let Some(call) = self.calls.borrow_mut().remove(&ours) else { return };
        match UnansweredCall::of(call, stage) {
            Ok(mut lost) => {
                if is_final {
                    lost.text = Text::Useless;
                }
                self.company.lost(self, vec![lost], why);
            }
            Err(caller) => {
                let fault = self.lost(stage == retry::Stage::Written, why);
                caller.fail(&self.key.server, &fault);
            }
        }
        self.call_is_over();
    }

    /// What was an answer to a call is none.
    pub(super) fn fail_badly(self: &Rc<Self>, ours: u64, reason: &str) {
        self.answered_badly(&ours.to_string(), reason);
    }

    /// All calls get no answer: `why` says how it came.
    pub(crate) fn lose_all(&self, why: Cause<'_>) {
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let mut calls: Vec<(u64, Call)> = calls.into_iter().collect();
        calls.sort_unstable_by_key(|(ours, _)| *ours);
        let unread_from = self.wire.unread_from();
        let mut lost = Vec::new();
        for (_, call) in calls {
            let stage = self.stage_of(call.place, unread_from);
            match UnansweredCall::of(call, stage) {
                Ok(call) => lost.push(call),
                Err(caller) => {
                    let fault = self.lost(stage == retry::Stage::Written, why);
                    caller.fail(&self.key.server, &fault);
                }
            }
        }
        self.company.lost(self, lost, why);
        self.ears.give_up();
        self.wire.hang_up();
    }

    fn stage_of(&self, place: u64, unread_from: Option<u64>) -> retry::Stage {
        if !self.wire.is_written(place) {
            retry::Stage::Unwritten
        } else if unread_from.is_some_and(|from| place >= from) {
            retry::Stage::Unread
        } else {
            retry::Stage::Written
        }
    }

    /// From now on nothing can be asked. Answers everyone who waits: `why` says how it came.
    pub(crate) fn close(&self, why: Cause<'_>) {
        self.take_no_more();
        self.lose_all(why);
    }

    /// Another daemon goes on with the server. Nobody is answered here: clients are hung up on,
    /// and know best what to ask again.
    pub(crate) fn leave(&self) {
        self.take_no_more();
        for Call { caller, .. } in std::mem::take(&mut *self.calls.borrow_mut()).into_values() {
            match caller {
                Caller::Client { client, id, .. } => client.forget(&id),
                caller => {
                    let fault = self.lost(true, Cause::end("another daemon took over"));
                    caller.fail(&self.key.server, &fault);
                }
            }
        }
        self.wire.hang_up();
    }

    /// What is said of a call that gets no answer.
    pub(crate) fn lost(&self, is_written: bool, why: Cause<'_>) -> CallError {
        let (server, words) = (&self.key.server, why.words);
        if is_written && why.is_breach {
            CallError::new(ErrorKind::TransportFailed, format!("outcome unknown: {words}"))
                .cause(format!("the call was sent to `{server}`, and the way to it broke before its answer"))
                .hint(format!("find out whether it was done before you repeat it; `xy status {server}` shows how it is"))
        } else if is_written {
            CallError::new(ErrorKind::OutcomeUnknown, format!("outcome unknown: {words}"))
                .cause(format!("the call was sent to `{server}`, and not answered"))
                .hint(format!("find out whether it was done before you repeat it; `xy logs {server}` shows what it said last"))
        } else {
            CallError::new(ErrorKind::NotRunning, format!("not done: {words}"))
                .cause(format!("the call was not sent to `{server}` yet"))
                .hint("try again")
        }
    }
}
