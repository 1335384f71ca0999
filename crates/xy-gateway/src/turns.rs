//! Whose turn it is at a server that serves one client at a time. Pure.
//!
//! A server that asks questions does not say whom. So the calls of one client alone are with
//! it at a time, and what it asks meanwhile is for that client. The calls of others wait, and
//! once anybody waits everybody's new calls wait behind: a client that never pauses cannot
//! keep the turn. When nothing is in flight, all that waits of the client that has waited
//! longest goes at once. Only a client that the server waits for may say a little more, as it
//! may take a call to answer a question.

/// Whose calls are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flight {
    /// Nobody's.
    Nobody,
    /// One client's alone.
    One(u64),
    /// Those of several, who called before it was known that they must not.
    Several,
}

impl Flight {
    /// With one more call, of this client.
    pub(crate) fn and(self, client: u64) -> Self {
        match self {
            Self::Nobody => Self::One(client),
            Self::One(other) if other == client => self,
            Self::One(_) | Self::Several => Self::Several,
        }
    }
}

/// How many more calls go in one turn while others wait, if the server waits for the client:
/// what it asks may take a call to answer.
pub(crate) const MOST_URGENT: usize = 8;

/// Whether a new call of this client goes at once; `waiting` are the clients of those that
/// wait. `is_urgent` is what the server waits for.
pub(crate) fn may_go(client: u64, flight: Flight, waiting: &[u64], is_urgent: bool) -> bool {
    match flight.and(client) {
        Flight::One(_) if is_urgent => !waiting.contains(&client),
        Flight::One(_) => waiting.is_empty(),
        Flight::Nobody | Flight::Several => false,
    }
}

/// Whose waiting calls go now, all of them; `waiting` are the clients of those that wait, the
/// oldest first.
pub(crate) fn next(
    flight: Flight,
    waiting: &[u64],
    is_urgent: impl Fn(u64) -> bool,
) -> Option<u64> {
    let first = *waiting.first()?;
    let is_alone = |client| waiting.iter().all(|it| *it == client);
    match flight {
        Flight::Nobody => Some(first),
        // Whoever was waited for has left, or the server waits for the client.
        Flight::One(client) if is_alone(client) => Some(client),
        Flight::One(client) if waiting.contains(&client) && is_urgent(client) => Some(client),
        Flight::One(_) | Flight::Several => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    /// A server and those who wait for it, as `server.rs` keeps them.
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

    impl Stage {
        fn flight(&self) -> Flight {
            self.flight.iter().fold(Flight::Nobody, |flight, (client, _)| flight.and(*client))
        }

        fn waiting(&self) -> Vec<u64> {
            self.waiting.iter().map(|it| it.0).collect()
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
            if may_go(client, self.flight(), &self.waiting(), self.is_urgent(client)) {
                self.urgent = if self.waiting.is_empty() { 0 } else { self.urgent + 1 };
                self.send(call);
            } else {
                self.waiting.push_back(call);
            }
        }

        fn release(&mut self) {
            loop {
                let next = next(self.flight(), &self.waiting(), |client| self.is_urgent(client));
                let Some(client) = next else { return };
                let (go, stay): (VecDeque<_>, VecDeque<_>) =
                    self.waiting.drain(..).partition(|it| it.0 == client);
                self.waiting = stay;
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
        fn one_client_at_a_time_in_order_and_nobody_starves(steps in steps()) {
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
            others in prop::collection::vec(0..4_u64, 1..20)
        ) {
            let mut stage = Stage::default();
            stage.asked.insert(9);
            stage.call(9);
            for client in &others {
                stage.call(*client);
            }
            // As long as it can it has two calls in flight, so that there is never a pause.
            for _ in 0..200 {
                stage.call(9);
                stage.flight.remove(0);
                stage.release();
            }
            let sent: Vec<u64> = stage.sent.iter().map(|it| it.0).collect();
            for client in others {
                prop_assert!(sent.contains(&client), "{client} starves: {sent:?}");
            }
        }
    }

    fn none(_: u64) -> bool {
        false
    }

    #[test]
    fn a_client_goes_on_at_once_until_somebody_waits() {
        let may = |flight, waiting: &[u64], is_urgent| may_go(1, flight, waiting, is_urgent);
        assert!(may(Flight::Nobody, &[], false) && may(Flight::One(1), &[], false));
        assert!(!may(Flight::One(2), &[], false) && !may(Flight::Several, &[], true));
        assert!(!may(Flight::One(1), &[2], false) && !may(Flight::Nobody, &[2], false));
        assert!(may(Flight::One(1), &[2], true), "the server waits for it");
        assert!(!may(Flight::One(1), &[2, 1], true), "its own come first");
    }

    #[test]
    fn the_one_who_waited_longest_is_next() {
        assert_eq!(next(Flight::Nobody, &[2, 1, 2], none), Some(2));
        assert_eq!(next(Flight::One(2), &[2, 1], none), None);
        assert_eq!(next(Flight::One(2), &[1, 2], |_| true), Some(2));
        assert_eq!(next(Flight::One(3), &[1, 2], |_| true), None);
        assert_eq!(next(Flight::One(2), &[2, 2], none), Some(2), "the other has left");
        assert_eq!(next(Flight::Several, &[2], none), None);
        assert_eq!(next(Flight::Nobody, &[], none), None);
    }
}
