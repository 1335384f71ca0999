//! Dispatch of a server's messages: responses go to their callers, notifications and requests to
//! the router, and everything else to the server's log.

use std::fmt::Display;
use std::rc::Rc;

use bytes::Bytes;
use tokio::sync::oneshot;
use xy_mcp::batch;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Malformed, Message, Outcome};
use xy_mcp::head::Head;
use xy_supervisor::logs::OWN_PREFIX;
use xy_supervisor::protocol::DriverEvent;

use super::response::ErrorObject;
use super::{Caller, ClientResponse, ResponseKind, ServerMessage, Upstream, caller, ids};
use crate::bridge::EraTranslation;
use crate::bridge::pending_input::CallResult;
use crate::bridge::rounds::{self, Round};
use crate::client::Client;
use crate::frontend::{Route, StreamNo};
use crate::gateway_status::UNFRAMED;
use crate::large::{LARGE_THRESHOLD, LargeMessage};
use crate::modern::RequestMeta;
use crate::params::Params;

impl Upstream {
    /// Handles a message or a batch. `related_call` is the call that it belongs to, if the
    /// transport tells.
    pub(crate) fn handle(self: &Rc<Self>, line: &[u8], related_call: Option<u64>) {
        self.handle_unless(line, related_call, |_| false);
    }

    /// Handles lines that are a message together, or ordinary output.
    pub(super) fn handle_lines(self: &Rc<Self>, mut text: Vec<u8>) {
        if envelope::parse(&text).is_ok() || batch::split(&text).is_some() {
            // A JSON string contains no bare line break.
            text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
            self.breaks_framing();
        }
        self.handle(&text, None);
    }

    fn breaks_framing(&self) {
        if !self.is_unframed.replace(true) {
            tracing::warn!(server = %self.key, "{UNFRAMED}");
            self.log_own(UNFRAMED);
            self.events.on_broken_framing(self);
        }
    }

    /// Handles a line, unless it is no message and `is_held` keeps it, as more lines may follow.
    pub(super) fn handle_unless(
        self: &Rc<Self>,
        line: &[u8],
        related_call: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let message = envelope::parse(line);
        // Only one revision defines batches, but they mean the same in any other.
        if let (Err(Malformed::Batch), Some(parts)) = (&message, batch::split(line)) {
            for part in parts.into_iter().map(|part| part.get().as_bytes()) {
                if part.starts_with(b"{") {
                    self.handle(part, related_call);
                } else {
                    self.unparsed(part);
                }
            }
            return;
        }
        if message.is_err() && is_held(line) {
            return;
        }
        self.dispatch(message, line, related_call);
    }

    /// Handles a large message, which was parsed on another thread.
    fn handle_large(self: &Rc<Self>, message: &LargeMessage, related_call: Option<u64>) {
        match message.parts() {
            Some(parts) => parts.iter().for_each(|part| self.handle_large(part, related_call)),
            None => self.dispatch(message.message(), message.text(), related_call),
        }
    }

    /// Handles a message of any length. A large one is parsed on another thread.
    pub(super) async fn handle_whole(self: &Rc<Self>, text: Bytes, related_call: Option<u64>) {
        if text.len() <= LARGE_THRESHOLD {
            return self.handle(&text, related_call);
        }
        self.handle_large_unless(text, related_call, |_| false).await;
    }

    /// Parses a large text on another thread and handles it, unless it is no message and `is_held`
    /// keeps it. Cancel-safe: nothing is handled before it is parsed.
    pub(super) async fn handle_large_unless(
        self: &Rc<Self>,
        text: Bytes,
        related_call: Option<u64>,
        is_held: impl FnOnce(&[u8]) -> bool,
    ) {
        let Some(message) = self.events.large_reader().read(text.clone()).await else { return };
        let is_message = message.parts().is_some() || message.message().is_ok();
        if is_message {
            return self.handle_large(&message, related_call);
        }
        // The original is held or logged: it need not be UTF-8.
        if !is_held(&text) {
            self.dispatch(message.message(), &text, related_call);
        }
    }

