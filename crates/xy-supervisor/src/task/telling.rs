//! Tells others what an instance is doing: those who look, and those who listen for changes.

use std::sync::Arc;

use tokio::time::Instant;
use xy_protocol::server::ServerState;

use super::Task;
use crate::instance::{ChangeKind, StateChange, TRANSITIONS_KEPT, Transition};
use crate::lifecycle::{LastAttempt, Life};
use crate::wait::time_of_day;

impl Task {
    /// Tells that an instance is taken over. Its state is what it was.
    pub(super) fn tell_takeover(&mut self) {
        let state = self.now.life.state.on_wire();
        let change = self.remember_change(state, state);
        self.publish();
        let _ = self.changes.send(change); // Nobody may be listening.
    }

    /// Publishes what is now, and then tells those who listen what has changed: whoever hears
    /// of a change and looks has to see it.
    pub(super) fn tell(&mut self, before: &Life) {
        let change = self.remember(before);
        self.publish();
        if let Some(change) = change {
            let last_attempt = change.transition.last_attempt;
            let _ = self.changes.send(change.clone()); // Nobody may be listening.
            if let Some(why) = last_attempt {
                tracing::warn!(server = %self.key, "{why}");
                let kind = ChangeKind::LastAttempt(why);
                let _ = self.changes.send(StateChange { kind, ..change }); // The same.
            }
        }
    }

    /// A life that is the last to be tried is worth a word of its own.
    fn last_attempt(&self) -> Option<LastAttempt> {
        let now = Instant::now().into_std();
        let is_begun = self.now.life.state.on_wire() == ServerState::Starting;
        self.now.life.last_attempt(&self.now.settings.rules, now).filter(|_| is_begun)
    }

    /// Remembers a change of state; what is to be told of it.
    fn remember(&mut self, before: &Life) -> Option<StateChange> {
        let (from, to) = (before.state.on_wire(), self.now.life.state.on_wire());
        (from != to).then(|| self.remember_change(from, to))
    }

    fn remember_change(&mut self, from: ServerState, to: ServerState) -> StateChange {
        let reason = self.now.life.reason.clone();
        let transition =
            Transition { from, to, reason, at: time_of_day(), last_attempt: self.last_attempt() };
        tracing::info!(server = %self.key, %from, %to, reason = %transition.reason, "changed");
        let transitions = Arc::make_mut(&mut self.now.transitions);
        if transitions.len() == TRANSITIONS_KEPT {
            transitions.pop_front();
        }
        transitions.push_back(transition.clone());
        StateChange {
            kind: ChangeKind::State,
            key: self.key.clone(),
            transition,
            pid: self.now.pid,
            restart_count: self.now.life.tally.restart_count,
        }
    }

    pub(super) fn publish(&mut self) {
        self.now.health = self.health();
        self.published.send_replace(self.now.clone());
    }
}
