//! Serializes the clients of a server that sends them requests, by the rules of `crate::exclusive`.
//!
//! Each request of a modern client has a turn of its own, on any transport. A call that waits for
//! its user holds up no other call of the same client or token. The server waits too, and an
//! abandoned call must not block the other calls of its user.

use std::collections::BTreeSet;
use std::rc::Rc;

use xy_config::settings::Isolation;
use xy_supervisor::instance::Holder;

use super::{Backend, QueuedCall};
use crate::call::{CallClient, RetryState};
use crate::exclusive::{self, Flight, Slot};
use crate::upstream::Upstream;

impl Backend {
    /// Returns true if the server sends requests to clients, which it cannot address while they
    /// share it.
    pub(crate) fn asks(&self) -> bool {
        let asks = self.primary().map_or_else(|| self.asks.get(), |primary| primary.asks.get());
        asks && self.settings.borrow().isolation == Isolation::Shared
    }

    /// Records that the server has sent a client a request. Returns true if it is the first.
    pub(crate) fn mark_asks(&self, by: &Rc<Upstream>) -> bool {
        by.report_finished_calls();
        !self.asks.replace(true)
    }

    /// Returns true if the calls of this client take turns at its instance: with those of other
    /// clients, or among each other where each request stands for itself.
    fn takes_turns(&self, client: &dyn CallClient) -> bool {
        let is_shared = || self.settings.borrow().isolation == Isolation::Shared;
        self.asks.get() && (is_shared() || !client.has_session() || client.is_modern())
    }

    /// Sends the queued calls whose turn it is.
    pub(crate) fn release(self: &Rc<Self>) {
        if self.releasing_client.get().is_some() {
            return; // The outer call releases again afterwards.
        }
        if self.all_upstreams().iter().any(|it| it.is_held_back()) {
            return; // They are released when the hold ends.
        }
        let waiting = self.waiting.borrow();
        let taking_turns = waiting.iter().filter(|it| self.takes_turns(&*it.client));
        let holders: BTreeSet<Holder> = taking_turns.map(|it| it.holder).collect();
        drop(waiting);
        for holder in holders {
            match self.upstream(holder) {
                // At a modern server each request stands for itself.
                Some(upstream) if upstream.is_modern() => self.release_all_for(holder),
                _ => self.release_at(holder),
            }
        }
    }

    fn release_at(self: &Rc<Self>, holder: Holder) {
        while let Some(upstream) = self.upstream(holder) {
            let waiting = self.waiting_for_turn(holder);
            let Some((first, _)) = waiting.first() else { return };
            let flight = upstream.flight(&**first);
            let urgent = waiting.iter().filter(|(it, _)| self.is_urgent(&**it, &upstream));
            let urgent: Vec<Slot> = urgent.map(|(_, slot)| *slot).collect();
            let slots: Vec<Slot> = waiting.iter().map(|(_, slot)| *slot).collect();
            let next = exclusive::next(flight, &slots, |slot| urgent.contains(&slot));
            // While the server waits for a client's input, other calls of that program may go on.
            let unblocked = |(it, _): &&(Rc<dyn CallClient>, Slot)| {
                let is_free = upstream.flight(&**it) == Flight::Empty;
                is_free && self.is_urgent(&**it, &upstream)
            };
            let next = next.or_else(|| waiting.iter().find(unblocked).map(|(_, slot)| *slot));
            let Some(slot) = next else { return };
            let calls = self.take_matching(|it| it.holder == holder && it.slot() == slot);
            self.releasing_client.set(calls.first().map(|it| it.client.number()));
            let is_new = flight == Flight::Empty;
            self.urgent_calls.set(if is_new { 0 } else { self.urgent_calls.get() + calls.len() });
            for waited in calls {
                Self::send_again(&waited);
            }
            self.releasing_client.set(None);
        }
    }

    /// Returns true if a client's request has to wait for the calls before it.
    pub(super) fn must_wait(
        &self,
        client: &Rc<dyn CallClient>,
        is_modern: bool,
        retry_state: &RetryState,
        upstream: &Rc<Upstream>,
    ) -> bool {
        if !self.takes_turns(&**client) || upstream.is_modern() {
            return self.would_overtake(&**client, upstream.key().holder);
        }
        if self.releasing_client.get() == Some(client.number()) {
            return false;
        }
        let waiting = self.waiting_for_turn(upstream.key().holder);
        let waiting: Vec<Slot> = waiting.iter().map(|(_, slot)| *slot).collect();
        let is_urgent = self.is_urgent(&**client, upstream);
        let flight = upstream.flight_now(&**client);
        let slot = slot(&**client, is_modern, self.ticket(retry_state));
        let goes = exclusive::may_go(slot, flight, &waiting, is_urgent);
        if goes {
            self.urgent_calls.set(if waiting.is_empty() { 0 } else { self.urgent_calls.get() + 1 });
        }
        !goes
    }

    /// Returns true if the server waits for this client, which may have to call it to find its
    /// answer.
    fn is_urgent(&self, client: &dyn CallClient, upstream: &Rc<Upstream>) -> bool {
        let is_waited_for = || {
            client.has_question_from(upstream.connection()) || upstream.waits_for(client.group_id())
        };
        self.urgent_calls.get() < exclusive::MAX_URGENT && is_waited_for()
    }

    /// Returns the calls that wait for their turn, oldest first: their clients and slots.
    fn waiting_for_turn(&self, holder: Holder) -> Vec<(Rc<dyn CallClient>, Slot)> {
        let waiting = self.waiting.borrow();
        let there = waiting.iter().filter(|it| it.holder == holder);
        there.map(|it| (it.client.clone(), it.slot())).collect()
    }
}

impl QueuedCall {
    fn slot(&self) -> Slot {
        slot(&*self.client, self.is_modern, self.ticket)
    }
}

/// Returns the slot of a client's request that waits, or is to wait, with this ticket.
fn slot(client: &dyn CallClient, is_modern: bool, ticket: u64) -> Slot {
    if is_modern { Slot::Ticket(ticket) } else { Slot::Client(client.number()) }
}
