//! Requests that end without a response, and the end of the connection.

use xy_mcp::head::Head;
use xy_transport::message_text::MAX_MESSAGE;

use super::{Connection, Origin, State, ids};
use crate::fault::{Cause, LossReason, ServerFault};

/// The progress of a request's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Not a byte was sent.
    Unwritten,
    /// It was sent, and no byte of it was or will be read.
    Unread,
    /// The server may have read it.
    Written,
}

impl Connection {
    /// Marks a forwarded request as cancelled. The server may still answer it.
    pub fn cancel_forwarded(&self, upstream_id: u64) {
        if let Some(request) = self.requests.borrow_mut().get_mut(&upstream_id) {
            request.origin = Origin::Cancelled;
        }
    }

    /// Removes a request, whose response is ignored from now on.
    pub fn forget_request(&self, upstream_id: u64) {
        self.requests.borrow_mut().remove(&upstream_id);
    }

    /// Notifies the server that a request was cancelled.
    pub fn notify_cancelled(&self, upstream_id: u64, reason: &str) -> bool {
        let reason = xy_mcp::edit::quoted(reason);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream_id},"reason":{reason}}}}}"#
        );
        self.notify_cancelled_with(upstream_id, message.as_bytes())
    }

    /// Notifies the server with this message that a request was cancelled. Returns true if no
    /// response can come any more.
    pub fn notify_cancelled_with(&self, upstream_id: u64, message: &[u8]) -> bool {
        let is_gone = self.wire.abandon(upstream_id);
        if is_gone {
            self.forget_request(upstream_id);
        } else {
            self.send(message);
        }
        is_gone
    }

    /// Completes a request with an error, as its response is malformed. `id` is as the server wrote
    /// it.
    pub(super) fn fail_malformed(&self, id: &str, reason: &str) {
        if let Some(upstream_id) = ids::parse(id) {
            self.fail_malformed_request(upstream_id, reason);
        }
    }

    /// Completes this request with an error, as its response is malformed.
    pub(super) fn fail_malformed_request(&self, upstream_id: u64, reason: &str) {
        self.fail(upstream_id, &ServerFault::Malformed(reason.to_owned()));
    }

    /// Handles the beginning of a line that exceeds the message limit. If the line seems to be a
    /// response, its request fails.
    pub(super) fn too_long(&self, head: &[u8]) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it wrote a line longer than {limit} MiB"));
        let head = Head::of(head);
        if !head.is_response {
            return;
        }
        let named = head.id.and_then(ids::parse);
        // Some servers write the id last: then the request is known only if it is the only one.
        let requests = self.requests.borrow();
        let can_be = |origin: &Origin| !matches!(origin, Origin::Subscription(_));
        let mut open = requests.iter().filter(|(_, it)| can_be(&it.origin)).map(|(id, _)| *id);
        let only = open.next().filter(|_| open.next().is_none());
        drop(open);
        drop(requests);
        if let Some(upstream_id) = named.or(only) {
            self.fail(upstream_id, &ServerFault::TooLong);
        }
    }

    /// Handles a message of this request that exceeds the message limit.
    pub(super) fn too_long_for(&self, upstream_id: u64) {
        let limit = MAX_MESSAGE >> 20;
        self.log_own(format_args!("it sent a message longer than {limit} MiB"));
        self.fail(upstream_id, &ServerFault::TooLong);
    }

    /// Completes a request with an error.
    pub(super) fn fail(&self, upstream_id: u64, fault: &ServerFault) {
        let request = self.requests.borrow_mut().remove(&upstream_id);
        match request.map(|request| request.origin) {
            Some(Origin::Forwarded { .. } | Origin::Cancelled) => {
                self.emit(|events| events.on_request_failed(upstream_id, fault));
            }
            Some(Origin::Internal(answer) | Origin::Subscription(answer)) => {
                drop(answer.send(Err(fault.clone()))); // The receiver may be gone.
            }
            Some(Origin::Detached) | None => {}
        }
    }

    /// Handles a request whose connection broke. With `is_final`, a retry would have the same
    /// result.
    pub fn lose(&self, upstream_id: u64, delivery: Delivery, why: LossReason, is_final: bool) {
        let request = self.requests.borrow_mut().remove(&upstream_id);
        match request.map(|request| request.origin) {
            Some(Origin::Forwarded { .. } | Origin::Cancelled) => {
                self.emit(|events| {
                    events.on_request_lost(upstream_id, delivery, why, is_final);
                });
            }
            Some(Origin::Internal(answer) | Origin::Subscription(answer)) => {
                let is_written = delivery == Delivery::Written;
                let cause = Cause::breach(why);
                drop(answer.send(Err(ServerFault::Lost { is_written, cause })));
            }
            Some(Origin::Detached) | None => {}
        }
    }

    /// Stops using the connection. Fails xy's own requests, and returns the forwarded ones in the
    /// order in which they were sent.
    pub fn hang_up(&self, why: &Cause) -> Vec<(u64, Delivery)> {
        let requests = std::mem::take(&mut *self.requests.borrow_mut());
        let unread_from = self.wire.unread_from();
        let mut forwarded = Vec::new();
        for (upstream_id, request) in requests {
            let delivery = self.delivery_of(request.offset, unread_from);
            match request.origin {
                Origin::Forwarded { .. } | Origin::Cancelled => {
                    forwarded.push((upstream_id, delivery));
                }
                Origin::Internal(answer) | Origin::Subscription(answer) => {
                    let is_written = delivery == Delivery::Written;
                    let cause = why.clone();
                    drop(answer.send(Err(ServerFault::Lost { is_written, cause })));
                }
                Origin::Detached => {}
            }
        }
        forwarded.sort_unstable_by_key(|(upstream_id, _)| *upstream_id);
        self.subscription.fail_waiters();
        self.wire.hang_up();
        forwarded
    }

    fn delivery_of(&self, offset: u64, unread_from: Option<u64>) -> Delivery {
        if !self.wire.is_written(offset) {
            Delivery::Unwritten
        } else if unread_from.is_some_and(|from| offset >= from) {
            Delivery::Unread
        } else {
            Delivery::Written
        }
    }

    /// Accepts no more requests. Pending ones may still be answered.
    pub fn stop_accepting(&self) {
        self.state.replace(State::Closed);
        self.wire.close();
    }

    /// Returns true if no more requests are accepted.
    pub fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), State::Closed)
    }

    /// Returns to the handshake state, unless the connection is closed.
    pub fn reset(&self) {
        let mut state = self.state.borrow_mut();
        if !matches!(*state, State::Closed) {
            *state = State::Handshaking;
        }
    }

    /// Returns true if a request is pending and its caller waits for the response.
    pub(super) fn is_open(&self, upstream_id: u64) -> bool {
        self.requests.borrow().get(&upstream_id).is_some_and(|it| it.origin.is_waiting())
    }

    /// Returns true if a request is pending and was not cancelled.
    pub(super) fn is_wanted(&self, upstream_id: u64) -> bool {
        let requests = self.requests.borrow();
        requests.get(&upstream_id).is_some_and(|it| !matches!(it.origin, Origin::Cancelled))
    }

    /// Returns true if a request is pending, cancelled or not.
    pub(super) fn is_pending(&self, upstream_id: u64) -> bool {
        self.requests.borrow().contains_key(&upstream_id)
    }
}
