//! Every rule of a life: the whole table under snapshot, then one short play per rule.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::Wanted;

use super::reason::{Exit, Reason};
use super::{
    AfterStop, Effect, Event, Life, Moment, SHORT_LIFE, SHORT_LIFE_DELAY, STOP_MARGIN, State,
    Tally, WINDOW, on_event,
};
use crate::fake::{SECOND, permanent_fault, steady, transient_fault};

const MILLI: Duration = Duration::from_millis(1);

const KILLED: Exit = Exit { signal: Some(9), ..Exit::UNSEEN };

fn crash() -> Event {
    Event::Exited(Exit::code(1))
}

fn clean_exit() -> Event {
    Event::Exited(Exit::code(0))
}

fn any_instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// `steady` rules, changed.
fn rules(change: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = steady();
    change(&mut rules);
    rules
}

/// Tries for ever, so that only the delays matter.
fn tireless(change: impl FnOnce(&mut Rules)) -> Rules {
    rules(|it| {
        it.restart.max_attempts = 0;
        it.restart.max_retries_per_minute = 0;
        change(it);
    })
}

/// One server on a stage: what happens to it, and when.
struct Play {
    rules: Rules,
    life: Life,
    now: Instant,
    chance: u8,
}

impl Play {
    /// Nothing has happened yet.
    fn new(rules: Rules) -> Self {
        Self { rules, life: Life::new(Wanted::Down), now: any_instant(), chance: 0 }
    }

    /// It has been started and is not ready yet.
    fn starting(rules: Rules) -> Self {
        let mut play = Self::new(rules);
        assert_eq!(play.sees(Event::StartRequested), Some(Effect::Launch));
        play
    }

    /// It has been started and is ready.
    fn running(rules: Rules) -> Self {
        let mut play = Self::starting(rules);
        play.sees(Event::Ready);
        play
    }

    /// It has crashed and waits for its next life.
    fn in_backoff(rules: Rules) -> Self {
        let mut play = Self::running(rules);
        play.sees(crash());
        assert!(matches!(play.life.state, State::Backoff { .. }));
        play
    }

    /// It has been given up.
    fn failed() -> Self {
        let mut play = Self::starting(steady());
        play.sees(Event::LaunchFailed(permanent_fault()));
        assert_eq!(play.life.state, State::Failed);
        play
    }

    fn sees(&mut self, event: Event) -> Option<Effect> {
        let moment = Moment { now: self.now, chance: self.chance };
        let (life, effect) = on_event(self.life.clone(), event, &self.rules, moment);
        self.life = life;
        effect
    }

    fn waits(&mut self, time: Duration) {
        self.now += time;
    }

    /// Waits for what the state waits for; answers how long that took.
    fn waits_for_deadline(&mut self) -> (Duration, Option<Effect>) {
        let deadline = self.life.state.deadline().expect("the state waits for something");
        let waited = deadline - self.now;
        self.now = deadline;
        (waited, self.sees(Event::DeadlineReached))
    }

    /// Becomes ready, lives for a while, crashes.
    fn lives_for(&mut self, time: Duration) {
        self.sees(Event::Ready);
        self.waits(time);
        self.sees(crash());
    }

    /// Lives for a while and crashes, again and again; answers the delays in between.
    fn delays_between_lives_of(&mut self, life: Duration, times: usize) -> Vec<Duration> {
        let mut delays = Vec::new();
        for _ in 0..times {
            self.lives_for(life);
            let (waited, effect) = self.waits_for_deadline();
            assert_eq!(effect, Some(Effect::Launch));
            delays.push(waited);
        }
        delays
    }

    fn says(&self) -> String {
        self.life.reason.to_string()
    }
}

fn almost(time: Duration) -> Duration {
    time.checked_sub(MILLI).unwrap()
}

fn seconds(delays: &[Duration]) -> Vec<f64> {
    delays.iter().map(Duration::as_secs_f64).collect()
}

mod table {
    //! What every event means in every state, as a text whose changes are reviewed.

    use super::*;

    /// The rows are about this moment; instants are shown in seconds from the origin.
    const NOW: Duration = Duration::from_secs(100);

    struct Row {
        name: &'static str,
        life: Life,
    }

    /// A few restarts have been, and none of the limits is near.
    fn some_tally(origin: Instant) -> Tally {
        let recent_exits = [origin + Duration::from_secs(90)].into();
        Tally { restart_count: 3, restarts_total: 7, in_a_row: 2, recent_exits }
    }

