//! Notifications, in the order in which they were sent, and responses to the server's requests,
//! which wait for nothing.
//!
//! A turn orders later messages behind a notification or a call that must come first.

use std::rc::Rc;

use hyper::body::Bytes;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::response_class::{ResponseClass, classify};
use super::{ACCEPT_TIMEOUT, CallText, HttpClient};

impl HttpClient {
    /// Waits until all notifications were sent.
    pub async fn all_sent(&self) {
        self.wait_for_turns_before(self.next_turn.get()).await;
    }

    /// Waits until all turns before this one have ended.
    pub(super) async fn wait_for_turns_before(&self, turn: u64) {
        loop {
            let result = self.turn_ended.notified();
            let first = self.turns.borrow().first().copied();
            if first.is_none_or(|first| first >= turn) {
                return;
            }
            result.await;
        }
    }

    /// Takes a turn: later messages wait until it ends.
    pub(super) fn take_turn(&self) -> u64 {
        let turn = self.next_turn.replace(self.next_turn.get() + 1);
        self.turns.borrow_mut().insert(turn);
        turn
    }

    /// Ends a turn.
    pub(super) fn end_turn(&self, turn: u64) {
        self.turns.borrow_mut().remove(&turn);
        self.turn_ended.notify_waiters();
    }

    pub(super) fn finish_notification(&self, (turn, message): &(u64, Bytes)) {
        self.notification_bytes.set(self.notification_bytes.get() - message.len());
        self.end_turn(*turn);
    }

    /// Sends notifications one after another, forever.
    pub async fn send_notifications(self: Rc<Self>) {
        loop {
            let next = self.notifications.borrow_mut().pop_front();
            let Some(message) = next else {
                self.notification_added.notified().await;
                continue;
            };
            let result = timeout(ACCEPT_TIMEOUT, self.post_notification(message.1.clone())).await;
            self.finish_notification(&message);
            self.log_lost(result).await;
        }
    }

    /// Posts a client's response to a request of the server, without waiting for other messages.
    pub(super) fn send_response(&self, message: Bytes) {
        let mut answers = self.answers.borrow_mut();
        while answers.try_join_next().is_some() {} // Removes the tasks that have ended.
        let Some(me) = self.me.upgrade() else { return };
        let body = CallText::of(me.clone(), message);
        answers.spawn_local(async move {
            let result = timeout(ACCEPT_TIMEOUT, me.post_notification(body.text.clone())).await;
            me.log_lost(result).await;
        });
    }

    pub(super) async fn log_lost(&self, result: Result<Result<(), String>, Elapsed>) {
        let late = |_| Err(format!("it was not accepted within {ACCEPT_TIMEOUT:?}"));
        if let (Err(why), Some(connection)) = (result.unwrap_or_else(late), self.connection()) {
            connection.log_own(format_args!("a message was lost: {why}"));
            connection.log_unparsed().await;
        }
    }

    pub(super) async fn post_notification(&self, message: Bytes) -> Result<(), String> {
        // A message outside of a session must not end a session that has begun meanwhile.
        let (count, had_session) = (*self.session_count.borrow(), self.has_session());
        let response = self.post(message).await.map_err(|failed| failed.words())?;
        match classify(response.status(), response.headers(), had_session) {
            ResponseClass::Message | ResponseClass::Events | ResponseClass::Accepted => Ok(()),
            ResponseClass::SessionUnknown => {
                self.forget_session(count);
                Err("it has forgotten the session".to_owned())
            }
            ResponseClass::Refused(refusal) => Err(refusal.words()),
            ResponseClass::Failed(status) => Err(format!("it answered {status}")),
            ResponseClass::Invalid(why) => Err(why),
        }
    }
}
