//! The order of clients at a server that serves one slot at a time. Pure.
//!
//! A server that sends requests does not say to which client, nor in which call. So only the calls
//! of one [`Slot`] are in flight at a time, and what the server asks meanwhile is for that slot.
//!
//! Other calls wait, and new calls of any client queue behind them: a client that never pauses
//! cannot keep the turn. When nothing is in flight, all queued calls of the slot that has waited
//! longest go at once.
//!
//! Only a client that the server waits for may send a few more calls, as it may need them to
//! answer.

/// The unit of exclusive access: whatever a server asks meanwhile is for this slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// All calls of a legacy client, by its number: it is asked outside of calls.
    Client(u64),
    /// One request of a modern client in flight, by upstream id. The client is asked in that
    /// request alone.
    Call(u64),
    /// One request of a modern client that waits or is to wait, by its ticket.
    Ticket(u64),
}

/// The slots whose calls are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flight<T = Slot> {
    /// None.
    Empty,
    /// One alone.
    One(T),
    /// Several, whose calls were sent before the server was known to send requests.
    Several,
}

impl<T: PartialEq> Flight<T> {
    /// Adds a call of this slot.
    pub(crate) fn and(self, one: T) -> Self {
        match self {
            Self::Empty => Self::One(one),
            Self::One(other) if other == one => Self::One(other),
            Self::One(_) | Self::Several => Self::Several,
        }
    }
}

/// Maximum number of calls that a client may send ahead of others in one turn, while the server
/// waits for its answer.
pub(crate) const MAX_URGENT: usize = 8;

/// Returns true if a new call of this slot is sent at once. `waiting` are the slots that wait.
/// `is_urgent` tells that the server waits for this client.
pub(crate) fn may_go(slot: Slot, flight: Flight, waiting: &[Slot], is_urgent: bool) -> bool {
    match flight.and(slot) {
        Flight::One(_) if is_urgent => !waiting.contains(&slot),
        Flight::One(_) => waiting.is_empty(),
        Flight::Empty | Flight::Several => false,
    }
}