    /// Those in which one more failure may be one too many.
    fn exhausted_rows(origin: Instant) -> Vec<Row> {
        let at = |seconds| origin + Duration::from_secs(seconds);
        let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
        let running = State::Running { launched_at: at(95), ready_at: at(96) };
        let stable = State::Running { launched_at: at(5), ready_at: at(40) };
        let never_ready =
            State::Stopping { overdue_at: Some(at(110)), then: AfterStop::CountFailure };
        let last_attempt = Tally { in_a_row: 5, ..some_tally(origin) };
        let no_exit_left = Tally { recent_exits: [at(90); 5].into(), ..some_tally(origin) };
        let one_attempt_left = Tally { in_a_row: 4, ..some_tally(origin) };
        let one_exit_left = Tally { recent_exits: [at(90); 4].into(), ..some_tally(origin) };
        let slid_out = Tally { recent_exits: [at(40); 5].into(), ..some_tally(origin) };
        let row = |name, state, tally: &Tally| {
            let (wanted, reason) = (Wanted::Up, Reason::NotStarted);
            Row { name, life: Life { state, wanted, tally: tally.clone(), reason } }
        };
        vec![
            row("starting, last attempt", starting, &last_attempt),
            row("running, last attempt", running, &last_attempt),
            row("stable, last attempt", stable, &last_attempt),
            row("never ready, last attempt", never_ready, &last_attempt),
            row("starting, no exit left", starting, &no_exit_left),
            row("running, no exit left", running, &no_exit_left),
            row("stable, no exit left", stable, &no_exit_left),
            row("never ready, no exit left", never_ready, &no_exit_left),
            row("running, one attempt left", running, &one_attempt_left),
            row("running, one exit left", running, &one_exit_left),
            row("running, exits slid out", running, &slid_out),
        ]
    }

    /// All states, each with what matters to it besides.
    fn rows(origin: Instant) -> Vec<Row> {
        let at = |seconds| origin + Duration::from_secs(seconds);
        let row = |name, state, wanted| {
            let tally = some_tally(origin);
            let life = Life { state, wanted, tally, reason: Reason::NotStarted };
            Row { name, life }
        };
        let running = |ready| State::Running { launched_at: at(5), ready_at: at(ready) };
        let stopping = |then| State::Stopping { overdue_at: Some(at(110)), then };
        let overdue = |then| State::Stopping { overdue_at: None, then };
        let starting = State::Starting { launched_at: at(95), ready_by: at(105) };
        vec![
            row("stopped (up)", State::Stopped, Wanted::Up),
            row("stopped (down)", State::Stopped, Wanted::Down),
            row("starting", starting, Wanted::Up),
            row("running", running(99), Wanted::Up),
            row("running, stable", running(40), Wanted::Up),
            row("backoff", State::Backoff { retry_at: at(104) }, Wanted::Up),
            row("stopping, stay down", stopping(AfterStop::StayDown), Wanted::Down),
            row("stopping, start again", stopping(AfterStop::StartAgain), Wanted::Up),
            row("stopping, count failure", stopping(AfterStop::CountFailure), Wanted::Up),
            row("stopping, retire", stopping(AfterStop::Retire), Wanted::Up),
            row("overdue, stay down", overdue(AfterStop::StayDown), Wanted::Down),
            row("overdue, start again", overdue(AfterStop::StartAgain), Wanted::Up),
            row("overdue, count failure", overdue(AfterStop::CountFailure), Wanted::Up),
            row("overdue, retire", overdue(AfterStop::Retire), Wanted::Up),
            row("failed (up)", State::Failed, Wanted::Up),
            row("failed (down)", State::Failed, Wanted::Down),
            row("retired", State::Retired, Wanted::Up),
        ]
    }

    fn events() -> Vec<(&'static str, Event)> {
        vec![
            ("StartRequested", Event::StartRequested),
            ("StopRequested", Event::StopRequested),
            ("RestartRequested", Event::RestartRequested),
            ("RetireRequested", Event::RetireRequested),
            ("ProcessChanged", Event::ProcessChanged),
            ("RulesChanged", Event::RulesChanged),
            ("LaunchFailed for good", Event::LaunchFailed(permanent_fault())),
            ("LaunchFailed for now", Event::LaunchFailed(transient_fault())),
            ("Ready", Event::Ready),
            ("Exited 0", clean_exit()),
            ("Exited 1", crash()),
            ("Exited SIGKILL", Event::Exited(KILLED)),
            ("Torn", Event::Torn),
            ("DeadlineReached", Event::DeadlineReached),
        ]
    }

    fn shown(state: State, origin: Instant) -> String {
        let at = |instant: Instant| format!("@{}", (instant - origin).as_secs_f64());
        match state {
            State::Stopped => "stopped".into(),
            State::Starting { ready_by, .. } => format!("starting, ready by {}", at(ready_by)),
            State::Running { ready_at, .. } => format!("running since {}", at(ready_at)),
            State::Backoff { retry_at } => format!("backoff until {}", at(retry_at)),
            State::Stopping { overdue_at: Some(overdue_at), then } => {
                format!("stopping until {}, {then:?}", at(overdue_at))
            }
            State::Stopping { overdue_at: None, then } => format!("overdue, {then:?}"),
            State::Failed => "failed".into(),
            State::Retired => "retired".into(),
        }
    }

