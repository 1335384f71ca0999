//! What is to be sent to a server, for those who do not care how it is reached.

use std::rc::Rc;

use hyper::body::Bytes;
use xy_mcp::envelope::{self, Message};

use super::{GIVEN_UP_FOR, Greeting, Web, call};
use crate::chunks::Chunks;
use crate::upstream::wire::Wire;

impl Wire for Web {
    fn put(&self, call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        let mut message = Chunks::default();
        write(&mut message);
        let message = message.into_bytes();
        if let (Some(ours), Some(me)) = (call, self.me.upgrade()) {
            // A server may be greeted again in another revision.
            if self.greeting.get() != Greeting::Done && is_initialize(&message) {
                self.greeting.set(Greeting::Call(ours));
            } else if self.greeting.get() == Greeting::Due {
                self.probe.set(Some(ours));
            }
            self.unsent.borrow_mut().insert(ours);
            self.unheard.borrow_mut().insert(ours);
            let body = Body::of(me, message);
            let task = tokio::task::spawn_local(call::run(ours, body));
            self.calls.borrow_mut().insert(ours, task.abort_handle());
        } else if self.is_modern() {
            // There is nothing of this kind that it would understand.
            tracing::debug!(place = self.shown(), "a message that wants no answer is not sent");
        } else if matches!(envelope::parse(&message), Ok(Message::Answer { .. })) {
            self.answer(message);
        } else {
            self.untold_bytes.set(self.untold_bytes.get() + message.len());
            self.untold.borrow_mut().push_back((self.take_turn(), message));
            self.tell.notify_one();
        }
        call.unwrap_or_default()
    }

    fn flush(&self, _is_alone: bool) {}

    /// Its place is the id of the call.
    fn is_written(&self, place: u64) -> bool {
        !self.unsent.borrow().contains(&place)
    }

    /// Whoever is greeted need not have taken what waits for that.
    fn waiting(&self) -> usize {
        if self.greeting.get() == Greeting::Due {
            return 0;
        }
        self.untold_bytes.get() + self.unsent_bytes.get()
    }

    fn given_up(&self, call: u64) -> bool {
        if self.is_modern() {
            self.end_call(call);
            return true;
        }
        let Some(me) = self.me.upgrade() else { return false };
        tokio::task::spawn_local(async move {
            tokio::time::sleep(GIVEN_UP_FOR).await;
            me.end_call(call);
        });
        false
    }

    fn has_process(&self) -> bool {
        !self.is_remote
    }

    fn has_heads(&self) -> bool {
        self.is_modern()
    }

    fn session(&self) -> Option<String> {
        let session = self.session.borrow();
        session.id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned)
    }

    fn kept(&self) -> usize {
        let of_calls = self.calls.borrow().len() + self.unsent.borrow().len();
        let beside = self.beside.borrow().len() + self.first.borrow().len();
        let answers = self.answers.borrow().len() + self.untold.borrow().len();
        let in_order = self.unheard.borrow().len() + self.rows.kept();
        of_calls + beside + answers + in_order + self.turns.borrow().len()
    }

    fn close(&self) {
        self.is_closed.set(true);
    }

    fn hang_up(&self) {
        self.answers.borrow_mut().abort_all();
        let calls = self.calls.take();
        for (call, task) in calls {
            task.abort();
            self.call_is_over(call);
        }
    }

    fn bypass_limit(&self, call: u64) {
        let is_under_way = self.calls.borrow().contains_key(&call);
        if is_under_way {
            self.beside.borrow_mut().insert(call);
        }
    }

    fn order_after(&self, call: u64, client: u64, has_waited: bool) {
        self.put_in_row(call, client, has_waited);
    }

    fn barrier(&self, call: u64) {
        let is_under_way = self.calls.borrow().contains_key(&call);
        if is_under_way {
            let turn = self.take_turn();
            self.first.borrow_mut().insert(call, turn);
        }
    }
}

fn is_initialize(message: &[u8]) -> bool {
    matches!(
        envelope::parse(message),
        Ok(Message::Request { method, .. }) if method == "initialize"
    )
}

/// The text of a call, which is held until the server has taken it: it may have to be sent
/// again.
pub(super) struct Body {
    pub(super) web: Rc<Web>,
    pub(super) text: Bytes,
    /// What was agreed on when it was put: whether it is in the words of the revision without
    /// sessions. `None` for what is said before anything is.
    pub(super) is_modern: Option<bool>,
    /// What had its turn before this comes before it.
    pub(super) after: u64,
}

impl Body {
    pub(super) fn of(web: Rc<Web>, text: Bytes) -> Self {
        web.unsent_bytes.set(web.unsent_bytes.get() + text.len());
        let after = web.next_turn.get();
        let is_modern = web.is_in_session().then(|| web.is_modern());
        Self { web, text, is_modern, after }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.web.unsent_bytes.set(self.web.unsent_bytes.get() - self.text.len());
    }
}
