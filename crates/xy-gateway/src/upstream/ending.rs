//! Calls that end without a response: cancelled, failed or lost; and the end of the connection.
//!
//! `retry.rs` decides what happens to these calls, `router/recovery.rs` acts.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use xy_mcp::edit::Edits;
use xy_mcp::head::Head;
use xy_protocol::error::{CallError, ErrorKind};

use super::retry::{self, CopyState};
use super::retry_copy::RetryCopy;
use super::{Caller, PendingCall, ResponseKind, State, Upstream, ids};
use crate::backend::{Backend, RetryState};
use crate::client::Client;
use crate::frontend::StreamNo;
use crate::message_text::{MAX_MESSAGE, StoredText};

/// A server whose connections break because it dies is known to be dead after this time.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why a server does not answer, for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cause<'w> {
    /// Only the connection broke; the server may still run.
    is_breach: bool,
    words: &'w str,
}

impl<'w> Cause<'w> {
    /// The server has ended, or gets no more requests.
    pub(crate) fn end(words: &'w str) -> Self {
        Self { is_breach: false, words }
    }

    /// The connection to the server broke.
    pub(crate) fn breach(words: &'w str) -> Self {
        Self { is_breach: true, words }
    }
}

/// A client's call that its server will not answer.
pub(crate) struct UnansweredCall {
    pub(crate) client: Rc<Client>,
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Backend>,
    /// The client's id of the request.
    pub(crate) id: Box<str>,
    pub(crate) stream: StreamNo,
    pub(crate) response_kind: ResponseKind,
    /// The client is modern: the request says everything about it.
    pub(crate) is_modern: bool,
    pub(crate) delivery: retry::Delivery,
    /// The server has sent its client a request during the call.
    pub(crate) has_server_request: bool,
    /// The history of the call.
    pub(crate) retry_state: RetryState,
    pub(crate) copy: CopyState,
    /// The text that the client wrote, if it was kept.
    pub(crate) request_text: Option<StoredText>,
}

impl UnansweredCall {
    /// Converts a pending call; returns its caller as `Err` if that is not a client.
    fn of(call: PendingCall, delivery: retry::Delivery) -> Result<Self, Caller> {
        let PendingCall { caller, timer, has_server_request, mut retry_state, retry_copy, .. } =
            call;
        let Caller::Client { client, alias, id, stream, response_kind, request_meta, .. } = caller
        else {
            return Err(caller);
        };
        let is_modern = request_meta.is_some();
        retry_state.rounds.timer = timer.or(retry_state.rounds.timer);
        retry_state.waits_since = None;
        retry_state.was_sent = true;
        let copy = if retry_copy.is_some() { CopyState::Available } else { CopyState::NotKept };
        let request_text = retry_copy.map(RetryCopy::into_text);
        Ok(Self {
            client,
            alias,
            id,
            stream,
            response_kind,
            is_modern,
            delivery,
            has_server_request,
            retry_state,
            copy,
            request_text,
        })
    }
}