    /// What is different after an event, or nothing.
    fn outcome(before: &Life, after: &Life, effect: Option<Effect>, origin: Instant) -> String {
        let mut text = String::new();
        if after.state != before.state || after.reason != before.reason {
            let _ = write!(text, "{:<34}", shown(after.state, origin));
            let effect = effect.map_or(String::new(), |effect| format!("then {effect:?}"));
            let _ = write!(text, " {effect:<11} | {}", after.reason);
        } else {
            assert_eq!(effect, None, "nothing is done without a reason");
            if after != before {
                text.push_str("same");
            }
        }
        if after.wanted != before.wanted {
            let _ = write!(text, " | wanted {:?}", after.wanted);
        }
        if after.tally != before.tally {
            let Tally { restart_count, restarts_total, in_a_row, recent_exits } = &after.tally;
            let exits = recent_exits.len();
            let _ = write!(
                text,
                " | count {restart_count}, total {restarts_total}, row {in_a_row}, exits {exits}"
            );
        }
        text
    }

    fn table(
        rows: fn(Instant) -> Vec<Row>,
        policy: RestartPolicy,
        is_shown: impl Fn(&Row, &Event) -> bool,
    ) -> String {
        let origin = any_instant();
        let rules = rules(|it| it.restart.policy = policy);
        let moment = Moment { now: origin + NOW, chance: 255 };
        let mut text = String::new();
        for row in rows(origin) {
            let mut same = Vec::new();
            for (event_name, event) in events() {
                if !is_shown(&row, &event) {
                    continue;
                }
                let (after, effect) = on_event(row.life.clone(), event, &rules, moment);
                match outcome(&row.life, &after, effect, origin) {
                    told if told.is_empty() => same.push(event_name),
                    told => {
                        let _ = writeln!(text, "{:<26} + {event_name:<21} -> {told}", row.name);
                    }
                }
            }
            if !same.is_empty() {
                let _ = writeln!(text, "{:<26} + {} -> same", row.name, same.join(", "));
            }
        }
        text
    }

    /// Policies differ only in what they make of an end that nobody asked for.
    fn policy_matters(row: &Row, event: &Event) -> bool {
        let can_end = match row.life.state {
            State::Starting { .. } | State::Running { .. } => true,
            State::Stopping { then, .. } => then == AfterStop::CountFailure,
            _ => false,
        };
        can_end && matches!(event, Event::Exited(_) | Event::LaunchFailed(_))
    }

    #[test]
    fn the_whole_table() {
        insta::assert_snapshot!(table(rows, RestartPolicy::OnFailure, |_, _| true));
    }

    #[test]
    fn the_rows_that_always_has_of_its_own() {
        insta::assert_snapshot!(table(rows, RestartPolicy::Always, policy_matters));
    }

    #[test]
    fn the_rows_that_never_has_of_its_own() {
        insta::assert_snapshot!(table(rows, RestartPolicy::Never, policy_matters));
    }

    #[test]
    fn the_rows_in_which_a_limit_is_near() {
        insta::assert_snapshot!(table(exhausted_rows, RestartPolicy::OnFailure, policy_matters));
    }

    #[test]
    fn all_other_rows_are_the_same_under_every_policy() {
        let rest = |policy| table(rows, policy, |row, event| !policy_matters(row, event));
        assert_eq!(rest(RestartPolicy::OnFailure), rest(RestartPolicy::Always));
        assert_eq!(rest(RestartPolicy::OnFailure), rest(RestartPolicy::Never));
    }
}

mod delays {
    //! How long to wait before the next life.

    use super::*;

    #[test]
    fn the_delay_doubles_up_to_the_maximum() {
        let mut play = Play::starting(tireless(|_| {}));
        let delays = play.delays_between_lives_of(SECOND, 8);
        assert_eq!(seconds(&delays), [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]);
    }

    #[test]
    fn after_very_many_tries_the_delay_is_still_the_maximum() {
        let mut play = Play::starting(tireless(|_| {}));
        let delays = play.delays_between_lives_of(SECOND, 100);
        assert_eq!(delays.last(), Some(&(30 * SECOND)));
    }

