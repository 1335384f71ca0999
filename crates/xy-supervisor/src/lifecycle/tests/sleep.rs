//! Servers that sleep while they are idle: single rules, then random histories.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use xy_config::settings::Start;

use super::*;

/// A sleeping server with a clock and its current life.
struct Sleeper {
    life: Life,
    rules: Rules,
    now: Instant,
    lives: bool,
    launches: u32,
}

impl Sleeper {
    fn new(rules: Rules) -> Self {
        let life = Life::sleeping(Wanted::Up);
        Self { life, rules, now: any_instant(), lives: false, launches: 0 }
    }

    fn lazy(change: impl FnOnce(&mut Rules)) -> Self {
        Self::new(rules(|it| {
            it.start = Start::Lazy;
            it.restart.jitter = false;
            change(it);
        }))
    }

    fn apply(&mut self, event: Event) -> Option<Effect> {
        if matches!(event, Event::Exited(_)) {
            self.lives = false;
        }
        let context = Context { now: self.now, random: 0, is_remote: false };
        let (life, effect) = on_event(self.life.clone(), event, &self.rules, context);
        self.life = life;
        if effect == Some(Effect::Launch) {
            assert!(!self.lives, "only one life at a time");
            assert_eq!(self.life.wanted, Wanted::Up, "no launch while wanted down");
            self.lives = true;
            self.launches += 1;
        }
        assert_eq!(self.life.state.is_live(), self.lives, "{:?}", self.life);
        effect
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(deadline) = self.life.state.deadline().filter(|&at| at <= until) {
            self.now = deadline;
            self.apply(Event::DeadlineReached);
        }
        self.now = until;
    }

    fn wire_state(&self) -> ServerState {
        self.life.state.on_wire()
    }

    fn idle(&mut self) -> Option<Effect> {
        self.apply(Event::Idle("not used".into()))
    }
}

#[test]
fn lazy_server_runs_from_first_use_until_idle() {
    let mut lazy = Sleeper::lazy(|_| {});
    for launches in 1..4 {
        lazy.wait(Duration::from_hours(1));
        assert_eq!(lazy.wire_state(), ServerState::Asleep, "it is idle");
        assert_eq!(lazy.apply(Event::WakeRequested), Some(Effect::Launch));
        assert_eq!(lazy.apply(Event::WakeRequested), None, "one start serves all");
        lazy.apply(Event::Ready);
        assert_eq!(lazy.wire_state(), ServerState::Running);
        assert_eq!(lazy.idle(), Some(Effect::Stop));
        lazy.apply(clean_exit());
        assert_eq!(lazy.launches, launches);
    }
    assert_eq!(lazy.life.tally, Tally::default(), "idle stops are not counted");
}