    fn dispatch(
        self: &Rc<Self>,
        message: Result<Message<'_>, Malformed>,
        line: &[u8],
        related_call: Option<u64>,
    ) {
        let related_call = related_call.filter(|upstream_id| !self.is_subscription(*upstream_id));
        self.activity.record_message(message.is_ok());
        match message {
            Ok(Message::Response { id: Some(id), outcome: Outcome::Error(error) })
                if self.is_forwarded(id) && ErrorObject::read(error).is_none() =>
            {
                self.unparsed(line);
                self.fail_malformed(id, "its `error` is no object with a `code` and a `message`");
            }
            Ok(Message::Response { id: Some(id), outcome }) => {
                self.handle_response(id, outcome, line);
            }
            Ok(Message::Notification { method, params }) if method == "notifications/progress" => {
                self.handle_progress(params, line);
            }
            Ok(Message::Notification { method, params }) => {
                let method = &*method;
                if self.handle_subscription_notification(method, params) {
                    return;
                }
                self.events
                    .on_notification(self, &ServerMessage { method, params, line, related_call });
            }
            Ok(Message::Request { id, method, .. }) if method == "ping" => {
                self.send(&crate::reply::result(id, "{}"));
            }
            Ok(Message::Request { id, method, params }) => {
                let method = &*method;
                self.events.on_request(
                    self,
                    id,
                    &ServerMessage { method, params, line, related_call },
                );
            }
            Err(malformed) => {
                self.unparsed(line);
                if let Some(id) = id_in(line) {
                    self.fail_malformed(id, &malformed.to_string());
                }
            }
            // A response without an id goes to the log, for people.
            Ok(Message::Response { id: None, .. }) => self.unparsed(line),
        }
    }

    /// Returns true if the response is passed to its caller unchanged.
    fn is_forwarded(&self, id: &str) -> bool {
        let calls = self.calls.borrow();
        let call = ids::parse(id).and_then(|upstream_id| calls.get(&upstream_id));
        call.is_some_and(|call| {
            matches!(
                call.caller,
                Caller::Client { .. } | Caller::PendingInput(_) | Caller::Admin(_)
            )
        })
    }

    fn handle_response(self: &Rc<Self>, id: &str, outcome: Outcome<'_>, line: &[u8]) {
        let upstream_id = ids::parse(id);
        let mut call =
            upstream_id.and_then(|upstream_id| self.calls.borrow_mut().remove(&upstream_id));
        if let Some(log) = call.as_mut().and_then(|call| call.log.take()) {
            log.answered(outcome);
        }
        match call.map(|call| call.caller) {
            Some(Caller::Client {
                client,
                alias,
                id: client_id,
                stream,
                token,
                response_kind,
                request_meta,
                mut translation,
            }) => {
                let request = (&client, &*client_id, stream);
                if self.requests_input(
                    translation.as_deref_mut(),
                    request_meta.as_deref(),
                    request,
                    outcome,
                ) {
                    return self.call_is_over();
                }
                let mut edits = Edits::of(line);
                edits.replace(id, &*client_id);
                if let Some(translation) = translation {
                    let info = self.introduction().and_then(|it| it.info.clone());
                    translation.edit_answer(outcome, info.as_deref(), &mut edits);
                }
                if response_kind != ResponseKind::Other || matches!(outcome, Outcome::Error(_)) {
                    let (upstream_id, token) = (upstream_id.unwrap_or_default(), token.as_deref());
                    let (client, alias, response_kind) = (&client, &alias, &response_kind);
                    let answer = ClientResponse {
                        client,
                        alias,
                        upstream_id,
                        token,
                        response_kind,
                        outcome,
                    };
                    if let Some((part, new)) = self.events.on_response(self, &answer) {
                        edits.replace(part, new);
                    }
                }
                let mut scratch = self.scratch.borrow_mut();
                scratch.clear();
                edits.append_to(&mut scratch);
                client.respond(&client_id, stream, &scratch);
                scratch.shrink_to(crate::scratch::READ_BYTES);
                drop(scratch);
                self.call_is_over();
            }
            Some(Caller::Admin(answer)) => {
                self.record_call();
                complete_request(answer, line);
            }
            // Internal requests, such as health checks, do not count as use of the server.
            Some(Caller::Internal(answer) | Caller::Subscription(answer)) => {
                complete_request(answer, line);
            }
            Some(cancelled @ Caller::Cancelled { .. }) => {
                if let (Some(upstream_id), Outcome::Result(result)) = (upstream_id, outcome) {
                    self.handle_late_response(upstream_id, &cancelled, result);
                }
            }
            Some(Caller::PendingInput(pending)) => {
                pending.set_result(CallResult::Response(line.into()));
                self.call_is_over();
            }
            Some(Caller::Detached) => {}
            // A call of an earlier daemon, or one that was already answered.
            None => tracing::debug!(server = %self.key, id, "response for unknown request id"),
        }
    }

