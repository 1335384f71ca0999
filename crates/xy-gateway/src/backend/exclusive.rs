//! Has the clients of a server that asks questions take turns. `exclusive.rs` says whose it is.
//!
//! Each request of a modern client has a turn of its own, whichever door it came in by. One that
//! waits for its user holds up no other of the same client, or of the same token: the server
//! waits too, and a call that was left must not keep a person's other calls from it.

use std::collections::BTreeSet;
use std::rc::Rc;

use xy_config::settings::Isolation;
use xy_supervisor::instance::Holder;

use super::{Backend, RetryState, Waiting};
use crate::client::Client;
use crate::exclusive::{self, Flight, Slot};
use crate::upstream::Upstream;

impl Backend {
    /// Whether it asks its clients questions, which it cannot address while they share it.
    pub(crate) fn asks(&self) -> bool {
        let asks = self.home().map_or_else(|| self.asks.get(), |home| home.asks.get());
        asks && self.settings.borrow().isolation == Isolation::Shared
    }

    /// It has asked something; whether that is new.
    pub(crate) fn has_asked(&self, by: &Rc<Upstream>) -> bool {
        by.take_turns();
        !self.asks.replace(true)
    }

    /// Whether the calls of this client take turns at its instance: with those of others who
    /// share it, or with each other, where each is asked on its own.
    fn takes_turns(&self, client: &Client) -> bool {
        let is_shared = || self.settings.borrow().isolation == Isolation::Shared;
        self.asks.get() && (is_shared() || !client.stays() || client.is_modern())
    }

    /// Lets those go whose turn it is.
    pub(crate) fn release(self: &Rc<Self>) {
        if self.turn_of.get().is_some() {
            return; // Whoever lets somebody go looks again afterwards.
        }
        if self.all_upstreams().iter().any(|it| it.is_held_back()) {
            return; // Somebody looks again then.
        }
        let waiting = self.waiting.borrow();
        let taking_turns = waiting.iter().filter(|it| self.takes_turns(&it.client));
        let holders: BTreeSet<Holder> = taking_turns.map(|it| it.holder).collect();
        drop(waiting);
        for holder in holders {
            match self.upstream(holder) {
                // There each request stands for itself.
                Some(upstream) if upstream.is_modern() => self.release_all_for(holder),
                _ => self.release_at(holder),
            }
        }
    }

    fn release_at(self: &Rc<Self>, holder: Holder) {
        while let Some(upstream) = self.upstream(holder) {
            let waiting = self.waiting_for_turn(holder);
            let Some((first, _)) = waiting.first() else { return };
            let flight = upstream.flight(first);
            let asked = waiting.iter().filter(|(it, _)| self.is_urgent(it, &upstream));
            let asked: Vec<Slot> = asked.map(|(_, unit)| *unit).collect();
            let units: Vec<Slot> = waiting.iter().map(|(_, unit)| *unit).collect();
            let next = exclusive::next(flight, &units, |unit| asked.contains(&unit));
            // Where the server waits for somebody's answer, the rest of that program may go on.
            let beside = |(it, _): &&(Rc<Client>, Slot)| {
                let is_free = upstream.flight(it) == Flight::Nobody;
                is_free && self.is_urgent(it, &upstream)
            };
            let next = next.or_else(|| waiting.iter().find(beside).map(|(_, unit)| *unit));
            let Some(unit) = next else { return };
            let theirs = self.take_those(|it| it.holder == holder && it.unit() == unit);
            self.turn_of.set(theirs.first().map(|it| it.client.number()));
            let is_new = flight == Flight::Nobody;
            self.urgent.set(if is_new { 0 } else { self.urgent.get() + theirs.len() });
            for waited in theirs {
                Self::send_again(&waited);
            }
            self.turn_of.set(None);
        }
    }

    /// Whether a request of a client, which is modern or not, has to wait until those before it
    /// are done.
    pub(super) fn must_wait(
        &self,
        client: &Rc<Client>,
        is_modern: bool,
        past: &RetryState,
        upstream: &Rc<Upstream>,
    ) -> bool {
        if !self.takes_turns(client) || upstream.is_modern() {
            return self.would_overtake(client, upstream.key().holder);
        }
        if self.turn_of.get() == Some(client.number()) {
            return false;
        }
        let waiting = self.waiting_for_turn(upstream.key().holder);
        let waiting: Vec<Slot> = waiting.iter().map(|(_, unit)| *unit).collect();
        let is_urgent = self.is_urgent(client, upstream);
        let flight = upstream.flight_now(client);
        let unit = unit(client, is_modern, self.ticket(past));
        let goes = exclusive::may_go(unit, flight, &waiting, is_urgent);
        if goes {
            self.urgent.set(if waiting.is_empty() { 0 } else { self.urgent.get() + 1 });
        }
        !goes
    }

    /// Whether the server waits for this client, which may have to call it for an answer.
    fn is_urgent(&self, client: &Client, upstream: &Rc<Upstream>) -> bool {
        let is_waited_for =
            || client.is_asked_by(upstream) || upstream.waits_for(client.group_id());
        self.urgent.get() < exclusive::MOST_URGENT && is_waited_for()
    }

    /// The calls that wait for their turn, the oldest first: their clients and units.
    fn waiting_for_turn(&self, holder: Holder) -> Vec<(Rc<Client>, Slot)> {
        let waiting = self.waiting.borrow();
        let there = waiting.iter().filter(|it| it.holder == holder);
        there.map(|it| (it.client.clone(), it.unit())).collect()
    }
}

impl Waiting {
    fn unit(&self) -> Slot {
        unit(&self.client, self.is_modern, self.ticket)
    }
}

/// What has the turn of a client's request that waits, or is to wait, with this ticket.
fn unit(client: &Client, is_modern: bool, ticket: u64) -> Slot {
    if is_modern { Slot::Ticket(ticket) } else { Slot::Client(client.number()) }
}
