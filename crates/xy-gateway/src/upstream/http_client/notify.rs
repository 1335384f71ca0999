//! What wants no answer, in the order in which it was said; and answers to the server's own
//! questions, which wait for nobody.

use std::rc::Rc;

use hyper::body::Bytes;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::meaning::{Meaning, meaning};
use super::{Body, TAKEN_WITHIN, Web};

impl Web {
    /// Resolves when all that wants no answer has been told.
    pub(crate) async fn all_told(&self) {
        self.told_before(self.next_turn.get()).await;
    }

    /// The same of what had its turn before this.
    pub(super) async fn told_before(&self, turn: u64) {
        loop {
            let told = self.told.notified();
            let first = self.turns.borrow().first().copied();
            if first.is_none_or(|first| first >= turn) {
                return;
            }
            told.await;
        }
    }

    /// Something comes before all that is put later.
    pub(super) fn take_turn(&self) -> u64 {
        let turn = self.next_turn.replace(self.next_turn.get() + 1);
        self.turns.borrow_mut().insert(turn);
        turn
    }

    /// It has come.
    pub(super) fn end_turn(&self, turn: u64) {
        self.turns.borrow_mut().remove(&turn);
        self.told.notify_waiters();
    }

    pub(super) fn is_told(&self, (turn, message): &(u64, Bytes)) {
        self.untold_bytes.set(self.untold_bytes.get() - message.len());
        self.end_turn(*turn);
    }

    /// Sends what wants no answer, one after another, for ever.
    pub(crate) async fn tell_all(self: Rc<Self>) {
        loop {
            let next = self.untold.borrow_mut().pop_front();
            let Some(message) = next else {
                self.tell.notified().await;
                continue;
            };
            let told = timeout(TAKEN_WITHIN, self.tell_one(message.1.clone())).await;
            self.is_told(&message);
            self.log_untold(told).await;
        }
    }

    /// Sends a client's answer to a question of the server, which waits for nobody else's.
    pub(super) fn answer(&self, message: Bytes) {
        let mut answers = self.answers.borrow_mut();
        while answers.try_join_next().is_some() {} // Those that have been taken.
        let Some(me) = self.me.upgrade() else { return };
        let body = Body::of(me.clone(), message);
        answers.spawn_local(async move {
            let told = timeout(TAKEN_WITHIN, me.tell_one(body.text.clone())).await;
            me.log_untold(told).await;
        });
    }

    pub(super) async fn log_untold(&self, told: Result<Result<(), String>, Elapsed>) {
        let late = |_| Err(format!("it was not taken within {TAKEN_WITHIN:?}"));
        if let (Err(why), Some(upstream)) = (told.unwrap_or_else(late), self.upstream()) {
            upstream.log_own(format_args!("a message was lost: {why}"));
            upstream.log_unparsed().await;
        }
    }

    pub(super) async fn tell_one(&self, message: Bytes) -> Result<(), String> {
        // What is said outside of a session ends none that has begun meanwhile.
        let (count, had_session) = (*self.sessions.borrow(), self.has_session());
        let response = self.post(message).await.map_err(|failed| failed.words())?;
        match meaning(response.status(), response.headers(), had_session) {
            Meaning::Message | Meaning::Events | Meaning::Taken => Ok(()),
            Meaning::Forgotten => {
                self.forgotten(count);
                Err("it has forgotten the session".to_owned())
            }
            Meaning::Refused(refusal) => Err(refusal.words()),
            Meaning::Failed(status) => Err(format!("it answered {status}")),
            Meaning::Strange(why) => Err(why),
        }
    }
}