    /// Returns true if a response requests input of a client of the other era. Then the client gets
    /// the request, or the error that it cannot get one.
    fn requests_input(
        &self,
        translation: Option<&mut EraTranslation>,
        request_meta: Option<&RequestMeta>,
        (client, id, stream): (&Rc<Client>, &str, StreamNo),
        outcome: Outcome<'_>,
    ) -> bool {
        if let Some(wrong) = translation
            .as_ref()
            .and_then(|translation| translation.missing_capability_error(outcome))
        {
            client.respond(id, stream, &wrong.line(id));
            return true;
        }
        match (translation, outcome) {
            (Some(EraTranslation::ToModern { original, .. }), Outcome::Result(result)) => {
                let Some((original, wanted)) = original.take().zip(rounds::input_requests(result))
                else {
                    return false;
                };
                match Round::begin(client, (id, stream), original, &wanted) {
                    Ok(round) if round.is_answered() => round.resend(client),
                    Ok(round) => client.await_input(id, round, stream),
                    Err(fault) => client.respond_error(id, stream, &fault),
                }
                true
            }
            (
                Some(EraTranslation::ToLegacy { binding: Some(binding), .. }),
                Outcome::Error(error),
            ) => {
                let request = (id, stream);
                request_meta.is_some_and(|request_meta| {
                    self.events.on_url_elicitation_error(
                        client,
                        request,
                        request_meta,
                        binding,
                        error,
                    )
                })
            }
            _ => false,
        }
    }

    fn handle_progress(self: &Rc<Self>, params: Option<&str>, line: &[u8]) {
        let Some(part) = Params::read(params).token() else { return self.unparsed(line) };
        let Some(upstream_id) = ids::parse(part) else { return };
        let calls = self.calls.borrow();
        let Some(call) = calls.get(&upstream_id) else {
            drop(calls);
            return self.events.on_progress(self, upstream_id, part, line);
        };
        if let Some(timer) = &call.timer {
            timer.touch();
        }
        if let Caller::Client { client, stream, token: Some(token), .. } = &call.caller {
            let mut edits = Edits::of(line);
            edits.replace(part, &**token);
            client.send(&edits.to_vec(), Route::Related(*stream));
        }
        // Progress of a completed or cancelled call is dropped.
    }

    /// Adds a line that is no message to the server's log; [`Upstream::log_unparsed`] writes it.
    pub(crate) fn unparsed(&self, line: &[u8]) {
        let mut unparsed_lines = self.unparsed_lines.borrow_mut();
        if !line.is_empty() {
            if !unparsed_lines.is_empty() {
                unparsed_lines.push(b'\n');
            }
            unparsed_lines.extend_from_slice(line);
        }
    }

    /// Adds a line of xy itself to the server's log.
    pub(crate) fn log_own(&self, words: impl Display) {
        self.unparsed(format!("{OWN_PREFIX}{words}").as_bytes());
    }

    /// Writes the collected lines to the server's log. Cancel-safe. Reading from the server stops
    /// until there is room in the log.
    pub(crate) async fn log_unparsed(&self) {
        if self.unparsed_lines.borrow().is_empty() {
            return;
        }
        let Ok(room) = self.driver_events.reserve().await else { return };
        let unparsed_lines = std::mem::take(&mut *self.unparsed_lines.borrow_mut());
        if !unparsed_lines.is_empty() {
            // A concurrent call may have sent them already.
            room.send(DriverEvent::UnparsedOutput(unparsed_lines));
        }
    }
}

/// Returns the id in a malformed response. Other output may contain ids too, and so may malformed
/// requests, which are the server's own.
fn id_in(line: &[u8]) -> Option<&str> {
    let head = Head::of(line);
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let is_to_be_one = is_object && !head.has_method && (head.is_response || head.is_rpc);
    head.id.filter(|_| is_to_be_one)
}

/// Completes a request of xy or of an admin user.
fn complete_request(sender: oneshot::Sender<caller::Answered>, line: &[u8]) {
    // All of it was parsed as JSON, so it is UTF-8.
    let _ = sender.send(Ok(String::from_utf8_lossy(line).into()));
}
