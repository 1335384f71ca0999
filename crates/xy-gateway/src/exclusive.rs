//! Whose turn it is at a server that does one thing at a time. Pure.
//!
//! A server that asks questions does not say whom, nor in which call. So the calls of one
//! [`Slot`] alone are with it at a time, and what it asks meanwhile is for that unit. The calls
//! of others wait, and once anybody waits everybody's new calls wait behind: a client that never
//! pauses cannot keep the turn. When nothing is in flight, all that waits of the unit that has
//! waited longest goes at once. Only a client that the server waits for may say a little more,
//! as it may take a call to answer a question.

/// What has a turn: whatever a server asks meanwhile is for this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// All calls of a legacy client, by its number: it is asked by itself, not in a call.
    Client(u64),
    /// One request of a modern client, which is asked in that request alone. It is with the
    /// server, and this is our id of it.
    Call(u64),
    /// The same, but it waits, and this is its ticket, or is to be.
    Ticket(u64),
}

/// Whose calls are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flight<T = Slot> {
    /// Nobody's.
    Nobody,
    /// One's alone.
    One(T),
    /// Those of several, who called before it was known that they must not.
    Several,
}

impl<T: PartialEq> Flight<T> {
    /// With one more call, of this one.
    pub(crate) fn and(self, one: T) -> Self {
        match self {
            Self::Nobody => Self::One(one),
            Self::One(other) if other == one => Self::One(other),
            Self::One(_) | Self::Several => Self::Several,
        }
    }
}

/// How many more calls go in one turn while others wait, if the server waits for the client:
/// what it asks may take a call to answer.
pub(crate) const MOST_URGENT: usize = 8;

/// Whether a new call of this unit goes at once; `waiting` are the units of those that wait.
/// `is_urgent` is what the server waits for.
pub(crate) fn may_go(unit: Slot, flight: Flight, waiting: &[Slot], is_urgent: bool) -> bool {
    match flight.and(unit) {
        Flight::One(_) if is_urgent => !waiting.contains(&unit),
        Flight::One(_) => waiting.is_empty(),
        Flight::Nobody | Flight::Several => false,
    }
}

