//! What is sent to a server: requests of clients under ids of ours, questions of our own, and
//! messages that want no answer. Whether there is room for more is decided here.

use std::borrow::Cow;
use std::rc::Rc;

use tokio::sync::oneshot;
use xy_mcp::edit::{Edits, append_on_one_line};
use xy_protocol::error::{CallError, ErrorKind};

use super::kept::Kept;
use super::{Call, CallLog, Caller, Question, Request, Stage, Upstream, caller, retry, self_meta};
use crate::chunks::Chunks;
use crate::message_text::MessageText;

/// Calls that one server may have open; more than any client means to have.
const MOST_CALLS: usize = 10_000;

/// What may wait for a server that does not read.
const MOST_BYTES: usize = 64 * 1024 * 1024;

impl Upstream {
    /// Sends a request on, under an id of ours; answers that id.
    pub(crate) fn forward(&self, request: Request<'_>, caller: Caller) -> Result<u64, CallError> {
        self.check_room().and_then(|()| self.check_share(&caller)).inspect_err(|fault| {
            if fault.kind == ErrorKind::QueueFull
                && let Caller::Client { client, .. } = &caller
            {
                client.limit_hit("open calls with one server");
            }
        })?;
        self.is_called();
        self.is_fresh.set(false);
        let log = CallLog::begin(&request, &caller);
        let ours = self.new_id();
        let number = ours.to_string();
        let mut edits = Edits::of(request.text.bytes());
        edits.replace(request.id, number.as_str());
        if let Some(across) = caller.across() {
            across.edit(&request, &number, &mut edits);
        } else {
            if let Some(token) = request.token {
                edits.replace(token, number.as_str());
            }
            if let Some((part, new)) = request.hidden {
                edits.replace(part, new);
            }
        }
        if let Some((part, new)) = request.renamed {
            edits.replace(part, new);
        }
        let write = &mut |out: &mut Chunks| request.text.append_edited(&mut edits, out);
        let place = self.wire.put(Some(ours), write);
        let kept = self.keep(request.text, request.what, &caller);
        let (watch, past) = (request.watch, request.past);
        if let Caller::Client { client, .. } = &caller {
            self.wire.order_after(ours, client.number(), past.has_waited());
        }
        let has_asked = past.rounds.count > 0;
        let call = Call { watch, has_asked, past, kept, log, ..Call::of(caller, place) };
        self.calls.borrow_mut().insert(ours, call);
        self.wire.flush(self.calls.borrow().len() == 1 + self.ears.count());
        Ok(ours)
    }

    /// Keeps what a client wrote, as it may have to be sent again, if there is room.
    fn keep(
        &self,
        text: MessageText<'_>,
        what: (&str, Option<&str>),
        caller: &Caller,
    ) -> Option<Kept> {
        let is_client = matches!(caller, Caller::Client { .. });
        is_client.then(|| Kept::of(text, what, &self.kept, self.most_kept.get())).flatten()
    }