impl Upstream {
    /// Cancels a call, and notifies the server.
    pub(crate) fn cancel(self: &Rc<Self>, upstream_id: u64, reason: &str) {
        let reason = crate::names::quoted(reason);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream_id},"reason":{reason}}}}}"#
        );
        self.cancel_with(upstream_id, message.as_bytes());
    }

    /// Cancels a call with the client's own notification, in which `client_id` is the id of the
    /// request.
    pub(crate) fn cancel_as(self: &Rc<Self>, upstream_id: u64, text: &[u8], client_id: &str) {
        let mut edits = Edits::of(text);
        edits.replace(client_id, upstream_id.to_string());
        self.cancel_with(upstream_id, &edits.to_vec());
    }

    pub(super) fn cancel_with(self: &Rc<Self>, upstream_id: u64, message: &[u8]) {
        if let Some(caller) = self.give_up(upstream_id) {
            if !matches!(caller, Caller::Internal(_) | Caller::Subscription(_)) {
                self.prune_cancelled_later();
            }
            self.notify_cancelled(upstream_id, message);
            self.call_is_over();
        }
    }

    /// Notifies the server that a call was cancelled.
    pub(super) fn notify_cancelled(&self, upstream_id: u64, message: &[u8]) {
        if self.wire.abandon(upstream_id) {
            self.calls.borrow_mut().remove(&upstream_id); // No response can come any more.
        } else {
            self.send(message);
        }
    }

    /// Completes a call with an error, as its response is malformed.
    pub(super) fn fail_malformed(self: &Rc<Self>, id: &str, reason: &str) {
        let call =
            ids::parse(id).and_then(|upstream_id| self.calls.borrow_mut().remove(&upstream_id));
        if let Some(call) = call {
            let message = format!("`{}` sent a malformed response", self.key.server);
            let fault = CallError::new(ErrorKind::Internal, message).cause(reason);
            call.caller.fail(&self.key.server, &fault);
            self.call_is_over();
        }
    }

    /// Handles the beginning of a line that exceeds the message limit. If the line seems to be a
    /// response, its call fails.
    pub(super) fn too_long(self: &Rc<Self>, head: &[u8]) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it wrote a line longer than {limit} MiB"));
        let head = Head::of(head);
        if !head.is_response {
            return;
        }
        let named = head.id.and_then(ids::parse);
        // Some servers write the id last: then the call is known only if it is the only one.
        let calls = self.calls.borrow();
        let can_be = |call: &PendingCall| !matches!(call.caller, Caller::Subscription(_));
        let open: Vec<u64> = calls
            .iter()
            .filter(|(_, call)| can_be(call))
            .map(|(upstream_id, _)| *upstream_id)
            .collect();
        drop(calls);
        let upstream_id = named.or_else(|| (open.len() == 1).then(|| open[0]));
        if let Some(upstream_id) = upstream_id {
            self.fail_too_long(upstream_id);
        }
    }

    /// Handles a message of this call that exceeds the message limit.
    pub(super) fn too_long_for(self: &Rc<Self>, upstream_id: u64) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it sent a message longer than {limit} MiB"));
        self.fail_too_long(upstream_id);
    }

    pub(super) fn fail_too_long(self: &Rc<Self>, upstream_id: u64) {
        let (server, limit) = (&self.key.server, MAX_MESSAGE >> 20);
        let message = format!("the answer of `{server}` is longer than {limit} MiB");
        let fault = CallError::new(ErrorKind::Internal, message);
        self.fail(upstream_id, &fault.cause("xy does not pass on such answers"));
    }

    /// Accepts no more requests. Pending calls may still be answered.
    pub(crate) fn stop_accepting(&self) {
        self.state.replace(State::Closed);
        self.wire.close();
    }

    /// Returns true if no more requests are accepted.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), State::Closed)
    }

    /// Returns to the handshake state, unless the connection is closed.
    pub(crate) fn reset(&self) {
        let mut state = self.state.borrow_mut();
        if !matches!(*state, State::Closed) {
            *state = State::Handshaking;
        }
    }

    /// Returns true if a call is pending and its caller waits for the response.
    pub(super) fn is_open(&self, upstream_id: u64) -> bool {
        self.calls.borrow().get(&upstream_id).is_some_and(|call| call.caller.is_waiting())
    }

    /// Returns true if a call is pending and was not cancelled.
    pub(super) fn is_wanted(&self, upstream_id: u64) -> bool {
        let calls = self.calls.borrow();
        calls.get(&upstream_id).is_some_and(|call| !matches!(call.caller, Caller::Cancelled { .. }))
    }

    /// Returns true if a call is pending, cancelled or not.
    pub(super) fn has_call(&self, upstream_id: u64) -> bool {
        self.calls.borrow().contains_key(&upstream_id)
    }

    /// Completes a call with an error.
    pub(super) fn fail(self: &Rc<Self>, upstream_id: u64, fault: &CallError) {
        let call = self.calls.borrow_mut().remove(&upstream_id);
        if let Some(call) = call {
            call.caller.fail(&self.key.server, fault);
            self.call_is_over();
        }
    }

    /// Handles a call whose connection broke. With `is_final`, a retry would have the same result.
    pub(crate) fn lose(
        self: &Rc<Self>,
        upstream_id: u64,
        delivery: retry::Delivery,
        why: &str,
        is_final: bool,
    ) {
        let has_admin = |call: &PendingCall| matches!(call.caller, Caller::Admin(_));
        let is_admin = self.calls.borrow().get(&upstream_id).is_some_and(has_admin);
        if is_admin && delivery == retry::Delivery::Written && !is_final && self.wire.has_process()
        {
            return self.lose_later(upstream_id, why);
        }
        self.lose_now(upstream_id, delivery, why, is_final);
    }

    /// Handles the broken call after a delay. If the server turns out to have died meanwhile, the
    /// admin user gets that error instead.
    fn lose_later(self: &Rc<Self>, upstream_id: u64, why: &str) {
        let (upstream, why) = (self.clone(), why.to_owned());
        tokio::task::spawn_local(async move {
            sleep(DEATH_TIMEOUT).await;
            upstream.lose_now(upstream_id, retry::Delivery::Written, &why, false);
        });
    }

    fn lose_now(
        self: &Rc<Self>,
        upstream_id: u64,
        delivery: retry::Delivery,
        why: &str,
        is_final: bool,
    ) {
        let why = Cause::breach(why);
        let Some(call) = self.calls.borrow_mut().remove(&upstream_id) else { return };
        match UnansweredCall::of(call, delivery) {
            Ok(mut lost) => {
                if is_final {
                    lost.copy = CopyState::Useless;
                }
                self.events.on_calls_lost(self, vec![lost], why);
            }
            Err(caller) => {
                let fault = self.lost_error(delivery == retry::Delivery::Written, why);
                caller.fail(&self.key.server, &fault);
            }
        }
        self.call_is_over();
    }

    /// Completes this call with an error, as its response is malformed.
    pub(super) fn fail_malformed_call(self: &Rc<Self>, upstream_id: u64, reason: &str) {
        self.fail_malformed(&upstream_id.to_string(), reason);
    }

    /// Fails or recovers all pending calls, for this reason.
    pub(crate) fn fail_all(&self, why: Cause<'_>) {
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let mut calls: Vec<(u64, PendingCall)> = calls.into_iter().collect();
        calls.sort_unstable_by_key(|(upstream_id, _)| *upstream_id);
        let unread_from = self.wire.unread_from();
        let mut lost = Vec::new();
        for (_, call) in calls {
            let delivery = self.delivery_of(call.offset, unread_from);
            match UnansweredCall::of(call, delivery) {
                Ok(call) => lost.push(call),
                Err(caller) => {
                    let fault = self.lost_error(delivery == retry::Delivery::Written, why);
                    caller.fail(&self.key.server, &fault);
                }
            }
        }
        self.events.on_calls_lost(self, lost, why);
        self.subscription.fail_waiters();
        self.wire.hang_up();
    }

    fn delivery_of(&self, offset: u64, unread_from: Option<u64>) -> retry::Delivery {
        if !self.wire.is_written(offset) {
            retry::Delivery::Unwritten
        } else if unread_from.is_some_and(|from| offset >= from) {
            retry::Delivery::Unread
        } else {
            retry::Delivery::Written
        }
    }

    /// Closes the connection: accepts no more requests, and fails or recovers all pending calls.
    pub(crate) fn close(&self, why: Cause<'_>) {
        self.stop_accepting();
        self.fail_all(why);
    }

    /// Stops using the server, which another daemon takes over. Clients get no response: their
    /// connections are closed, and they know best what to repeat.
    pub(crate) fn hand_over(&self) {
        self.stop_accepting();
        for PendingCall { caller, .. } in
            std::mem::take(&mut *self.calls.borrow_mut()).into_values()
        {
            match caller {
                Caller::Client { client, id, .. } => client.forget_request(&id),
                caller => {
                    let fault = self.lost_error(true, Cause::end("another daemon took over"));
                    caller.fail(&self.key.server, &fault);
                }
            }
        }
        self.wire.hang_up();
    }

    /// Returns the error for a call that gets no response.
    pub(crate) fn lost_error(&self, is_written: bool, why: Cause<'_>) -> CallError {
        let (server, words) = (&self.key.server, why.words);
        if is_written && why.is_breach {
            CallError::new(ErrorKind::TransportFailed, format!("outcome unknown: {words}"))
                .cause(format!("the call was sent to `{server}`, and the connection broke before it answered"))
                .hint(format!("find out whether it was done before you repeat it; `xy status {server}` shows how it is"))
        } else if is_written {
            CallError::new(ErrorKind::OutcomeUnknown, format!("outcome unknown: {words}"))
                .cause(format!("the call was sent to `{server}`, and not answered"))
                .hint(format!("find out whether it was done before you repeat it; `xy logs {server}` shows its last output"))
        } else {
            CallError::new(ErrorKind::NotRunning, format!("not done: {words}"))
                .cause(format!("the call was not sent to `{server}` yet"))
                .hint("try again")
        }
    }
}
