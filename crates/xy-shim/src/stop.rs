//! How a server is stopped, as a pure function.
//!
//! ```text
//! NotRequested + requested, stdin is a pipe   ─► StdinClosed   close stdin
//! NotRequested + requested, stdin is empty    ─► Terminated    TERM
//! NotRequested + leader died                  ─► Killed        KILL
//! StdinClosed  + deadline                     ─► Terminated    TERM
//! Terminated   + deadline                     ─► Killed        KILL
//! Killed       + deadline                     ─► Killed        KILL again
//! Killed       + last deadline                ─► GivenUp       give up
//! ```
//!
//! Nothing here sends signals or reads a clock: `life.rs` applies the effects. It abandons this
//! machine once no process of the server is left, which may be later than the leader's death.

use std::time::{Duration, Instant};

use crate::clock::after;

/// Maximum time a server has to exit by itself after its stdin is closed.
const MAX_STDIN_GRACE: Duration = Duration::from_secs(2);

/// How long killed processes may take to die before the shim goes on without them.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between kills. A process forked during one kill is killed by the next.
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// Progress of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    NotRequested,
    StdinClosed {
        terminate_at: Instant,
        kill_at: Instant,
    },
    Terminated {
        kill_at: Instant,
    },
    Killed {
        again_at: Instant,
        give_up_at: Instant,
    },
    /// A process does not die of SIGKILL: it hangs in the kernel.
    GivenUp,
}

/// An event that matters to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Requested { grace: Duration, stdin: Stdin },
    LeaderDied,
    DeadlineReached,
}

/// Kind of the server's stdin: closing a pipe asks the server to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Pipe,
    Empty,
}

/// An action for the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    CloseStdin,
    Terminate,
    Kill,
    GiveUp,
}

impl State {
    /// Returns when [`Event::DeadlineReached`] is due.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::NotRequested | Self::GivenUp => None,
            Self::StdinClosed { terminate_at, .. } => Some(terminate_at),
            Self::Terminated { kill_at } => Some(kill_at),
            Self::Killed { again_at, give_up_at } => Some(again_at.min(give_up_at)),
        }
    }
}

/// Returns the next state and the effect of an event.
pub(crate) fn on_event(state: State, event: Event, now: Instant) -> (State, Option<Effect>) {
    use Effect::{CloseStdin, GiveUp, Kill, Terminate};
    use Event::{DeadlineReached, LeaderDied, Requested};
    use State::{GivenUp, Killed, NotRequested, StdinClosed, Terminated};
    match (state, event) {
        (NotRequested, Requested { grace, stdin: Stdin::Pipe }) => {
            let terminate_at = after(now, stdin_grace(grace));
            (StdinClosed { terminate_at, kill_at: after(now, grace) }, Some(CloseStdin))
        }
        (NotRequested, Requested { grace, stdin: Stdin::Empty }) => {
            (Terminated { kill_at: after(now, grace) }, Some(Terminate))
        }
        // A second request may shorten the grace, never lengthen it.
        (StdinClosed { terminate_at, kill_at }, Requested { grace, .. }) => {
            let terminate_at = terminate_at.min(after(now, stdin_grace(grace)));
            (StdinClosed { terminate_at, kill_at: kill_at.min(after(now, grace)) }, None)
        }
        (Terminated { kill_at }, Requested { grace, .. }) => {
            (Terminated { kill_at: kill_at.min(after(now, grace)) }, None)
        }
        (StdinClosed { kill_at, .. }, DeadlineReached) => (Terminated { kill_at }, Some(Terminate)),
        // The server ended by itself, so its other processes get no grace.
        (NotRequested, LeaderDied) | (Terminated { .. }, DeadlineReached) => {
            (killed(now, after(now, KILL_TIMEOUT)), Some(Kill))
        }
        (Killed { give_up_at, .. }, DeadlineReached) if now < give_up_at => {
            (killed(now, give_up_at), Some(Kill))
        }
        (Killed { .. }, DeadlineReached) => (GivenUp, Some(GiveUp)),
        // After a requested stop, the leader's descendants have the rest of the grace. A step that
        // is under way is not repeated.
        (StdinClosed { .. } | Terminated { .. } | Killed { .. } | GivenUp, LeaderDied)
        | (Killed { .. } | GivenUp, Requested { .. })
        | (NotRequested | GivenUp, DeadlineReached) => (state, None),
    }
}

fn killed(now: Instant, give_up_at: Instant) -> State {
    State::Killed { again_at: after(now, KILL_INTERVAL), give_up_at }
}

