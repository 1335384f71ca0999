//! Calls that end without a response: cancelled, failed or lost; and the end of the connection.
//!
//! `retry.rs` decides what happens to these calls, `router/recovery.rs` acts.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use xy_http::frontend::StreamNo;
use xy_mcp::edit::Edits;
use xy_transport::message_text::StoredText;
use xy_upstream::connection::Delivery;
use xy_upstream::fault::{Cause, LossReason, ServerFault};

use super::retry::CopyState;
use super::retry_copy::RetryCopy;
use super::{Caller, PendingCall, Upstream};
use crate::call::{Alias, CallClient, ResponseKind, RetryState};

/// A server whose connections break because it dies is known to be dead after this time.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// A call that its server will not answer.
pub(crate) enum UnansweredCall {
    /// The call of a client.
    Client(ClientCall),
    /// The call of another caller, which gets an error.
    Other { caller: Caller, delivery: Delivery },
}

/// A client's call that its server will not answer.
pub(crate) struct ClientCall {
    pub(crate) client: Rc<dyn CallClient>,
    /// The server, under the name that the client used.
    pub(crate) alias: Rc<Alias>,
    /// The client's id of the request.
    pub(crate) id: Box<str>,
    pub(crate) stream: StreamNo,
    pub(crate) response_kind: ResponseKind,
    /// The client is modern: the request says everything about it.
    pub(crate) is_modern: bool,
    pub(crate) delivery: Delivery,
    /// The server has sent its client a request during the call.
    pub(crate) has_server_request: bool,
    /// The history of the call.
    pub(crate) retry_state: RetryState,
    pub(crate) copy: CopyState,
    /// The text that the client wrote, if it was kept.
    pub(crate) request_text: Option<StoredText>,
}

impl UnansweredCall {
    fn of(call: PendingCall, delivery: Delivery) -> Self {
        let PendingCall {
            caller, timer, has_server_request, mut retry_state, retry_copy, log, ..
        } = call;
        if let Some(log) = log {
            log.ended("lost");
        }
        let Caller::Client { client, alias, id, stream, response_kind, request_meta, .. } = caller
        else {
            return Self::Other { caller, delivery };
        };
        let is_modern = request_meta.is_some();
        retry_state.rounds.timer = timer.or(retry_state.rounds.timer);
        retry_state.waits_since = None;
        retry_state.was_sent = true;
        let copy = if retry_copy.is_some() { CopyState::Available } else { CopyState::NotKept };
        let request_text = retry_copy.map(RetryCopy::into_text);
        Self::Client(ClientCall {
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
    pub(crate) fn cancel(&self, upstream_id: u64, reason: &str) {
        if self.give_up(upstream_id).is_some() {
            self.prune_cancelled_later();
            self.notify_given_up(upstream_id, reason);
            self.call_is_over();
        }
    }

    /// Cancels a call with the client's own notification, in which `client_id` is the id of the
    /// request.
    pub(crate) fn cancel_as(&self, upstream_id: u64, text: &[u8], client_id: &str) {
        if self.give_up(upstream_id).is_some() {
            self.prune_cancelled_later();
            let mut edits = Edits::of(text);
            edits.replace(client_id, upstream_id.to_string());
            if self.notify_cancelled_with(upstream_id, &edits.to_vec()) {
                self.calls.borrow_mut().remove(&upstream_id); // No response can come any more.
            }
            self.call_is_over();
        }
    }

    /// Notifies the server that a call was given up.
    pub(super) fn notify_given_up(&self, upstream_id: u64, reason: &str) {
        if self.notify_cancelled(upstream_id, reason) {
            self.calls.borrow_mut().remove(&upstream_id); // No response can come any more.
        }
    }

    /// Removes a call, which has ended. Returns it, if it is known.
    pub(crate) fn take_call(&self, upstream_id: u64) -> Option<PendingCall> {
        self.calls.borrow_mut().remove(&upstream_id)
    }

    /// Completes a call with an error.
    pub(super) fn fail_call(&self, upstream_id: u64, fault: &ServerFault) {
        if let Some(call) = self.take_call(upstream_id) {
            call.caller.fail(fault);
            self.call_is_over();
        }
    }

    /// Handles a call whose connection broke. With `is_final`, a retry would have the same result.
    pub(super) fn lose_call(
        &self,
        upstream_id: u64,
        delivery: Delivery,
        why: LossReason,
        is_final: bool,
    ) {
        let has_admin = |call: &PendingCall| matches!(call.caller, Caller::Admin(_));
        let is_admin = self.calls.borrow().get(&upstream_id).is_some_and(has_admin);
        if is_admin && delivery == Delivery::Written && !is_final && self.wire().has_process() {
            return self.lose_later(upstream_id, why);
        }
        self.lose_now(upstream_id, delivery, why, is_final);
    }

    /// Handles the broken call after a delay. If the server turns out to have died meanwhile, the
    /// admin user gets that error instead.
    fn lose_later(&self, upstream_id: u64, why: LossReason) {
        let upstream = self.me();
        tokio::task::spawn_local(async move {
            sleep(DEATH_TIMEOUT).await;
            upstream.lose_now(upstream_id, Delivery::Written, why, false);
        });
    }

    fn lose_now(&self, upstream_id: u64, delivery: Delivery, why: LossReason, is_final: bool) {
        let cause = Cause::breach(why);
        let Some(call) = self.take_call(upstream_id) else { return };
        let mut lost = UnansweredCall::of(call, delivery);
        if let UnansweredCall::Client(call) = &mut lost
            && is_final
        {
            call.copy = CopyState::Useless;
        }
        self.events.on_calls_lost(self, vec![lost], &cause);
        self.call_is_over();
    }

    /// Fails or recovers all pending calls, for this reason.
    pub(crate) fn fail_all(&self, why: &Cause) {
        let deliveries: HashMap<u64, Delivery> = self.hang_up(why).into_iter().collect();
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let mut calls: Vec<(u64, PendingCall)> = calls.into_iter().collect();
        calls.sort_unstable_by_key(|(upstream_id, _)| *upstream_id);
        let lost = calls.into_iter().map(|(upstream_id, call)| {
            // The connection has given up the calls that it does not know any more.
            let delivery = deliveries.get(&upstream_id).copied().unwrap_or(Delivery::Written);
            UnansweredCall::of(call, delivery)
        });
        self.events.on_calls_lost(self, lost.collect(), why);
    }

    /// Closes the connection: accepts no more requests, and fails or recovers all pending calls.
    pub(crate) fn close(&self, why: &Cause) {
        self.stop_accepting();
        self.fail_all(why);
    }

    /// Stops using the server, which another daemon takes over. Clients get no response: their
    /// connections are closed, and they know best what to repeat.
    pub(crate) fn hand_over(&self) {
        self.stop_accepting();
        let cause = Cause::end(LossReason::taken_over());
        self.hang_up(&cause);
        let lost = ServerFault::Lost { is_written: true, cause };
        for call in std::mem::take(&mut *self.calls.borrow_mut()).into_values() {
            match call.caller {
                Caller::Client { client, id, .. } => client.forget_request(&id),
                caller => caller.fail(&lost),
            }
        }
    }
}
