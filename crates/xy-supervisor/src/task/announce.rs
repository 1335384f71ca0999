//! Publishes the state of an instance, and broadcasts its changes.

use std::sync::Arc;

use tokio::time::Instant;
use xy_protocol::server::ServerState;

use super::Task;
use crate::instance::{ChangeKind, MAX_TRANSITIONS, StateChange, Transition};
use crate::lifecycle::{LastAttempt, Life};
use crate::wait::time_of_day;

impl Task {
    /// Broadcasts that an instance was adopted. Its state does not change.
    pub(super) fn announce_adoption(&mut self) {
        let state = self.now.life.state.on_wire();
        let change = self.record_transition(state, state);
        self.publish();
        let _ = self.changes.send(change); // There may be no receiver.
    }

    /// Publishes the new state, then broadcasts the change, if there is one. In this order a
    /// receiver of the change sees the new state.
    pub(super) fn announce_change(&mut self, before: &Life) {
        let change = self.record_change(before);
        self.publish();
        if let Some(change) = change {
            let last_attempt = change.transition.last_attempt;
            let _ = self.changes.send(change.clone()); // There may be no receiver.
            if let Some(why) = last_attempt {
                tracing::warn!(server = %self.key, "{why}");
                let kind = ChangeKind::LastAttempt(why);
                let _ = self.changes.send(StateChange { kind, ..change }); // As above.
            }
        }
    }

    /// Returns why the life that begins now is the last attempt, if it is.
    fn last_attempt(&self) -> Option<LastAttempt> {
        let now = Instant::now().into_std();
        let is_begun = self.now.life.state.on_wire() == ServerState::Starting;
        self.now.life.last_attempt(&self.now.settings.rules, now).filter(|_| is_begun)
    }

    /// Records a change of state and returns it, if the state has changed.
    fn record_change(&mut self, before: &Life) -> Option<StateChange> {
        let (from, to) = (before.state.on_wire(), self.now.life.state.on_wire());
        (from != to).then(|| self.record_transition(from, to))
    }

    fn record_transition(&mut self, from: ServerState, to: ServerState) -> StateChange {
        let reason = self.now.life.reason.clone();
        let transition =
            Transition { from, to, reason, at: time_of_day(), last_attempt: self.last_attempt() };
        tracing::info!(server = %self.key, %from, %to, reason = %transition.reason, "changed");
        let transitions = Arc::make_mut(&mut self.now.transitions);
        if transitions.len() == MAX_TRANSITIONS {
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