fn stdin_grace(grace: Duration) -> Duration {
    MAX_STDIN_GRACE.min(grace / 5)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn request(grace: Duration, stdin: Stdin) -> Event {
        Event::Requested { grace, stdin }
    }

    /// Lets every deadline pass. Returns the effects with their times.
    fn play(events: &[(Duration, Event)]) -> Vec<(Duration, Effect)> {
        let began = crate::clock::now();
        let mut state = State::NotRequested;
        let mut effects = Vec::new();
        let mut events = events.iter().copied().peekable();
        loop {
            let requested_at = events.peek().map(|(at, _)| began + *at);
            let (now, event) = match (requested_at, state.deadline()) {
                (Some(requested_at), deadline) if deadline.is_none_or(|it| requested_at < it) => {
                    (requested_at, events.next().unwrap().1)
                }
                (_, Some(deadline)) => (deadline, Event::DeadlineReached),
                (_, None) => return effects,
            };
            let (next, effect) = on_event(state, event, now);
            state = next;
            let is_repeated =
                effect == Some(Effect::Kill) && matches!(effects.last(), Some((_, Effect::Kill)));
            effects.extend(effect.filter(|_| !is_repeated).map(|effect| (now - began, effect)));
        }
    }

    #[test]
    fn every_state_handles_every_event() {
        let now = crate::clock::now();
        let later = |seconds| now + seconds * SECOND;
        let states = [
            State::NotRequested,
            State::StdinClosed { terminate_at: later(1), kill_at: later(5) },
            State::Terminated { kill_at: later(5) },
            State::Killed { again_at: later(1), give_up_at: later(5) },
            State::GivenUp,
        ];
        let events = [
            ("requested, stdin is a pipe", request(3 * SECOND, Stdin::Pipe)),
            ("requested, stdin is empty", request(3 * SECOND, Stdin::Empty)),
            ("leader died", Event::LeaderDied),
            ("deadline reached", Event::DeadlineReached),
        ];
        let name = |state: State| {
            let wait = state.deadline().map(|at| format!(" for {:?}", at - now));
            let label = format!("{state:?}");
            let name = label.split(' ').next().unwrap_or_default();
            format!("{name}{}", wait.unwrap_or_default())
        };
        let mut table = String::new();
        for state in states {
            for (label, event) in events {
                let (next, effect) = on_event(state, event, now);
                let effect = effect.map(|it| format!(", then {it:?}")).unwrap_or_default();
                writeln!(table, "{} + {label} -> {}{effect}", name(state), name(next)).unwrap();
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn server_with_stdin_gets_eof_then_term_then_kill() {
        let effects = play(&[(Duration::ZERO, request(5 * SECOND, Stdin::Pipe))]);
        assert_eq!(
            effects,
            [
                (Duration::ZERO, Effect::CloseStdin),
                (SECOND, Effect::Terminate),
                (5 * SECOND, Effect::Kill),
                (10 * SECOND, Effect::GiveUp),
            ]
        );
    }

    #[test]
    fn orphans_of_a_dead_leader_are_killed() {
        let unasked = play(&[(SECOND, Event::LeaderDied)]);
        assert_eq!(unasked, [(SECOND, Effect::Kill), (6 * SECOND, Effect::GiveUp)]);

        let requested = play(&[
            (Duration::ZERO, request(5 * SECOND, Stdin::Empty)),
            (SECOND, Event::LeaderDied),
        ]);
        assert_eq!(requested[1], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn wait_after_closing_stdin_is_bounded() {
        let effects = play(&[(Duration::ZERO, request(60 * SECOND, Stdin::Pipe))]);
        assert_eq!(effects[1], (2 * SECOND, Effect::Terminate));
        assert_eq!(effects[2], (60 * SECOND, Effect::Kill));
    }

    #[test]
    fn server_without_stdin_is_terminated_at_once() {
        let effects = play(&[(Duration::ZERO, request(5 * SECOND, Stdin::Empty))]);
        assert_eq!(effects[0], (Duration::ZERO, Effect::Terminate));
        assert_eq!(effects[1], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn zero_grace_takes_all_steps_at_once() {
        let effects = play(&[(Duration::ZERO, request(Duration::ZERO, Stdin::Pipe))]);
        let at_once = [Effect::CloseStdin, Effect::Terminate, Effect::Kill];
        assert_eq!(effects[..3], at_once.map(|effect| (Duration::ZERO, effect)));
    }

    #[test]
    fn second_stop_can_only_shorten_the_grace() {
        let shorter = play(&[
            (Duration::ZERO, request(60 * SECOND, Stdin::Pipe)),
            (SECOND, request(5 * SECOND, Stdin::Pipe)),
        ]);
        assert_eq!(shorter[2], (6 * SECOND, Effect::Kill));

        let longer = play(&[
            (Duration::ZERO, request(5 * SECOND, Stdin::Pipe)),
            (3 * SECOND, request(60 * SECOND, Stdin::Pipe)),
        ]);
        assert_eq!(longer[2], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn endless_grace_does_not_overflow() {
        let (state, _) = on_event(
            State::NotRequested,
            request(Duration::from_millis(u64::MAX), Stdin::Pipe),
            crate::clock::now(),
        );
        assert_ne!(state, State::NotRequested);
    }

    proptest! {
        #[test]
        fn kill_comes_within_the_shortest_grace(
            requests in proptest::collection::vec((0..20_u64, 0..20_u64, any::<bool>()), 1..5)
        ) {
            let mut requests = requests;
            requests.sort_unstable();
            let events: Vec<_> = requests.iter().map(|(at, grace, stdin)| {
                let stdin = if *stdin { Stdin::Pipe } else { Stdin::Empty };
                (*at * 1000, request(Duration::from_millis(*grace * 1000), stdin))
            }).map(|(at, event)| (Duration::from_millis(at), event)).collect();

            let killed_at = play(&events).iter().find(|it| it.1 == Effect::Kill).unwrap().0;
            let latest = requests.iter().map(|(at, grace, _)| Duration::from_secs(at + grace)).min();
            prop_assert_eq!(Some(killed_at), latest);
        }
    }
}
