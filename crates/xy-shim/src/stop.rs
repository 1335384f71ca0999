//! How a server is ended, as a pure function.
//!
//! ```text
//! NotAsked ── asked, stdin is a pipe ─► StdinClosed ── time ─► Terminated ── time ─► Killed ─┐ time:
//!   │ └────── asked, no stdin ────────────────────────────────────▲                  ▲ ▲    ◄─┘ again
//!   └──────── its leader died unasked ───────────────────────────────────────────────┘ │
//!                                                             GivenUp ◄── time, at last ┘
//! ```
//!
//! Nothing here signals or reads a clock; `life.rs` does the doing, and leaves this
//! machine behind as soon as nothing is left of the server: not when its leader is dead.

use std::time::{Duration, Instant};

use crate::clock::after;

/// The longest a server may take to end by itself once its stdin is closed.
const LONGEST_WAIT_AFTER_STDIN: Duration = Duration::from_secs(2);

/// How long killed processes may take to die before we go on without them.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

/// What was born during one kill is killed by the next.
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// How far the stop of a server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    NotAsked,
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
    /// Something does not even die of a KILL: it hangs in the kernel.
    GivenUp,
}

/// What a stop has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Asked { grace: Duration, stdin: Stdin },
    LeaderDied,
    DeadlineReached,
}

/// Whether closing its stdin asks the server to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Pipe,
    Empty,
}

/// What must be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    CloseStdin,
    Terminate,
    Kill,
    GiveUp,
}

impl State {
    /// When the machine wants to hear of the time.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::NotAsked | Self::GivenUp => None,
            Self::StdinClosed { terminate_at, .. } => Some(terminate_at),
            Self::Terminated { kill_at } => Some(kill_at),
            Self::Killed { again_at, give_up_at } => Some(again_at.min(give_up_at)),
        }
    }
}

/// Decides what one event means to a stop in `state`.
pub(crate) fn on_event(state: State, event: Event, now: Instant) -> (State, Option<Effect>) {
    use Effect::{CloseStdin, GiveUp, Kill, Terminate};
    use Event::{Asked, DeadlineReached, LeaderDied};
    use State::{GivenUp, Killed, NotAsked, StdinClosed, Terminated};
    match (state, event) {
        (NotAsked, Asked { grace, stdin: Stdin::Pipe }) => {
            let terminate_at = after(now, wait_after_stdin(grace));
            (StdinClosed { terminate_at, kill_at: after(now, grace) }, Some(CloseStdin))
        }
        (NotAsked, Asked { grace, stdin: Stdin::Empty }) => {
            (Terminated { kill_at: after(now, grace) }, Some(Terminate))
        }
        // Asked again: it may get shorter, never longer.
        (StdinClosed { terminate_at, kill_at }, Asked { grace, .. }) => {
            let terminate_at = terminate_at.min(after(now, wait_after_stdin(grace)));
            (StdinClosed { terminate_at, kill_at: kill_at.min(after(now, grace)) }, None)
        }
        (Terminated { kill_at }, Asked { grace, .. }) => {
            (Terminated { kill_at: kill_at.min(after(now, grace)) }, None)
        }
        (StdinClosed { kill_at, .. }, DeadlineReached) => (Terminated { kill_at }, Some(Terminate)),
        // Nobody asked for its end, so nobody waits for what it has left behind.
        (NotAsked, LeaderDied) | (Terminated { .. }, DeadlineReached) => {
            (killed(now, after(now, DEAD_WITHIN)), Some(Kill))
        }
        (Killed { give_up_at, .. }, DeadlineReached) if now < give_up_at => {
            (killed(now, give_up_at), Some(Kill))
        }
        (Killed { .. }, DeadlineReached) => (GivenUp, Some(GiveUp)),
        // What is below a leader that was asked to end has the rest of the grace; and what
        // is already under way need not be asked for.
        (StdinClosed { .. } | Terminated { .. } | Killed { .. } | GivenUp, LeaderDied)
        | (Killed { .. } | GivenUp, Asked { .. })
        | (NotAsked | GivenUp, DeadlineReached) => (state, None),
    }
}

fn killed(now: Instant, give_up_at: Instant) -> State {
    State::Killed { again_at: after(now, KILL_AGAIN_AFTER), give_up_at }
}