    #[test]
    fn a_first_delay_over_the_maximum_is_the_maximum() {
        let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = 60 * SECOND));
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 2)), [30.0, 30.0]);
    }

    #[test]
    fn jitter_adds_at_most_a_quarter_and_never_goes_over_the_maximum() {
        let jittery = tireless(|it| it.restart.jitter = true);
        let mut most = Play::starting(jittery.clone());
        most.chance = 255;
        let delays = most.delays_between_lives_of(SECOND, 7);
        assert_eq!(seconds(&delays), [1.25, 2.5, 5.0, 10.0, 20.0, 30.0, 30.0]);

        let mut least = Play::starting(jittery);
        assert_eq!(seconds(&least.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
    }

    #[test]
    fn more_chance_never_means_less_delay() {
        let delays: Vec<_> = (0..=255)
            .map(|chance| {
                let mut play = Play::starting(tireless(|it| it.restart.jitter = true));
                play.chance = chance;
                play.delays_between_lives_of(SECOND, 1)[0]
            })
            .collect();
        assert!(delays.is_sorted());
        assert!(delays[128] > delays[0] && delays[255] > delays[128]);
    }

    #[test]
    fn without_jitter_chance_decides_nothing() {
        let mut play = Play::starting(tireless(|_| {}));
        play.chance = 255;
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 2)), [1.0, 2.0]);
    }

    #[test]
    fn without_back_off_the_successor_of_a_long_life_starts_at_once() {
        let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
        assert_eq!(play.delays_between_lives_of(SHORT_LIFE, 3), [Duration::ZERO; 3]);
    }

    #[test]
    fn without_back_off_the_successor_of_a_short_life_waits_a_moment() {
        let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
        let delays = play.delays_between_lives_of(almost(SHORT_LIFE), 3);
        assert_eq!(delays, [SHORT_LIFE_DELAY; 3]);
    }

    #[test]
    fn a_life_counts_from_its_launch_not_from_its_readiness() {
        let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
        play.waits(almost(SHORT_LIFE));
        play.lives_for(MILLI);
        assert_eq!(play.waits_for_deadline().0, Duration::ZERO);
    }

    #[test]
    fn enough_ready_uptime_makes_the_delay_short_again() {
        let mut play = Play::starting(tireless(|_| {}));
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
        assert_eq!(seconds(&play.delays_between_lives_of(60 * SECOND, 1)), [1.0]);
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 1)), [2.0]);
    }

    #[test]
    fn almost_enough_ready_uptime_does_not() {
        let mut play = Play::starting(tireless(|_| {}));
        assert_eq!(seconds(&play.delays_between_lives_of(almost(60 * SECOND), 2)), [1.0, 2.0]);
    }

    #[test]
    fn time_before_readiness_is_no_ready_uptime() {
        let mut play = Play::starting(tireless(|it| it.ready.within = 100 * SECOND));
        play.delays_between_lives_of(SECOND, 2);
        play.waits(90 * SECOND);
        assert_eq!(seconds(&play.delays_between_lives_of(59 * SECOND, 1)), [4.0]);
    }
}

mod limits {
    //! When to give up.

    use super::*;

    fn at_most_exits(limit: u32) -> Rules {
        rules(|it| {
            it.restart.max_retries_per_minute = limit;
            it.restart.max_attempts = 0;
            it.restart.backoff_initial = Duration::ZERO;
        })
    }

    fn at_most_attempts(limit: u32) -> Rules {
        rules(|it| {
            it.restart.max_retries_per_minute = 0;
            it.restart.max_attempts = limit;
        })
    }

    #[test]
    fn one_exit_more_than_the_limit_within_a_minute_is_too_many() {
        let mut play = Play::starting(at_most_exits(3));
        play.delays_between_lives_of(SECOND, 3);
        play.lives_for(SECOND);
        assert_eq!(play.life.state, State::Failed);
        insta::assert_snapshot!(play.says(), @"exited with code 1; 4 unexpected exits within 60 s (max-retries-per-minute is 3)");
    }

    #[test]
    fn exits_slide_out_of_the_window() {
        let mut play = Play::starting(at_most_exits(3));
        // Exits at 20 s, 40 s, 60 s, 80 s …: never more than three within 60 s.
        let delays = play.delays_between_lives_of(20 * SECOND, 10);
        assert_eq!(delays, [Duration::ZERO; 10]);
    }

    #[test]
    fn an_exit_exactly_a_window_ago_no_longer_counts() {
        let mut play = Play::starting(at_most_exits(1));
        play.delays_between_lives_of(WINDOW, 3);
        play.lives_for(almost(WINDOW));
        assert_eq!(play.life.state, State::Failed);
    }

    #[test]
    fn the_window_is_judged_at_the_exit_not_at_the_restart() {
        let mut play = Play::starting(rules(|it| {
            it.restart.max_retries_per_minute = 1;
            it.restart.backoff_initial = 30 * SECOND;
        }));
        play.delays_between_lives_of(31 * SECOND, 1);
        // The exit is 59 s after the one before; that its successor would have to wait is no help.
        play.lives_for(29 * SECOND);
        assert_eq!(play.life.state, State::Failed);
    }

    #[test]
    fn without_a_limit_any_number_of_exits_is_fine() {
        let mut play = Play::starting(at_most_exits(0));
        play.delays_between_lives_of(MILLI, 500);
        assert!(play.life.tally.recent_exits.len() <= 1, "nothing is kept for no use");
    }

    #[test]
    fn what_is_remembered_of_exits_is_bounded_by_the_limit() {
        let mut play = Play::starting(at_most_exits(4));
        for _ in 0..50 {
            play.lives_for(15 * SECOND);
            assert!(play.life.tally.recent_exits.len() <= 5);
            play.waits_for_deadline();
        }
    }

