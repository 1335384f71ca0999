//! The [`Wire`] implementation of the HTTP transport.

use xy_mcp::envelope::{self, Message};
use xy_transport::chunks::Chunks;

use super::call_text::CallText;
use super::{CANCELLED_READ_TIMEOUT, HandshakeState, HttpClient, call};
use crate::connection::wire::Wire;

impl Wire for HttpClient {
    fn put(&self, call: Option<u64>, write: &mut dyn FnMut(&mut Chunks)) -> u64 {
        let mut message = Chunks::default();
        write(&mut message);
        let message = message.into_bytes();
        if let (Some(upstream_id), Some(me)) = (call, self.me.upgrade()) {
            // The handshake with a server may be repeated in another revision.
            if self.handshake.get() != HandshakeState::Done && is_initialize(&message) {
                self.handshake.set(HandshakeState::Call(upstream_id));
            } else if self.handshake.get() == HandshakeState::Due {
                self.probe.set(Some(upstream_id));
            }
            self.unsent.borrow_mut().insert(upstream_id);
            self.unanswered.borrow_mut().insert(upstream_id);
            let body = CallText::of(me, message);
            let task = tokio::task::spawn_local(call::run(upstream_id, body));
            self.calls.borrow_mut().insert(upstream_id, task.abort_handle());
        } else if self.is_modern() {
            // A modern server knows no such messages.
            tracing::debug!(
                url = self.display_url(),
                "a notification is not sent to a modern server"
            );
        } else if matches!(envelope::parse(&message), Ok(Message::Response { .. })) {
            self.send_response(message);
        } else {
            self.notification_bytes.set(self.notification_bytes.get() + message.len());
            self.notifications.borrow_mut().push_back((self.take_turn(), message));
            self.notification_added.notify_one();
        }
        call.unwrap_or_default()
    }

    fn flush(&self, _is_alone: bool) {}

    /// The offset of a message is the id of its call.
    fn is_written(&self, offset: u64) -> bool {
        !self.unsent.borrow().contains(&offset)
    }

    /// During a handshake, nothing that waits for it counts as unread.
    fn waiting(&self) -> usize {
        if self.handshake.get() == HandshakeState::Due {
            return 0;
        }
        self.notification_bytes.get() + self.call_bytes.get()
    }

    fn abandon(&self, call: u64) -> bool {
        if self.is_modern() {
            self.abort_call(call);
            return true;
        }
        let Some(me) = self.me.upgrade() else { return false };
        tokio::task::spawn_local(async move {
            tokio::time::sleep(CANCELLED_READ_TIMEOUT).await;
            me.abort_call(call);
        });
        false
    }

    fn has_process(&self) -> bool {
        !self.is_remote
    }

    fn mirrors_params(&self) -> bool {
        self.is_modern()
    }

    fn session(&self) -> Option<String> {
        let session = self.session.borrow();
        session.id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned)
    }

    fn retained(&self) -> usize {
        let of_calls = self.calls.borrow().len() + self.unsent.borrow().len();
        let unlimited = self.unlimited.borrow().len() + self.barriers.borrow().len();
        let answers = self.answers.borrow().len() + self.notifications.borrow().len();
        let in_order = self.unanswered.borrow().len() + self.send_orders.retained();
        of_calls + unlimited + answers + in_order + self.turns.borrow().len()
    }

    fn close(&self) {
        self.is_closed.set(true);
    }

    fn hang_up(&self) {
        self.answers.borrow_mut().abort_all();
        let calls = self.calls.take();
        for (call, task) in calls {
            task.abort();
            self.finish_call(call);
        }
    }

    fn bypass_limit(&self, call: u64) {
        let is_under_way = self.calls.borrow().contains_key(&call);
        if is_under_way {
            self.unlimited.borrow_mut().insert(call);
        }
    }

    fn order_after(&self, call: u64, client: u64, has_waited: bool) {
        self.order_call(call, client, has_waited);
    }

    fn barrier(&self, call: u64) {
        let is_under_way = self.calls.borrow().contains_key(&call);
        if is_under_way {
            let turn = self.take_turn();
            self.barriers.borrow_mut().insert(call, turn);
        }
    }
}

fn is_initialize(message: &[u8]) -> bool {
    matches!(
        envelope::parse(message),
        Ok(Message::Request { method, .. }) if method == "initialize"
    )
}