fn wait_after_stdin(grace: Duration) -> Duration {
    LONGEST_WAIT_AFTER_STDIN.min(grace / 5)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ask(grace: Duration, stdin: Stdin) -> Event {
        Event::Asked { grace, stdin }
    }

    /// Lets every deadline pass and notes the effects with their times.
    fn play(events: &[(Duration, Event)]) -> Vec<(Duration, Effect)> {
        let began = crate::clock::now();
        let mut state = State::NotAsked;
        let mut effects = Vec::new();
        let mut events = events.iter().copied().peekable();
        loop {
            let asked_at = events.peek().map(|(at, _)| began + *at);
            let (now, event) = match (asked_at, state.deadline()) {
                (Some(asked_at), deadline) if deadline.is_none_or(|it| asked_at < it) => {
                    (asked_at, events.next().unwrap().1)
                }
                (_, Some(deadline)) => (deadline, Event::DeadlineReached),
                (_, None) => return effects,
            };
            let (next, effect) = on_event(state, event, now);
            state = next;
            let is_again =
                effect == Some(Effect::Kill) && matches!(effects.last(), Some((_, Effect::Kill)));
            effects.extend(effect.filter(|_| !is_again).map(|effect| (now - began, effect)));
        }
    }

    #[test]
    fn every_state_answers_every_event() {
        let now = crate::clock::now();
        let later = |seconds| now + seconds * SECOND;
        let states = [
            State::NotAsked,
            State::StdinClosed { terminate_at: later(1), kill_at: later(5) },
            State::Terminated { kill_at: later(5) },
            State::Killed { again_at: later(1), give_up_at: later(5) },
            State::GivenUp,
        ];
        let events = [
            ("asked, stdin is a pipe", ask(3 * SECOND, Stdin::Pipe)),
            ("asked, stdin is empty", ask(3 * SECOND, Stdin::Empty)),
            ("leader died", Event::LeaderDied),
            ("deadline reached", Event::DeadlineReached),
        ];
        let name = |state: State| {
            let wait = state.deadline().map(|at| format!(" for {:?}", at - now));
            let words = format!("{state:?}");
            let name = words.split(' ').next().unwrap_or_default();
            format!("{name}{}", wait.unwrap_or_default())
        };
        let mut table = String::new();
        for state in states {
            for (words, event) in events {
                let (next, effect) = on_event(state, event, now);
                let effect = effect.map(|it| format!(", then {it:?}")).unwrap_or_default();
                writeln!(table, "{} + {words} -> {}{effect}", name(state), name(next)).unwrap();
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_server_with_a_stdin_gets_it_closed_then_term_then_kill() {
        let effects = play(&[(Duration::ZERO, ask(5 * SECOND, Stdin::Pipe))]);
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
    fn what_a_dead_leader_left_behind_is_killed_at_once_unless_its_end_was_asked_for() {
        let unasked = play(&[(SECOND, Event::LeaderDied)]);
        assert_eq!(unasked, [(SECOND, Effect::Kill), (6 * SECOND, Effect::GiveUp)]);

        let asked =
            play(&[(Duration::ZERO, ask(5 * SECOND, Stdin::Empty)), (SECOND, Event::LeaderDied)]);
        assert_eq!(asked[1], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn a_long_grace_does_not_mean_a_long_wait_for_a_closed_stdin() {
        let effects = play(&[(Duration::ZERO, ask(60 * SECOND, Stdin::Pipe))]);
        assert_eq!(effects[1], (2 * SECOND, Effect::Terminate));
        assert_eq!(effects[2], (60 * SECOND, Effect::Kill));
    }

    #[test]
    fn a_server_without_a_stdin_is_terminated_at_once() {
        let effects = play(&[(Duration::ZERO, ask(5 * SECOND, Stdin::Empty))]);
        assert_eq!(effects[0], (Duration::ZERO, Effect::Terminate));
        assert_eq!(effects[1], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn no_grace_at_all_goes_through_the_same_steps_without_waiting() {
        let effects = play(&[(Duration::ZERO, ask(Duration::ZERO, Stdin::Pipe))]);
        let at_once = [Effect::CloseStdin, Effect::Terminate, Effect::Kill];
        assert_eq!(effects[..3], at_once.map(|effect| (Duration::ZERO, effect)));
    }

    #[test]
    fn a_second_stop_shortens_the_grace_and_never_lengthens_it() {
        let shorter = play(&[
            (Duration::ZERO, ask(60 * SECOND, Stdin::Pipe)),
            (SECOND, ask(5 * SECOND, Stdin::Pipe)),
        ]);
        assert_eq!(shorter[2], (6 * SECOND, Effect::Kill));

        let longer = play(&[
            (Duration::ZERO, ask(5 * SECOND, Stdin::Pipe)),
            (3 * SECOND, ask(60 * SECOND, Stdin::Pipe)),
        ]);
        assert_eq!(longer[2], (5 * SECOND, Effect::Kill));
    }

    #[test]
    fn a_stop_without_end_is_not_too_long_to_count() {
        let (state, _) = on_event(
            State::NotAsked,
            ask(Duration::from_millis(u64::MAX), Stdin::Pipe),
            crate::clock::now(),
        );
        assert_ne!(state, State::NotAsked);
    }

    proptest! {
        #[test]
        fn every_stop_kills_within_its_shortest_grace(
            asks in proptest::collection::vec((0..20_u64, 0..20_u64, any::<bool>()), 1..5)
        ) {
            let mut asks = asks;
            asks.sort_unstable();
            let events: Vec<_> = asks.iter().map(|(at, grace, stdin)| {
                let stdin = if *stdin { Stdin::Pipe } else { Stdin::Empty };
                (*at * 1000, ask(Duration::from_millis(*grace * 1000), stdin))
            }).map(|(at, event)| (Duration::from_millis(at), event)).collect();

            let killed_at = play(&events).iter().find(|it| it.1 == Effect::Kill).unwrap().0;
            let latest = asks.iter().map(|(at, grace, _)| Duration::from_secs(at + grace)).min();
            prop_assert_eq!(Some(killed_at), latest);
        }
    }
}