    #[test]
    fn after_so_many_restarts_in_a_row_it_is_given_up() {
        let mut play = Play::starting(at_most_attempts(2));
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 2)), [1.0, 2.0]);
        play.lives_for(SECOND);
        assert_eq!(play.life.state, State::Failed);
        insta::assert_snapshot!(play.says(), @"exited with code 1; gave up after 2 restarts in a row (max-attempts)");
    }

    #[test]
    fn without_a_limit_any_number_of_restarts_is_fine() {
        Play::starting(at_most_attempts(0)).delays_between_lives_of(SECOND, 500);
    }

    #[test]
    fn enough_ready_uptime_gives_it_all_its_attempts_again() {
        let mut play = Play::starting(at_most_attempts(2));
        play.delays_between_lives_of(SECOND, 2);
        assert_eq!(seconds(&play.delays_between_lives_of(60 * SECOND, 1)), [1.0]);
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 1)), [2.0]);
        play.lives_for(SECOND);
        assert_eq!(play.life.state, State::Failed);
    }

    #[test]
    fn the_last_attempt_is_told() {
        let mut play = Play::starting(at_most_attempts(3));
        let mut told = Vec::new();
        for _ in 0..3 {
            play.delays_between_lives_of(SECOND, 1);
            told.push(play.says());
        }
        assert_eq!(told, ["attempt 1 of 3", "attempt 2 of 3", "last attempt (3 of 3)"]);
    }

    #[test]
    fn a_start_after_a_failure_begins_anew() {
        let mut play = Play::starting(at_most_attempts(1));
        play.delays_between_lives_of(SECOND, 1);
        play.lives_for(SECOND);
        assert_eq!(play.life.state, State::Failed);
        assert_eq!(play.sees(Event::StartRequested), Some(Effect::Launch));
        assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 1)), [1.0]);
    }

    #[test]
    fn an_end_that_was_asked_for_never_counts() {
        let mut play = Play::running(rules(|it| it.restart.max_retries_per_minute = 1));
        for _ in 0..10 {
            assert_eq!(play.sees(Event::RestartRequested), Some(Effect::Stop));
            assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
            play.sees(Event::Ready);
        }
        assert_eq!(play.life.tally, Tally::default());
    }
}

mod policies {
    //! What becomes of an end that nobody asked for.

    use super::*;

    fn after(policy: RestartPolicy, exit: Exit) -> Life {
        let mut play = Play::running(rules(|it| it.restart.policy = policy));
        play.waits(SECOND);
        assert_eq!(play.sees(Event::Exited(exit)), None);
        play.life
    }

    #[test]
    fn always_restarts_whatever_the_exit() {
        for exit in [Exit::code(0), Exit::code(1), KILLED, Exit::UNSEEN] {
            let life = after(RestartPolicy::Always, exit);
            assert!(matches!(life.state, State::Backoff { .. }), "{exit}");
        }
    }

    #[test]
    fn on_failure_restarts_only_after_a_dirty_exit() {
        for exit in [Exit::code(1), KILLED, Exit::UNSEEN] {
            let life = after(RestartPolicy::OnFailure, exit);
            assert!(matches!(life.state, State::Backoff { .. }), "{exit}");
        }
        assert_eq!(after(RestartPolicy::OnFailure, Exit::code(0)).state, State::Stopped);
    }

    #[test]
    fn never_leaves_it_failed_or_stopped() {
        assert_eq!(after(RestartPolicy::Never, Exit::code(0)).state, State::Stopped);
        for exit in [Exit::code(1), KILLED, Exit::UNSEEN] {
            assert_eq!(after(RestartPolicy::Never, exit).state, State::Failed, "{exit}");
        }
    }

    #[test]
    fn a_server_that_ended_by_itself_is_still_wanted() {
        assert_eq!(after(RestartPolicy::OnFailure, Exit::code(0)).wanted, Wanted::Up);
    }

    #[test]
    fn a_program_that_cannot_be_started_at_all_fails_at_once() {
        for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
            let mut play = Play::starting(rules(|it| it.restart.policy = policy));
            play.sees(Event::LaunchFailed(permanent_fault()));
            assert_eq!(play.life.state, State::Failed);
            assert_eq!(play.life.reason.hint(), Some("install it"));
        }
    }

    #[test]
    fn a_moment_without_memory_is_waited_out() {
        let mut play = Play::starting(steady());
        play.sees(Event::LaunchFailed(transient_fault()));
        assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
        play.sees(Event::LaunchFailed(transient_fault()));
        assert_eq!(play.waits_for_deadline(), (2 * SECOND, Some(Effect::Launch)));
    }

    #[test]
    fn moments_without_memory_count_against_the_limits() {
        let mut play = Play::starting(rules(|it| it.restart.max_attempts = 1));
        play.sees(Event::LaunchFailed(transient_fault()));
        play.waits_for_deadline();
        play.sees(Event::LaunchFailed(transient_fault()));
        assert_eq!(play.life.state, State::Failed);
        insta::assert_snapshot!(play.says(), @"out of memory; gave up after 1 restart (max-attempts)");
    }

    #[test]
    fn a_server_that_is_never_ready_is_stopped_and_counted() {
        let mut play = Play::starting(steady());
        assert_eq!(play.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
        assert_eq!(play.says(), "not ready within 10s");
        play.waits(SECOND);
        // That it then ended cleanly does not make it a success.
        assert_eq!(play.sees(clean_exit()), None);
        assert_eq!(play.says(), "not ready within 10s");
        assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
        assert_eq!(play.life.tally.restart_count, 1);
    }

    #[test]
    fn a_server_that_is_never_ready_is_given_up_in_the_end() {
        let mut play = Play::starting(rules(|it| it.restart.max_attempts = 1));
        play.waits_for_deadline();
        play.sees(clean_exit());
        play.waits_for_deadline();
        play.waits_for_deadline();
        play.sees(clean_exit());
        assert_eq!(play.life.state, State::Failed);
        insta::assert_snapshot!(play.says(), @"not ready within 10s; gave up after 1 restart (max-attempts)");
    }

    #[test]
    fn a_server_that_is_never_ready_fails_at_once_under_never() {
        let mut play = Play::starting(rules(|it| it.restart.policy = RestartPolicy::Never));
        play.waits_for_deadline();
        play.sees(clean_exit());
        assert_eq!(play.life.state, State::Failed);
    }
}