/// Returns the slot whose queued calls are all sent now. `waiting` are the slots that wait, oldest
/// first.
pub(crate) fn next(
    flight: Flight,
    waiting: &[Slot],
    is_urgent: impl Fn(Slot) -> bool,
) -> Option<Slot> {
    let first = *waiting.first()?;
    let is_alone = |slot| waiting.iter().all(|it| *it == slot);
    match flight {
        Flight::Empty => Some(first),
        // The other slots have left, or the server waits for this client.
        Flight::One(slot) if is_alone(slot) => Some(slot),
        Flight::One(slot) if waiting.contains(&slot) && is_urgent(slot) => Some(slot),
        Flight::One(_) | Flight::Several => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    /// Clients from this number on are modern.
    const FIRST_MODERN: u64 = 2;

    /// A server with its calls in flight and in the queue, as `backend.rs` keeps them: client and
    /// call numbers.
    #[derive(Default)]
    struct FakeServer {
        flight: Vec<(u64, u32)>,
        waiting: VecDeque<(u64, u32)>,
        sent: Vec<(u64, u32)>,
        /// The clients that the server waits for.
        waited_for: BTreeSet<u64>,
        urgent: usize,
        next_call: u32,
    }

    fn in_flight((client, call): (u64, u32)) -> Slot {
        if client < FIRST_MODERN { Slot::Client(client) } else { Slot::Call(call.into()) }
    }

    fn to_go((client, call): (u64, u32)) -> Slot {
        if client < FIRST_MODERN { Slot::Client(client) } else { Slot::Ticket(call.into()) }
    }

    impl FakeServer {
        fn flight(&self) -> Flight {
            self.flight.iter().fold(Flight::Empty, |flight, call| flight.and(in_flight(*call)))
        }

        fn waiting(&self) -> Vec<Slot> {
            self.waiting.iter().map(|it| to_go(*it)).collect()
        }

        fn is_urgent_slot(&self, slot: Slot) -> bool {
            let mut waiting = self.waiting.iter();
            waiting.any(|call| to_go(*call) == slot && self.is_urgent(call.0))
        }

        fn is_urgent(&self, client: u64) -> bool {
            self.waited_for.contains(&client) && self.urgent < MAX_URGENT
        }

        fn send(&mut self, call: (u64, u32)) {
            self.flight.push(call);
            self.sent.push(call);
        }

        fn call(&mut self, client: u64) {
            self.next_call += 1;
            let call = (client, self.next_call);
            let (slot, is_urgent) = (to_go(call), self.is_urgent(client));
            if may_go(slot, self.flight(), &self.waiting(), is_urgent) {
                self.urgent = if self.waiting.is_empty() { 0 } else { self.urgent + 1 };
                self.send(call);
            } else {
                self.waiting.push_back(call);
            }
        }

        fn release(&mut self) {
            loop {
                let next = next(self.flight(), &self.waiting(), |slot| self.is_urgent_slot(slot));
                let Some(slot) = next else { return };
                let (go, lifetime): (VecDeque<_>, VecDeque<_>) =
                    self.waiting.drain(..).partition(|it| to_go(*it) == slot);
                self.waiting = lifetime;
                self.urgent = if self.flight.is_empty() { 0 } else { self.urgent + go.len() };
                for call in go {
                    self.send(call);
                }
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Call(u64),
        Answer(usize),
        GiveUp(usize),
        Ask(u64),
        Tell(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..4_u64).prop_map(Step::Call),
            2 => (0..8_usize).prop_map(Step::Answer),
            1 => (0..8_usize).prop_map(Step::GiveUp),
            1 => (0..4_u64).prop_map(Step::Ask),
            1 => (0..4_u64).prop_map(Step::Tell),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn slots_run_one_at_a_time_in_order_without_starvation(steps in steps()) {
            let mut server = FakeServer::default();
            for step in steps {
                match step {
                    Step::Call(client) => server.call(client),
                    Step::Answer(which) if which < server.flight.len() => {
                        server.flight.remove(which);
                    }
                    Step::GiveUp(which) => drop(server.waiting.remove(which)),
                    Step::Ask(client) => drop(server.waited_for.insert(client)),
                    Step::Tell(client) => drop(server.waited_for.remove(&client)),
                    Step::Answer(_) => {}
                }
                server.release();
                prop_assert_ne!(server.flight(), Flight::Several);
                // No call waits for nothing.
                prop_assert!(!server.flight.is_empty() || server.waiting.is_empty());
            }
            for client in 0..4 {
                let sent = server.sent.iter().filter(|it| it.0 == client);
                prop_assert!(sent.is_sorted(), "the calls of {client} are out of order");
            }
        }

        #[test]
        fn busy_urgent_client_cannot_keep_exclusive_access(
            others in prop::collection::vec(1..5_u64, 1..20)
        ) {
            let mut server = FakeServer::default();
            let busy = 0;
            server.waited_for.insert(busy);
            server.call(busy);
            for client in &others {
                server.call(*client);
            }
            // It always has two calls in flight if it can, so that it never pauses.
            for _ in 0..200 {
                server.call(busy);
                server.flight.remove(0);
                server.release();
            }
            let sent: Vec<u64> = server.sent.iter().map(|it| it.0).collect();
            for client in others {
                prop_assert!(sent.contains(&client), "{client} starves: {sent:?}");
            }
        }
    }

    fn none(_: Slot) -> bool {
        false
    }

    fn all(clients: &[u64]) -> Vec<Slot> {
        clients.iter().map(|it| Slot::Client(*it)).collect()
    }

    fn one(client: u64) -> Flight {
        Flight::One(Slot::Client(client))
    }

    #[test]
    fn client_may_go_on_until_another_waits() {
        let may = |flight, waiting: &[u64], is_urgent| {
            may_go(Slot::Client(1), flight, &all(waiting), is_urgent)
        };
        assert!(may(Flight::Empty, &[], false) && may(one(1), &[], false));
        assert!(!may(one(2), &[], false) && !may(Flight::Several, &[], true));
        assert!(!may(one(1), &[2], false) && !may(Flight::Empty, &[2], false));
        assert!(may(one(1), &[2], true), "the server waits for it");
        assert!(!may(one(1), &[2, 1], true), "its own come first");
    }

    #[test]
    fn modern_request_runs_alone() {
        let (new, with) = (Slot::Ticket(1), Flight::One(Slot::Call(1)));
        assert!(may_go(new, Flight::Empty, &[], false));
        assert!(!may_go(new, with, &[], false) && !may_go(new, with, &[], true));
        let waiting = [Slot::Ticket(1), Slot::Ticket(2)];
        assert_eq!(next(Flight::Empty, &waiting, none), Some(Slot::Ticket(1)));
        assert_eq!(next(with, &waiting, |_| true), None);
    }

    #[test]
    fn longest_waiting_slot_is_next() {
        let next = |flight, waiting: &[u64], is_urgent: fn(Slot) -> bool| {
            next(flight, &all(waiting), is_urgent)
        };
        let client = |number| Some(Slot::Client(number));
        assert_eq!(next(Flight::Empty, &[2, 1, 2], none), client(2));
        assert_eq!(next(one(2), &[2, 1], none), None);
        assert_eq!(next(one(2), &[1, 2], |_| true), client(2));
        assert_eq!(next(one(3), &[1, 2], |_| true), None);
        assert_eq!(next(one(2), &[2, 2], none), client(2), "the other has left");
        assert_eq!(next(Flight::Several, &[2], none), None);
        assert_eq!(next(Flight::Empty, &[], none), None);
    }
}