#[test]
fn use_during_stop_starts_exactly_one_life() {
    let mut lazy = Sleeper::lazy(|_| {});
    lazy.apply(Event::WakeRequested);
    lazy.apply(Event::Ready);
    lazy.idle();
    assert_eq!(lazy.apply(Event::WakeRequested), None);
    assert_eq!(lazy.apply(Event::WakeRequested), None);
    assert_eq!(lazy.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!((lazy.wire_state(), lazy.launches), (ServerState::Starting, 2));
}

#[test]
fn crashed_lazy_server_restarts_on_use_after_delay() {
    let mut lazy = Sleeper::lazy(|_| {});
    lazy.apply(Event::WakeRequested);
    lazy.apply(Event::Ready);
    lazy.apply(crash());
    lazy.wait(Duration::from_hours(1));
    assert_eq!((lazy.wire_state(), lazy.launches), (ServerState::Asleep, 1));
    lazy.apply(Event::WakeRequested);
    lazy.apply(Event::Ready);
    lazy.apply(crash());
    lazy.apply(Event::WakeRequested);
    assert_eq!(lazy.wire_state(), ServerState::Restarting);
    lazy.wait(Duration::from_millis(999));
    assert_eq!(lazy.launches, 2);
    lazy.wait(Duration::from_millis(1));
    assert_eq!((lazy.wire_state(), lazy.launches), (ServerState::Starting, 3));
}

#[test]
fn server_that_crashes_on_every_call_is_given_up() {
    let mut lazy = Sleeper::lazy(|it| it.restart.max_retries_per_minute = 3);
    for _ in 0..4 {
        lazy.apply(Event::WakeRequested);
        lazy.wait(Duration::from_secs(5));
        lazy.apply(Event::Ready);
        lazy.apply(crash());
    }
    assert_eq!(lazy.wire_state(), ServerState::Failed);
    lazy.apply(Event::WakeRequested);
    assert_eq!(lazy.wire_state(), ServerState::Failed, "a call does not start it");
    lazy.apply(Event::StartRequested);
    assert_eq!(lazy.wire_state(), ServerState::Starting, "an operator does");
}

#[test]
fn stopped_server_is_not_woken() {
    let mut lazy = Sleeper::lazy(|_| {});
    lazy.apply(Event::StopRequested);
    assert_eq!(lazy.wire_state(), ServerState::Stopped);
    lazy.apply(Event::WakeRequested);
    assert_eq!((lazy.wire_state(), lazy.launches), (ServerState::Stopped, 0));
    lazy.apply(Event::StartRequested);
    lazy.apply(Event::Ready);
    lazy.idle();
    lazy.apply(Event::StopRequested);
    lazy.apply(Event::WakeRequested);
    lazy.apply(clean_exit());
    assert_eq!((lazy.wire_state(), lazy.launches), (ServerState::Stopped, 1));
}

fn any_event() -> impl Strategy<Value = Option<Event>> {
    select(vec![
        None,
        Some(Event::WakeRequested),
        Some(Event::Idle("not used".into())),
        Some(Event::Ready),
        Some(clean_exit()),
        Some(crash()),
        Some(Event::StartRequested),
        Some(Event::StopRequested),
        Some(Event::RestartRequested),
        Some(Event::ProcessChanged),
        Some(Event::RulesChanged),
        Some(Event::Unhealthy("no answer".into())),
    ])
}

proptest! {
    /// `None` lets time pass.
    #[test]
    fn sleeping_server_starts_only_on_use_and_always_then(
        history in vec(any_event(), 0..60),
        is_lazy: bool,
    ) {
        let mut rules = rules(|it| it.idle_stop = Some(Duration::from_secs(9)));
        rules.start = if is_lazy { Start::Lazy } else { Start::Eager };
        rules.restart.max_attempts = 0;
        rules.restart.max_retries_per_minute = 0;
        let mut one = Sleeper::new(rules);
        for event in history {
            let (before, launches) = (one.life.clone(), one.launches);
            match event.clone() {
                None => one.wait(Duration::from_secs(3)),
                Some(Event::Exited(_) | Event::Ready | Event::Idle(_)) if !one.lives => {}
                Some(event) => drop(one.apply(event)),
            }
            let by_itself =
                matches!(event, None | Some(Event::Ready | Event::Idle(_) | Event::Unhealthy(_)));
            if matches!(before.state, State::Asleep { .. }) && by_itself {
                prop_assert_eq!(one.launches, launches, "a sleeping server is left alone");
            }
            if matches!(one.life.state, State::Asleep { .. }) {
                prop_assert_eq!(one.life.wanted, Wanted::Up);
            }
        }
        // A use now leads to a running server, unless it is wanted down.
        let is_down = one.life.wanted == Wanted::Down
            || matches!(one.life.state, State::Stopped | State::Failed);
        one.apply(Event::WakeRequested);
        if one.life.state.is_live() && !matches!(one.life.state, State::Running { .. }) {
            one.apply(clean_exit());
            one.apply(Event::WakeRequested);
        }
        one.wait(Duration::from_secs(60));
        one.apply(Event::WakeRequested);
        let is_there = one.life.state.is_live() || one.life.state == State::Stopped && !is_lazy;
        prop_assert!(is_down || is_there, "{:?}", one.life);
    }
}
