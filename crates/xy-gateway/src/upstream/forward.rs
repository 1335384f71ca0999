//! Forwards requests of clients under upstream ids, if the server has room for them.

use xy_mcp::edit::Edits;
use xy_transport::chunks::Chunks;
use xy_transport::message_text::MessageText;
use xy_upstream::connection::{MAX_BUFFERED_BYTES, MAX_CALLS};
use xy_upstream::fault::ServerFault;

use super::retry_copy::RetryCopy;
use super::{CallLog, Caller, PendingCall, Upstream, retry};
use crate::call::CallRequest;

impl Upstream {
    /// Forwards a request under a new upstream id, and returns that id.
    pub(crate) fn forward(
        &self,
        request: CallRequest<'_>,
        caller: Caller,
    ) -> Result<u64, ServerFault> {
        self.make_room();
        let length = request.text.len();
        let check = self.check_room().and_then(|()| self.check_share(&caller));
        check.and_then(|()| self.check_unread_share(&caller, length)).inspect_err(|fault| {
            if let Caller::Client { client, .. } = &caller {
                client.record_limit(fault);
            }
        })?;
        self.record_call();
        self.is_fresh.set(false);
        let upstream_id = self.new_id();
        let log = CallLog::begin(&request, &caller, upstream_id);
        let number = upstream_id.to_string();
        let mut edits = Edits::of(request.text.bytes());
        edits.replace(request.id, number.as_str());
        if let Some(translation) = caller.translation() {
            translation.edit(&request, &number, &mut edits);
        } else {
            if let Some(token) = request.token {
                edits.replace(token, number.as_str());
            }
            if let Some((part, new)) = request.meta_override {
                edits.replace(part, new);
            }
        }
        if let Some((part, new)) = request.renamed {
            edits.replace(part, new);
        }
        let write = &mut |out: &mut Chunks| request.text.append_edited(&mut edits, out);
        let client = caller.client().map(|client| client.number());
        let offset = self.connection.forward(upstream_id, client, write);
        if let Some(client) = caller.client() {
            let is_written = |offset| self.wire().is_written(offset);
            self.unread_bytes.borrow_mut().add(offset, client.token(), length, is_written);
        }
        let retry_copy = self.keep(request.text, request.method_and_target, &caller);
        let (timer, retry_state) = (request.timer, request.retry_state);
        if let Some(client) = client {
            self.wire().order_after(upstream_id, client, retry_state.has_waited());
        }
        let has_server_request = retry_state.rounds.count > 0;
        let call = PendingCall {
            timer,
            has_server_request,
            retry_state,
            retry_copy,
            log,
            ..PendingCall::new(caller, offset)
        };
        self.calls.borrow_mut().insert(upstream_id, call);
        self.flush();
        Ok(upstream_id)
    }

    /// Returns a copy of a client's text for a retry, if there is room.
    fn keep(
        &self,
        text: MessageText<'_>,
        what: (&str, Option<&str>),
        caller: &Caller,
    ) -> Option<RetryCopy> {
        let is_client = matches!(caller, Caller::Client { .. });
        is_client
            .then(|| {
                RetryCopy::of(text, what, &self.retry_copy_bytes, self.max_retry_copy_bytes.get())
            })
            .flatten()
    }

    /// Drops the copy of the call at this offset, which the server has begun to read, unless the
    /// call may be repeated.
    ///
    /// The copy would only take the room of others. It is kept while the lists of the server are
    /// unknown, as they may still say that the call may be repeated.
    pub(crate) fn drop_retry_copy(&self, offset: u64) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.values_mut().find(|call| call.offset == offset) else { return };
        let Caller::Client { client, alias, response_kind, .. } = &call.caller else { return };
        let Some(retry_copy) = &mut call.retry_copy else { return };
        let Some(known) = self.known() else { return };
        let known = self.shown_as(&alias.name, &**client, known);
        let (view, known) = (&client.entry().view, known.as_deref());
        let idempotency = match retry_copy.about() {
            Some((method, name)) => {
                retry::classify_method(method, name, response_kind, view, known)
            }
            None => retry::classify(retry_copy.text(), response_kind, view, known),
        };
        if !idempotency.may_be_repeated() {
            retry_copy.discard();
        }
    }

    /// Forgets cancelled calls if there are so many calls that they keep out others.
    fn make_room(&self) {
        if self.calls.borrow().len() >= MAX_CALLS {
            self.forget_calls(|call| !call.caller.is_waiting());
        }
    }

    /// Checks that the client's token leaves room for calls of others at this server.
    fn check_share(&self, caller: &Caller) -> Result<(), ServerFault> {
        let Caller::Client { client, .. } = caller else { return Ok(()) };
        let token = client.token();
        let all = self.calls.borrow().len();
        if token.may_take(all, all, MAX_CALLS) {
            return Ok(()); // Holds even if all calls are its own: no need to count.
        }
        self.forget_calls(|call| !call.caller.is_waiting());
        let calls = self.calls.borrow();
        let own = calls.values().filter(|call| call.caller.token() == Some(token.id)).count();
        if token.may_take(own, calls.len(), MAX_CALLS) {
            return Ok(());
        }
        Err(ServerFault::CallShare { own, most: MAX_CALLS })
    }

    /// Checks that the client's token leaves room for unread calls of others at this server.
    fn check_unread_share(&self, caller: &Caller, length: usize) -> Result<(), ServerFault> {
        let Caller::Client { client, .. } = caller else { return Ok(()) };
        let (token, all, most) = (client.token(), self.wire().waiting(), MAX_BUFFERED_BYTES);
        if token.may_take_more(length, all, all, most) {
            return Ok(()); // Holds even if all bytes are its own: no need to count.
        }
        let is_written = |offset| self.wire().is_written(offset);
        let own = self.unread_bytes.borrow_mut().of(token, is_written);
        if token.may_take_more(length, own, all, most) {
            return Ok(());
        }
        Err(ServerFault::UnreadShare { own, most })
    }
}