mod requests {
    //! What operators may ask, and when.

    use super::*;

    #[test]
    fn a_stop_works_in_every_state() {
        let stopped = |mut play: Play| {
            if play.sees(Event::StopRequested) == Some(Effect::Stop) {
                play.sees(Event::Exited(KILLED));
            } else if play.life.state.is_live() {
                play.sees(Event::Exited(KILLED)); // It was being stopped already.
            }
            assert_eq!((play.life.state, play.life.wanted), (State::Stopped, Wanted::Down));
            assert_eq!(play.life.state.deadline(), None);
        };
        stopped(Play::new(steady()));
        stopped(Play::starting(steady()));
        stopped(Play::running(steady()));
        stopped(Play::in_backoff(steady()));
        stopped(Play::failed());
        let mut restarting = Play::running(steady());
        restarting.sees(Event::RestartRequested);
        stopped(restarting);
        let mut never_ready = Play::starting(steady());
        never_ready.waits_for_deadline();
        stopped(never_ready);
    }

    #[test]
    fn what_an_operator_stopped_is_left_alone() {
        let mut play = Play::running(rules(|it| it.restart.policy = RestartPolicy::Always));
        play.sees(Event::StopRequested);
        play.sees(crash());
        for event in [Event::Ready, crash(), Event::DeadlineReached, Event::RulesChanged] {
            assert_eq!(play.sees(event), None);
            assert_eq!(play.life.state, State::Stopped);
        }
    }

    #[test]
    fn a_stop_that_takes_too_long_is_forced_once() {
        let mut play = Play::running(steady());
        play.sees(Event::StopRequested);
        let grace = play.rules.stop.grace;
        assert_eq!(play.waits_for_deadline(), (grace + STOP_MARGIN, Some(Effect::Kill)));
        assert_eq!(play.life.state.deadline(), None, "there is nothing stronger to wait for");
        play.sees(Event::Exited(KILLED));
        assert_eq!(
            (play.life.state, play.says().as_str()),
            (State::Stopped, "stopped as requested")
        );
    }

    #[test]
    fn a_forced_end_does_not_forget_what_comes_after_it() {
        let mut play = Play::running(steady());
        play.sees(Event::RestartRequested);
        assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
        assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
    }

    #[test]
    fn a_second_stop_does_not_give_it_more_time() {
        let mut play = Play::running(steady());
        play.sees(Event::StopRequested);
        play.waits(5 * SECOND);
        assert_eq!(play.sees(Event::StopRequested), None);
        assert_eq!(play.waits_for_deadline(), (15 * SECOND, Some(Effect::Kill)));
    }

    #[test]
    fn a_restart_is_one_thing() {
        let mut play = Play::running(steady());
        assert_eq!(play.sees(Event::RestartRequested), Some(Effect::Stop));
        assert_eq!(play.life.wanted, Wanted::Up);
        assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
        assert_eq!(play.says(), "restart requested");
    }

    #[test]
    fn a_restart_starts_what_is_down() {
        for mut play in [Play::new(steady()), Play::in_backoff(steady()), Play::failed()] {
            assert_eq!(play.sees(Event::RestartRequested), Some(Effect::Launch));
            assert_eq!(play.life.wanted, Wanted::Up);
        }
    }

    #[test]
    fn a_start_while_stopping_is_done_after_the_stop() {
        let mut play = Play::running(steady());
        play.sees(Event::StopRequested);
        assert_eq!(play.sees(Event::StartRequested), None, "nothing starts beside the old life");
        assert_eq!(play.life.wanted, Wanted::Up);
        assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
    }

    #[test]
    fn a_start_does_not_wait_for_the_back_off() {
        let mut play = Play::in_backoff(steady());
        assert_eq!(play.sees(Event::StartRequested), Some(Effect::Launch));
    }

