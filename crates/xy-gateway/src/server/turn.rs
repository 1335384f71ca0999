//! Has the clients of a server that asks questions take turns. `turns.rs` says whose it is.
//!
//! Each request of a modern client over HTTP comes as if from another client, and has a turn
//! of its own. One that waits for its user holds up nobody who has the same token: the server
//! waits too, and a call that was left must not keep a person's other calls from it.

use std::collections::BTreeSet;
use std::rc::Rc;

use xy_config::settings::Isolation;
use xy_supervisor::instance::Holder;

use super::{Server, Waiting};
use crate::client::Client;
use crate::turns::{self, Flight};
use crate::upstream::Upstream;

impl Server {
    /// Whether it asks its clients questions, which it cannot address while they share it.
    pub(crate) fn asks(&self) -> bool {
        self.asks.get() && self.settings.borrow().isolation == Isolation::Shared
    }

    /// It has asked something; whether that is new.
    pub(crate) fn has_asked(&self, by: &Rc<Upstream>) -> bool {
        by.take_turns();
        !self.asks.replace(true)
    }

    /// Whether this client shares its instance with others, who take turns there.
    fn takes_turns(&self, client: &Client) -> bool {
        let is_shared = self.settings.borrow().isolation == Isolation::Shared;
        self.asks.get() && (is_shared || !client.stays())
    }

    /// Lets those go whose turn it is.
    pub(crate) fn release(self: &Rc<Self>) {
        if self.turn_of.get().is_some() {
            return; // Whoever lets somebody go looks again afterwards.
        }
        let waiting = self.waiting.borrow();
        let taking_turns = waiting.iter().filter(|it| self.takes_turns(&it.client));
        let holders: BTreeSet<Holder> = taking_turns.map(|it| it.holder).collect();
        drop(waiting);
        for holder in holders {
            self.release_at(holder);
        }
    }

    fn release_at(self: &Rc<Self>, holder: Holder) {
        while let Some(upstream) = self.upstream(holder) {
            let waiting = self.waiting_for_turn(holder);
            let Some(first) = waiting.first() else { return };
            let flight = upstream.flight(first);
            let asked = waiting.iter().filter(|it| self.is_urgent(it, &upstream));
            let asked: Vec<u64> = asked.map(|it| it.number()).collect();
            let numbers: Vec<u64> = waiting.iter().map(|it| it.number()).collect();
            let next = turns::next(flight, &numbers, |client| asked.contains(&client));
            // Where the server waits for somebody's answer, the rest of that program may go on.
            let beside = |it: &&Rc<Client>| {
                let is_free = upstream.flight(it) == Flight::Nobody;
                is_free && self.is_urgent(it, &upstream)
            };
            let next = next.or_else(|| waiting.iter().find(beside).map(|it| it.number()));
            let Some(client) = next else { return };
            self.turn_of.set(Some(client));
            let is_theirs = |it: &Waiting| it.holder == holder && it.client.number() == client;
            let theirs = self.take_those(is_theirs);
            let is_new = flight == Flight::Nobody;
            self.urgent.set(if is_new { 0 } else { self.urgent.get() + theirs.len() });
            for waited in theirs {
                Self::send_again(&waited);
            }
            self.turn_of.set(None);
        }
    }

    /// Whether a client has to wait until those before it are done.
    pub(super) fn must_wait(&self, client: &Rc<Client>, upstream: &Rc<Upstream>) -> bool {
        if !self.takes_turns(client) {
            return self.would_overtake(client, upstream.key().holder);
        }
        if self.turn_of.get() == Some(client.number()) {
            return false;
        }
        let waiting = self.waiting_for_turn(upstream.key().holder);
        let numbers: Vec<u64> = waiting.iter().map(|it| it.number()).collect();
        let is_urgent = self.is_urgent(client, upstream);
        let flight = upstream.flight(client);
        let goes = turns::may_go(client.number(), flight, &numbers, is_urgent);
        if goes {
            self.urgent.set(if waiting.is_empty() { 0 } else { self.urgent.get() + 1 });
        }
        !goes
    }

    /// Whether the server waits for this client, which may have to call it for an answer.
    fn is_urgent(&self, client: &Client, upstream: &Rc<Upstream>) -> bool {
        let is_waited_for = || client.is_asked_by(upstream) || upstream.waits_for(client.house());
        self.urgent.get() < turns::MOST_URGENT && is_waited_for()
    }

    /// The clients of the calls that wait for their turn, the oldest first.
    fn waiting_for_turn(&self, holder: Holder) -> Vec<Rc<Client>> {
        let waiting = self.waiting.borrow();
        waiting.iter().filter(|it| it.holder == holder).map(|it| it.client.clone()).collect()
    }
}
