//! Whose turn it is at a server that serves one client at a time. Pure.
//!
//! A server that asks questions does not say whom. So the calls of one client alone are with
//! it at a time, and what it asks meanwhile is for that client. The calls of others wait, and
//! once anybody waits everybody's new calls wait behind: a client that never pauses cannot
//! keep the turn. When nothing is in flight, all that waits of the client that has waited
//! longest goes at once.

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

/// Whether a new call of this client goes at once.
pub(crate) fn may_go(client: u64, flight: Flight, anybody_waits: bool) -> bool {
    !anybody_waits && matches!(flight.and(client), Flight::One(_))
}

/// Whose waiting calls go now, all of them; `waiting` are the clients of those that wait, the
/// oldest first.
pub(crate) fn next(flight: Flight, mut waiting: impl Iterator<Item = u64>) -> Option<u64> {
    let first = waiting.next()?;
    match flight {
        Flight::Nobody => Some(first),
        // Whoever it waited for has left.
        Flight::One(client) => (first == client && waiting.all(|it| it == client)).then_some(first),
        Flight::Several => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A server and those who wait for it, as `server.rs` keeps them.
    #[derive(Default)]
    struct Stage {
        flight: Vec<(u64, u32)>,
        waiting: VecDeque<(u64, u32)>,
        sent: Vec<(u64, u32)>,
        next_call: u32,
    }

    impl Stage {
        fn flight(&self) -> Flight {
            self.flight.iter().fold(Flight::Nobody, |flight, (client, _)| flight.and(*client))
        }

        fn send(&mut self, call: (u64, u32)) {
            self.flight.push(call);
            self.sent.push(call);
        }

        fn call(&mut self, client: u64) {
            self.next_call += 1;
            let call = (client, self.next_call);
            if may_go(client, self.flight(), !self.waiting.is_empty()) {
                self.send(call);
            } else {
                self.waiting.push_back(call);
            }
        }

        fn release(&mut self) {
            while let Some(client) = next(self.flight(), self.waiting.iter().map(|it| it.0)) {
                let (go, stay): (VecDeque<_>, VecDeque<_>) =
                    self.waiting.drain(..).partition(|it| it.0 == client);
                self.waiting = stay;
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
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..4_u64).prop_map(Step::Call),
            (0..8_usize).prop_map(Step::Answer),
            (0..8_usize).prop_map(Step::GiveUp),
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
                    Step::Answer(_) => {}
                }
                stage.release();
                prop_assert_ne!(stage.flight(), Flight::Several);
                // Nobody waits for nothing.
                prop_assert!(!stage.flight.is_empty() || stage.waiting.is_empty());
            }
            // Whatever one client goes on to ask, everybody else has their turn before it.
            let others: Vec<(u64, u32)> =
                stage.waiting.iter().copied().filter(|it| it.0 != 9).collect();
            for _ in 0..=4 {
                stage.call(9);
                stage.flight.clear();
                stage.release();
            }
            for other in others {
                prop_assert!(stage.sent.contains(&other), "{other:?} starves");
            }
            for client in 0..4 {
                let sent = stage.sent.iter().filter(|it| it.0 == client);
                prop_assert!(sent.is_sorted(), "the calls of {client} are out of order");
            }
        }
    }

    #[test]
    fn a_client_goes_on_at_once_until_somebody_waits() {
        assert!(may_go(1, Flight::Nobody, false) && may_go(1, Flight::One(1), false));
        assert!(!may_go(1, Flight::One(2), false) && !may_go(1, Flight::Several, false));
        assert!(!may_go(1, Flight::One(1), true) && !may_go(1, Flight::Nobody, true));
    }

    #[test]
    fn the_one_who_waited_longest_is_next() {
        assert_eq!(next(Flight::Nobody, [2, 1, 2].into_iter()), Some(2));
        assert_eq!(next(Flight::One(2), [2, 1].into_iter()), None);
        assert_eq!(next(Flight::One(2), [2, 2].into_iter()), Some(2), "the other has left");
        assert_eq!(next(Flight::Several, [2].into_iter()), None);
        assert_eq!(next(Flight::Nobody, [].into_iter()), None);
    }
}