    #[test]
    fn a_start_of_what_is_up_changes_nothing() {
        for mut play in [Play::starting(steady()), Play::running(steady())] {
            let before = play.life.clone();
            assert_eq!(play.sees(Event::StartRequested), None);
            assert_eq!(play.life, before);
        }
    }

    #[test]
    fn news_of_readiness_comes_too_late_for_a_stop() {
        let mut play = Play::starting(steady());
        play.sees(Event::StopRequested);
        let before = play.life.clone();
        assert_eq!(play.sees(Event::Ready), None);
        assert_eq!(play.life, before);
    }

    #[test]
    fn retirement_is_final() {
        let retired = |mut play: Play| {
            if play.sees(Event::RetireRequested) == Some(Effect::Stop) {
                assert_eq!(play.sees(Event::StartRequested), None);
                assert_eq!(play.sees(Event::RestartRequested), None);
                assert_eq!(play.sees(Event::StopRequested), None);
                assert_eq!(play.sees(Event::ProcessChanged), None);
                assert_eq!(play.sees(crash()), None);
            }
            for event in [
                Event::StartRequested,
                Event::RestartRequested,
                Event::ProcessChanged,
                Event::RulesChanged,
                Event::DeadlineReached,
            ] {
                assert_eq!(play.sees(event), None);
                assert_eq!(play.life.state, State::Retired);
            }
        };
        retired(Play::new(steady()));
        retired(Play::starting(steady()));
        retired(Play::running(steady()));
        retired(Play::in_backoff(steady()));
        retired(Play::failed());
    }

    #[test]
    fn whatever_a_stop_was_for_retirement_takes_its_place() {
        for asked in [Event::StopRequested, Event::RestartRequested, Event::ProcessChanged] {
            let mut play = Play::running(steady());
            play.sees(asked);
            play.sees(Event::RetireRequested);
            assert_eq!(play.sees(clean_exit()), None);
            assert_eq!(play.life.state, State::Retired);
        }
    }

    #[test]
    fn a_successor_waits_for_its_predecessor_without_a_limit() {
        let mut play = Play::new(steady());
        play.life = Life::after_predecessor(Wanted::Up);
        assert_eq!(play.life.state.deadline(), None, "it is not ours to force");
        assert_eq!(play.sees(Event::Exited(Exit::UNSEEN)), Some(Effect::Launch));
    }

    #[test]
    fn a_successor_that_is_not_wanted_stays_down() {
        let mut play = Play::new(steady());
        play.life = Life::after_predecessor(Wanted::Down);
        assert_eq!(play.sees(Event::Exited(Exit::UNSEEN)), None);
        assert_eq!(play.life.state, State::Stopped);
    }
}

mod reloads {
    //! What a changed file means.

    use super::*;

    #[test]
    fn what_an_operator_stopped_stays_stopped() {
        for event in [Event::ProcessChanged, Event::RulesChanged] {
            let mut play = Play::running(steady());
            play.sees(Event::StopRequested);
            assert_eq!(play.sees(event.clone()), None);
            play.sees(clean_exit());
            assert_eq!(play.sees(event), None);
            assert_eq!(play.life.state, State::Stopped);
        }
    }

    #[test]
    fn any_change_of_the_file_clears_a_failure() {
        for event in [Event::ProcessChanged, Event::RulesChanged] {
            let mut play = Play::failed();
            assert_eq!(play.sees(event), Some(Effect::Launch));
            assert_eq!(play.says(), "its file has changed");
        }
    }

    #[test]
    fn another_process_replaces_the_living_one() {
        for mut play in [Play::starting(steady()), Play::running(steady())] {
            assert_eq!(play.sees(Event::ProcessChanged), Some(Effect::Stop));
            assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
            assert_eq!(play.says(), "its file has changed");
        }
    }

    #[test]
    fn another_process_does_not_wait_for_the_back_off_of_the_old_one() {
        assert_eq!(Play::in_backoff(steady()).sees(Event::ProcessChanged), Some(Effect::Launch));
    }

    #[test]
    fn another_process_starts_what_ended_by_itself() {
        let mut play = Play::running(steady());
        play.sees(clean_exit());
        assert_eq!(play.life.state, State::Stopped);
        assert_eq!(play.sees(Event::ProcessChanged), Some(Effect::Launch));
    }

    #[test]
    fn other_rules_leave_a_living_or_waiting_one_alone() {
        for mut play in
            [Play::starting(steady()), Play::running(steady()), Play::in_backoff(steady())]
        {
            let before = play.life.clone();
            assert_eq!(play.sees(Event::RulesChanged), None);
            assert_eq!(play.life, before);
        }
    }

    #[test]
    fn other_rules_judge_the_end_of_the_living_one() {
        let mut play = Play::running(steady());
        play.rules.restart.policy = RestartPolicy::Never;
        play.sees(Event::RulesChanged);
        play.sees(crash());
        assert_eq!(play.life.state, State::Failed);
    }

    #[test]
    fn another_process_while_the_old_one_is_ended_for_not_being_ready_is_started_at_once() {
        let mut play = Play::starting(steady());
        play.waits_for_deadline();
        assert_eq!(play.sees(Event::ProcessChanged), None);
        assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
        assert_eq!(play.life.tally, Tally::default());
    }
}