    /// The server has begun to read what was put there. If that must not be done twice, it is
    /// never sent again, and its copy only takes the room of others. One whose lists are not known
    /// yet may still say that it may.
    pub(crate) fn drop_retry_copy(&self, place: u64) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.values_mut().find(|call| call.place == place) else { return };
        let Caller::Client { client, asked, follow, .. } = &call.caller else { return };
        let Some(kept) = &mut call.kept else { return };
        let Some(known) = self.known() else { return };
        let known = self.shown_as(asked, client, known);
        let (view, known) = (&client.entry().view, known.as_deref());
        let sort = match kept.about() {
            Some((method, name)) => retry::sort_of(method, name, follow, view, known),
            None => retry::sort(kept.text(), follow, view, known),
        };
        if !sort.may_be_repeated() {
            kept.forgo();
        }
    }

    /// Asks something of our own.
    pub(crate) fn ask(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<Question, CallError> {
        self.ask_as(method, params, Caller::Own)
    }

    pub(super) fn ask_as(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
        caller: fn(oneshot::Sender<caller::Answered>) -> Caller,
    ) -> Result<Question, CallError> {
        self.check_room()?;
        let ours = self.new_id();
        let params = if self.is_modern() {
            Some(Cow::Owned(self_meta::params(params, &self.company.daemons_before(self))))
        } else {
            params.map(Cow::Borrowed)
        };
        let text = match params {
            Some(params) => {
                format!(r#"{{"jsonrpc":"2.0","id":{ours},"method":"{method}","params":{params}}}"#)
            }
            None => format!(r#"{{"jsonrpc":"2.0","id":{ours},"method":"{method}"}}"#),
        };
        let write = &mut |out: &mut Chunks| append_on_one_line(out.tail(), text.as_bytes());
        let place = self.wire.put(Some(ours), write);
        let (answer, answered) = oneshot::channel();
        let call = Call::of(caller(answer), place);
        self.calls.borrow_mut().insert(ours, call);
        self.wire.flush(false);
        Ok(Question { upstream: self.clone(), ours, answered })
    }

    /// The same, for somebody else who has named the method.
    pub(crate) fn ask_any(
        self: &Rc<Self>,
        method: &str,
        params: Option<&str>,
    ) -> Result<Question, CallError> {
        let method = crate::names::quoted(method);
        self.is_fresh.set(false);
        let question = self.ask_as(&method[1..method.len() - 1], params, Caller::Visitor)?;
        self.watch_reading();
        Ok(question)
    }

    /// Sends a message that wants no answer.
    pub(crate) fn send(&self, message: &[u8]) {
        if matches!(*self.stage.borrow(), Stage::Closed) || self.wire.waiting() > MOST_BYTES {
            return;
        }
        self.wire.put(None, &mut |out| append_on_one_line(out.tail(), message));
        self.wire.flush(false);
    }

    /// Checks that the token of a client leaves room for calls of others at this server.
    fn check_share(&self, caller: &Caller) -> Result<(), CallError> {
        let Caller::Client { client, .. } = caller else { return Ok(()) };
        let token = client.token();
        let all = self.calls.borrow().len();
        if token.may_take(all, all, MOST_CALLS) {
            return Ok(()); // Even if all of them are its own, so there is no need to count.
        }
        self.calls.borrow_mut().retain(|_, call| call.caller.is_there());
        let calls = self.calls.borrow();
        let own = calls.values().filter(|call| call.caller.token() == Some(token.id)).count();
        if token.may_take(own, calls.len(), MOST_CALLS) {
            return Ok(());
        }
        let server = &self.key.server;
        let message = format!("`{server}` takes no more calls of this token");
        Err(CallError::new(ErrorKind::QueueFull, message)
            .cause(format!(
                "{own} of its calls are open there, and the rest of {MOST_CALLS} is for others"
            ))
            .hint("wait for some of them, or try again later"))
    }

    fn check_room(&self) -> Result<(), CallError> {
        let server = &self.key.server;
        let full = |why: String| {
            CallError::new(ErrorKind::QueueFull, format!("`{server}` cannot take more calls"))
                .cause(why)
        };
        if matches!(*self.stage.borrow(), Stage::Closed) {
            return Err(CallError::new(
                ErrorKind::NotRunning,
                format!("`{server}` is not running"),
            ));
        }
        if self.calls.borrow().len() >= MOST_CALLS {
            // What nobody waits for must not keep out those who do.
            self.calls.borrow_mut().retain(|_, call| call.caller.is_there());
        }
        if self.calls.borrow().len() >= MOST_CALLS {
            return Err(full(format!("{MOST_CALLS} are open")));
        }
        if self.wire.waiting() > MOST_BYTES {
            return Err(full("it does not read what it is sent".to_owned()));
        }
        Ok(())
    }
}
