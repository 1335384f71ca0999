//! Sending to a server: client requests under upstream ids, xy's own requests, notifications and
//! responses. Also checks whether the server has room for more.

use std::borrow::Cow;
use std::rc::Rc;

use tokio::sync::oneshot;
use xy_mcp::edit::{Edits, append_on_one_line};
use xy_protocol::error::{CallError, ErrorKind};

use super::retry_copy::RetryCopy;
use super::{
    CallLog, Caller, InternalRequest, PendingCall, Request, State, Upstream, caller, retry,
    self_meta,
};
use crate::chunks::Chunks;
use crate::message_text::MessageText;

/// Maximum number of pending calls of one server, far above what clients need.
const MAX_CALLS: usize = 10_000;

/// Maximum number of bytes that wait for a server that does not read.
const MAX_BUFFERED_BYTES: usize = 64 * 1024 * 1024;

impl Upstream {
    /// Forwards a request under a new upstream id, and returns that id.
    pub(crate) fn forward(&self, request: Request<'_>, caller: Caller) -> Result<u64, CallError> {
        self.check_room().and_then(|()| self.check_share(&caller)).inspect_err(|fault| {
            if fault.kind == ErrorKind::QueueFull
                && let Caller::Client { client, .. } = &caller
            {
                client.limit_hit("open calls with one server");
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
        let offset = self.wire.put(Some(upstream_id), write);
        let retry_copy = self.keep(request.text, request.method_and_target, &caller);
        let (timer, retry_state) = (request.timer, request.retry_state);
        if let Caller::Client { client, .. } = &caller {
            self.wire.order_after(upstream_id, client.number(), retry_state.has_waited());
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
        self.wire.flush(self.calls.borrow().len() == 1 + self.subscription.count());
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
        let known = self.shown_as(alias, client, known);
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

    /// Sends a request of xy itself.
    pub(crate) fn ask(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<InternalRequest, CallError> {
        self.ask_with(method, params, Caller::Internal)
    }

    pub(super) fn ask_with(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
        caller: fn(oneshot::Sender<caller::Answered>) -> Caller,
    ) -> Result<InternalRequest, CallError> {
        self.check_room()?;
        let upstream_id = self.new_id();
        let params = if self.is_modern() {
            Some(Cow::Owned(self_meta::params(params, &self.events.daemons_before(self))))
        } else {
            params.map(Cow::Borrowed)
        };
        let text = match params {
            Some(params) => {
                format!(
                    r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"{method}","params":{params}}}"#
                )
            }
            None => format!(r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"{method}"}}"#),
        };
        let write = &mut |out: &mut Chunks| append_on_one_line(out.tail(), text.as_bytes());
        let offset = self.wire.put(Some(upstream_id), write);
        let (answer, answered) = oneshot::channel();
        let call = PendingCall::new(caller(answer), offset);
        self.calls.borrow_mut().insert(upstream_id, call);
        self.wire.flush(false);
        Ok(InternalRequest { upstream: self.clone(), upstream_id, answered })
    }

    /// Sends a request for the admin interface, whose user chose the method.
    pub(crate) fn ask_for_admin(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<InternalRequest, CallError> {
        let method = crate::names::quoted(method);
        self.is_fresh.set(false);
        let request = self.ask_with(&method[1..method.len() - 1], params, Caller::Admin)?;
        self.watch_reading();
        Ok(request)
    }

    /// Sends a notification or a response. Drops it if the server is closed or does not read.
    pub(crate) fn send(&self, message: &[u8]) {
        if matches!(*self.state.borrow(), State::Closed) || self.wire.waiting() > MAX_BUFFERED_BYTES
        {
            return;
        }
        self.wire.put(None, &mut |out| append_on_one_line(out.tail(), message));
        self.wire.flush(false);
    }

    /// Checks that the client's token leaves room for calls of others at this server.
    fn check_share(&self, caller: &Caller) -> Result<(), CallError> {
        let Caller::Client { client, .. } = caller else { return Ok(()) };
        let token = client.token();
        let all = self.calls.borrow().len();
        if token.may_take(all, all, MAX_CALLS) {
            return Ok(()); // Holds even if all calls are its own: no need to count.
        }
        self.calls.borrow_mut().retain(|_, call| call.caller.is_waiting());
        let calls = self.calls.borrow();
        let own = calls.values().filter(|call| call.caller.token() == Some(token.id)).count();
        if token.may_take(own, calls.len(), MAX_CALLS) {
            return Ok(());
        }
        let server = &self.key.server;
        let message = format!("`{server}` takes no more calls of this token");
        Err(CallError::new(ErrorKind::QueueFull, message)
            .cause(format!(
                "{own} of its calls are open there, and the rest of {MAX_CALLS} is for others"
            ))
            .hint("wait for some of them, or try again later"))
    }

    fn check_room(&self) -> Result<(), CallError> {
        let server = &self.key.server;
        let full = |why: String| {
            CallError::new(ErrorKind::QueueFull, format!("`{server}` cannot take more calls"))
                .cause(why)
        };
        if matches!(*self.state.borrow(), State::Closed) {
            return Err(CallError::new(
                ErrorKind::NotRunning,
                format!("`{server}` is not running"),
            ));
        }
        if self.calls.borrow().len() >= MAX_CALLS {
            // Cancelled calls must not keep out calls that have a waiting caller.
            self.calls.borrow_mut().retain(|_, call| call.caller.is_waiting());
        }
        if self.calls.borrow().len() >= MAX_CALLS {
            return Err(full(format!("{MAX_CALLS} are open")));
        }
        if self.wire.waiting() > MAX_BUFFERED_BYTES {
            return Err(full("it does not read what it is sent".to_owned()));
        }
        Ok(())
    }
}