mod counts {
    //! What is counted, and for how long.

    use super::*;

    #[test]
    fn only_automatic_restarts_are_counted() {
        let mut play = Play::running(steady());
        play.sees(Event::RestartRequested);
        play.sees(clean_exit());
        play.sees(Event::ProcessChanged);
        play.sees(clean_exit());
        assert_eq!(play.life.tally, Tally::default());
        play.delays_between_lives_of(SECOND, 2);
        assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (2, 2));
    }

    #[test]
    fn an_operator_begins_a_new_count_but_never_a_new_total() {
        let mut play = Play::starting(steady());
        play.delays_between_lives_of(SECOND, 2);
        play.sees(Event::RestartRequested);
        play.sees(clean_exit());
        assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 2));
        play.delays_between_lives_of(SECOND, 1);
        play.sees(Event::StopRequested);
        play.sees(clean_exit());
        assert_eq!(play.life.tally.restart_count, 1, "a stop alone forgets nothing");
        play.sees(Event::StartRequested);
        assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 3));
    }

    #[test]
    fn the_count_goes_on_when_the_row_is_over() {
        let mut play = Play::starting(steady());
        play.delays_between_lives_of(60 * SECOND, 3);
        assert_eq!(play.life.tally.restart_count, 3);
        assert_eq!(play.life.tally.in_a_row, 1);
    }
}

#[test]
fn every_reason_in_words() {
    let crashed = || Box::new(Reason::Exited(Exit::code(1)));
    let not_found = || Box::new(Reason::LaunchFailed(permanent_fault()));
    let signal = |number| Reason::Exited(Exit { signal: Some(number), ..Exit::UNSEEN });
    let reasons = [
        Reason::NotStarted,
        Reason::Predecessor,
        Reason::StartRequested,
        Reason::StopRequested,
        Reason::RestartRequested,
        Reason::RetireRequested,
        Reason::Adopted,
        Reason::Torn,
        Reason::SettingsChanged,
        Reason::Ready,
        Reason::StopDone,
        Reason::StopOverdue,
        Reason::LaunchFailed(permanent_fault()),
        Reason::LaunchFailed(transient_fault()),
        Reason::NeverReady { within: 10 * SECOND },
        Reason::NeverReady { within: 1500 * MILLI },
        Reason::Exited(Exit::code(0)),
        Reason::Exited(Exit::code(127)),
        signal(9),
        signal(15),
        signal(64),
        Reason::Exited(Exit::UNSEEN),
        Reason::Retry { attempt: 2, of: 0 },
        Reason::Retry { attempt: 2, of: 5 },
        Reason::Retry { attempt: 5, of: 5 },
        Reason::TooManyExits { exits: 6, limit: 5, last: crashed() },
        Reason::TooManyAttempts { attempts: 5, last: crashed() },
        Reason::TooManyAttempts { attempts: 5, last: not_found() },
    ];
    let told: Vec<_> = reasons
        .iter()
        .map(|reason| match reason.hint() {
            Some(hint) => format!("{reason} (hint: {hint})"),
            None => reason.to_string(),
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"), @"
    not started yet
    waiting for the end of its predecessor
    start requested
    stop requested
    restart requested
    removed, or the daemon is ending
    taken over from an earlier daemon
    its daemon was killed in the middle of a message to it
    its file has changed
    ready
    stopped as requested
    the stop took too long and is being forced
    program `x` is not on PATH (hint: install it)
    out of memory
    not ready within 10s
    not ready within 1.5s
    exited with code 0
    exited with code 127
    killed by signal 9 (SIGKILL)
    killed by signal 15 (SIGTERM)
    killed by signal 64
    ended, nobody saw how
    attempt 2
    attempt 2 of 5
    last attempt (5 of 5)
    exited with code 1; 6 unexpected exits within 60 s (max-retries-per-minute is 5)
    exited with code 1; gave up after 5 restarts in a row (max-attempts)
    program `x` is not on PATH; gave up after 5 restarts in a row (max-attempts) (hint: install it)
    ");
}

// What a daemon that was killed has spoilt.

#[test]
fn a_torn_server_is_started_anew_and_nothing_is_counted() {
    let mut play = Play::running(steady());
    play.lives_for(2 * SECOND);
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Launch));
    play.sees(Event::Ready);
    let before = play.life.tally.clone();
    assert_eq!(play.sees(Event::Torn), Some(Effect::Stop));
    assert_eq!(play.sees(crash()), Some(Effect::Launch));
    assert_eq!(play.life.tally, before);
    assert_eq!(play.life.reason, Reason::Torn);
}

#[test]
fn a_torn_server_that_somebody_stops_stays_stopped() {
    let mut play = Play::running(steady());
    play.sees(Event::Torn);
    play.sees(Event::StopRequested);
    assert_eq!(play.sees(crash()), None);
    assert_eq!(play.life.state, State::Stopped);
}