/// Whose waiting calls go now, all of them; `waiting` are the units of those that wait, the
/// oldest first.
pub(crate) fn next(
    flight: Flight,
    waiting: &[Slot],
    is_urgent: impl Fn(Slot) -> bool,
) -> Option<Slot> {
    let first = *waiting.first()?;
    let is_alone = |unit| waiting.iter().all(|it| *it == unit);
    match flight {
        Flight::Nobody => Some(first),
        // Whoever was waited for has left, or the server waits for the client.
        Flight::One(unit) if is_alone(unit) => Some(unit),
        Flight::One(unit) if waiting.contains(&unit) && is_urgent(unit) => Some(unit),
        Flight::One(_) | Flight::Several => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    /// From this one on clients are modern.
    const FIRST_MODERN: u64 = 2;

    /// A server and those who wait for it, as `backend.rs` keeps them: clients, and numbers of
    /// their calls.
    #[derive(Default)]
    struct Stage {
        flight: Vec<(u64, u32)>,
        waiting: VecDeque<(u64, u32)>,
        sent: Vec<(u64, u32)>,
        /// Whom the server waits for.
        asked: BTreeSet<u64>,
        urgent: usize,
        next_call: u32,
    }

    fn in_flight((client, call): (u64, u32)) -> Slot {
        if client < FIRST_MODERN { Slot::Client(client) } else { Slot::Call(call.into()) }
    }

    fn to_go((client, call): (u64, u32)) -> Slot {
        if client < FIRST_MODERN { Slot::Client(client) } else { Slot::Ticket(call.into()) }
    }

    impl Stage {
        fn flight(&self) -> Flight {
            self.flight.iter().fold(Flight::Nobody, |flight, call| flight.and(in_flight(*call)))
        }

        fn waiting(&self) -> Vec<Slot> {
            self.waiting.iter().map(|it| to_go(*it)).collect()
        }

        fn is_urgent_unit(&self, unit: Slot) -> bool {
            let mut waiting = self.waiting.iter();
            waiting.any(|call| to_go(*call) == unit && self.is_urgent(call.0))
        }

        fn is_urgent(&self, client: u64) -> bool {
            self.asked.contains(&client) && self.urgent < MOST_URGENT
        }

        fn send(&mut self, call: (u64, u32)) {
            self.flight.push(call);
            self.sent.push(call);
        }

        fn call(&mut self, client: u64) {
            self.next_call += 1;
            let call = (client, self.next_call);
            let (unit, is_urgent) = (to_go(call), self.is_urgent(client));
            if may_go(unit, self.flight(), &self.waiting(), is_urgent) {
                self.urgent = if self.waiting.is_empty() { 0 } else { self.urgent + 1 };
                self.send(call);
            } else {
                self.waiting.push_back(call);
            }
        }

        fn release(&mut self) {
            loop {
                let next = next(self.flight(), &self.waiting(), |unit| self.is_urgent_unit(unit));
                let Some(unit) = next else { return };
                let (go, lifetime): (VecDeque<_>, VecDeque<_>) =
                    self.waiting.drain(..).partition(|it| to_go(*it) == unit);
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
        fn one_unit_at_a_time_in_order_and_nobody_starves(steps in steps()) {
            let mut stage = Stage::default();
            for step in steps {
                match step {
                    Step::Call(client) => stage.call(client),
                    Step::Answer(which) if which < stage.flight.len() => {
                        stage.flight.remove(which);
                    }
                    Step::GiveUp(which) => drop(stage.waiting.remove(which)),
                    Step::Ask(client) => drop(stage.asked.insert(client)),
                    Step::Tell(client) => drop(stage.asked.remove(&client)),
                    Step::Answer(_) => {}
                }
                stage.release();
                prop_assert_ne!(stage.flight(), Flight::Several);
                // Nobody waits for nothing.
                prop_assert!(!stage.flight.is_empty() || stage.waiting.is_empty());
            }
            for client in 0..4 {
                let sent = stage.sent.iter().filter(|it| it.0 == client);
                prop_assert!(sent.is_sorted(), "the calls of {client} are out of order");
            }
        }

        #[test]
        fn a_client_that_never_pauses_and_is_always_asked_cannot_keep_the_turn(
            others in prop::collection::vec(1..5_u64, 1..20)
        ) {
            let mut stage = Stage::default();
            let busy = 0;
            stage.asked.insert(busy);
            stage.call(busy);
            for client in &others {
                stage.call(*client);
            }
            // As long as it can it has two calls in flight, so that there is never a pause.
            for _ in 0..200 {
                stage.call(busy);
                stage.flight.remove(0);
                stage.release();
            }
            let sent: Vec<u64> = stage.sent.iter().map(|it| it.0).collect();
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
    fn a_client_goes_on_at_once_until_somebody_waits() {
        let may = |flight, waiting: &[u64], is_urgent| {
            may_go(Slot::Client(1), flight, &all(waiting), is_urgent)
        };
        assert!(may(Flight::Nobody, &[], false) && may(one(1), &[], false));
        assert!(!may(one(2), &[], false) && !may(Flight::Several, &[], true));
        assert!(!may(one(1), &[2], false) && !may(Flight::Nobody, &[2], false));
        assert!(may(one(1), &[2], true), "the server waits for it");
        assert!(!may(one(1), &[2, 1], true), "its own come first");
    }

    #[test]
    fn a_request_of_a_modern_client_goes_alone() {
        let (new, with) = (Slot::Ticket(1), Flight::One(Slot::Call(1)));
        assert!(may_go(new, Flight::Nobody, &[], false));
        assert!(!may_go(new, with, &[], false) && !may_go(new, with, &[], true));
        let waiting = [Slot::Ticket(1), Slot::Ticket(2)];
        assert_eq!(next(Flight::Nobody, &waiting, none), Some(Slot::Ticket(1)));
        assert_eq!(next(with, &waiting, |_| true), None);
    }

    #[test]
    fn the_one_who_waited_longest_is_next() {
        let next = |flight, waiting: &[u64], is_urgent: fn(Slot) -> bool| {
            next(flight, &all(waiting), is_urgent)
        };
        let client = |number| Some(Slot::Client(number));
        assert_eq!(next(Flight::Nobody, &[2, 1, 2], none), client(2));
        assert_eq!(next(one(2), &[2, 1], none), None);
        assert_eq!(next(one(2), &[1, 2], |_| true), client(2));
        assert_eq!(next(one(3), &[1, 2], |_| true), None);
        assert_eq!(next(one(2), &[2, 2], none), client(2), "the other has left");
        assert_eq!(next(Flight::Several, &[2], none), None);
        assert_eq!(next(Flight::Nobody, &[], none), None);
    }
}
