//! The whole transition table as a snapshot, then one short test per rule.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use xy_config::settings::{RestartPolicy, Rules};
use xy_protocol::server::{ServerState, Wanted};

use super::reason::{Exit, Reason, Retirement};
use super::{
    AfterStop, Context, Effect, Event, Life, SHORT_LIFE, SHORT_LIFE_DELAY, STOP_MARGIN, State,
    Tally, WINDOW, on_event,
};
use crate::fake::{SECOND, engine_unavailable, permanent_fault, steady, transient_fault};

const MILLI: Duration = Duration::from_millis(1);

const KILLED: Exit = Exit { signal: Some(9), ..Exit::UNKNOWN };

fn crash() -> Event {
    Event::Exited(Exit::code(1))
}

fn clean_exit() -> Event {
    Event::Exited(Exit::code(0))
}

fn any_instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns `steady` rules with a change.
fn rules(change: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = steady();
    change(&mut rules);
    rules
}

/// Returns rules without limits, so that only the delays matter.
fn tireless(change: impl FnOnce(&mut Rules)) -> Rules {
    rules(|it| {
        it.restart.max_attempts = 0;
        it.restart.max_retries_per_minute = 0;
        change(it);
    })
}

/// One server with a clock.
struct TestServer {
    rules: Rules,
    life: Life,
    now: Instant,
    random: u8,
    is_remote: bool,
}

impl TestServer {
    /// A server without any event.
    fn new(rules: Rules) -> Self {
        let life = Life::new(Wanted::Down);
        Self { rules, life, now: any_instant(), random: 0, is_remote: false }
    }

    /// A server that was started and is not ready yet.
    fn starting(rules: Rules) -> Self {
        let mut server = Self::new(rules);
        assert_eq!(server.apply(Event::StartRequested), Some(Effect::Launch));
        server
    }

    /// A server that was started and is ready.
    fn running(rules: Rules) -> Self {
        let mut server = Self::starting(rules);
        server.apply(Event::Ready);
        server
    }

    /// A server that has crashed and waits for its next life.
    fn in_backoff(rules: Rules) -> Self {
        let mut server = Self::running(rules);
        server.apply(crash());
        assert!(matches!(server.life.state, State::Backoff { .. }));
        server
    }

    /// A server that was given up.
    fn failed() -> Self {
        let mut server = Self::starting(steady());
        server.apply(Event::LaunchFailed(permanent_fault()));
        assert_eq!(server.life.state, State::Failed);
        server
    }

    fn apply(&mut self, event: Event) -> Option<Effect> {
        let context = Context { now: self.now, random: self.random, is_remote: self.is_remote };
        let (life, effect) = on_event(self.life.clone(), event, &self.rules, context);
        self.life = life;
        effect
    }

    fn waits(&mut self, time: Duration) {
        self.now += time;
    }

    /// Waits until the deadline of the state. Returns the wait and the effect.
    fn waits_for_deadline(&mut self) -> (Duration, Option<Effect>) {
        let deadline = self.life.state.deadline().expect("the state waits for something");
        let waited = deadline - self.now;
        self.now = deadline;
        (waited, self.apply(Event::DeadlineReached))
    }

    /// Becomes ready, lives for `time`, crashes.
    fn lives_for(&mut self, time: Duration) {
        self.apply(Event::Ready);
        self.waits(time);
        self.apply(crash());
    }

    /// Lives and crashes repeatedly. Returns the delays in between.
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

mod table;

mod delays;
mod remote;

mod limits;

mod policies;

mod preparing;

mod requests;
mod sleep;

mod reloads;

mod counts;

#[test]
fn every_reason_has_a_text() {
    let crashed = || Box::new(Reason::Exited(Exit::code(1)));
    let not_found = || Box::new(Reason::LaunchFailed(permanent_fault()));
    let signal = |number| Reason::Exited(Exit { signal: Some(number), ..Exit::UNKNOWN });
    let reasons = [
        Reason::NotStarted,
        Reason::WaitingForPredecessor,
        Reason::StartRequested,
        Reason::StopRequested,
        Reason::RestartRequested,
        Reason::RetireRequested(Retirement::Removed),
        Reason::RetireRequested(Retirement::Unconfigured),
        Reason::RetireRequested(Retirement::Replaced),
        Reason::RetireRequested(Retirement::ClientLeft),
        Reason::RetireRequested(Retirement::DaemonEnds),
        Reason::Adopted,
        Reason::WriteInterrupted,
        Reason::ProtocolProbeFailed,
        Reason::RestartRequired("to speak legacy MCP".into()),
        Reason::SettingsChanged,
        Reason::Ready,
        Reason::StopDone,
        Reason::StopOverdue,
        Reason::LaunchFailed(permanent_fault()),
        Reason::LaunchFailed(transient_fault()),
        Reason::NeverReady { within: 10 * SECOND, unparsed_output: None },
        Reason::NeverReady { within: 1500 * MILLI, unparsed_output: None },
        Reason::ProtocolError("it speaks gibberish".into()),
        Reason::Exited(Exit::code(0)),
        Reason::Exited(Exit::code(127)),
        signal(9),
        signal(15),
        signal(64),
        Reason::Exited(Exit::UNKNOWN),
        Reason::Retry { attempt: 2, of: 0 },
        Reason::Retry { attempt: 2, of: 5 },
        Reason::Retry { attempt: 5, of: 5 },
        Reason::TooManyExits { exits: 6, limit: 5, last: crashed() },
        Reason::TooManyAttempts { attempts: 5, last: crashed() },
        Reason::TooManyAttempts { attempts: 5, last: not_found() },
    ];
    let texts: Vec<_> = reasons
        .iter()
        .map(|reason| match reason.hint() {
            Some(hint) => format!("{reason} (hint: {hint})"),
            None => reason.to_string(),
        })
        .collect();
    insta::assert_snapshot!(texts.join("\n"), @"
    not started yet
    waiting for the previous instance to exit
    start requested
    stop requested
    restart requested
    removed
    no file configures it any more
    its file has changed, and a new instance replaces it
    its client has left
    the daemon is ending
    taken over from an earlier daemon
    the daemon was killed while writing a message to it
    it failed on the protocol probe, and another protocol is tried
    started again by xy: to speak legacy MCP
    its file has changed
    ready
    stopped as requested
    the stop took too long and is being forced
    program `x` is not on PATH (hint: install it)
    out of memory
    not ready within 10s
    not ready within 1.5s
    it speaks gibberish
    exited with code 0
    exited with code 127
    killed by signal 9 (SIGKILL)
    killed by signal 15 (SIGTERM)
    killed by signal 64
    ended with unknown exit status
    attempt 2
    attempt 2 of 5
    final restart attempt (5 of 5)
    exited with code 1; 6 unexpected exits within 60 s (max-retries-per-minute is 5)
    exited with code 1; gave up after 5 restarts in a row (max-attempts)
    program `x` is not on PATH; gave up after 5 restarts in a row (max-attempts) (hint: install it)
    ");
}

// Interrupted writes.

#[test]
fn interrupted_write_restarts_server_uncounted() {
    let mut server = TestServer::running(steady());
    server.lives_for(2 * SECOND);
    assert_eq!(server.waits_for_deadline().1, Some(Effect::Launch));
    server.apply(Event::Ready);
    let before = server.life.tally.clone();
    assert_eq!(server.apply(Event::WriteInterrupted), Some(Effect::Stop));
    assert_eq!(server.apply(crash()), Some(Effect::Launch));
    assert_eq!(server.life.tally, before);
    assert_eq!(server.life.reason, Reason::WriteInterrupted);
}

#[test]
fn restart_required_by_driver_is_immediate_and_uncounted() {
    for mut server in [TestServer::starting(steady()), TestServer::running(steady())] {
        let before = server.life.tally.clone();
        assert_eq!(server.apply(Event::RestartRequired("why".into())), Some(Effect::Stop));
        assert_eq!(server.apply(Event::RestartRequired("why".into())), None, "it is ending");
        assert_eq!(server.apply(crash()), Some(Effect::Launch));
        assert_eq!(server.life.tally, before);
        assert_eq!(server.life.reason, Reason::RestartRequired("why".into()));
    }
}

#[test]
fn stop_after_interrupted_write_wins() {
    let mut server = TestServer::running(steady());
    server.apply(Event::WriteInterrupted);
    server.apply(Event::StopRequested);
    assert_eq!(server.apply(crash()), None);
    assert_eq!(server.life.state, State::Stopped);
}

// Failures on the protocol probe.

#[test]
fn exit_on_probe_is_forgiven_once() {
    let dies = || Event::ExitedOnProbe(Exit::code(1));
    for policy in [RestartPolicy::Never, RestartPolicy::OnFailure, RestartPolicy::Always] {
        for mut server in [TestServer::starting, TestServer::running]
            .map(|begin| begin(rules(|it| it.restart.policy = policy)))
        {
            assert_eq!(server.apply(dies()), Some(Effect::Launch), "{policy:?}");
            assert_eq!(server.life.reason, Reason::ProtocolProbeFailed);
            assert_eq!(
                (server.life.tally.restarts_total, server.life.tally.recent_exits.len()),
                (0, 0)
            );
            server.apply(dies());
            assert_eq!(
                server.life.state.on_wire() == ServerState::Failed,
                policy == RestartPolicy::Never
            );
            assert!(!matches!(server.life.state, State::Starting { .. }), "the second counts");
        }
    }
}

#[test]
fn protocol_error_on_probe_is_forgiven() {
    let mut server = TestServer::starting(steady());
    let silent = || Event::ProtocolErrorOnProbe("it closed its stdout".into());
    assert_eq!(server.apply(silent()), Some(Effect::Stop));
    assert_eq!(server.apply(crash()), Some(Effect::Launch));
    assert_eq!(
        (server.life.reason.clone(), server.life.tally.recent_exits.len()),
        (Reason::ProtocolProbeFailed, 0)
    );
    assert_eq!(server.apply(silent()), Some(Effect::Stop));
    assert_eq!(server.apply(crash()), None);
    assert_eq!(
        (server.says().as_str(), server.life.tally.recent_exits.len()),
        ("it closed its stdout", 1)
    );
}

#[test]
fn unusable_process_is_stopped_and_never_restarted() {
    let always = rules(|it| it.restart.policy = RestartPolicy::Always);
    for mut server in [TestServer::starting(always.clone()), TestServer::running(always)] {
        let unusable = || Event::Unrecoverable("it leads back to this daemon".into());
        assert_eq!(server.apply(unusable()), Some(Effect::Stop));
        assert_eq!(server.apply(unusable()), None, "it still runs");
        assert!(server.life.state.is_live());
        assert_eq!(server.apply(crash()), None);
        assert_eq!(server.life.state, State::Failed);
        assert_eq!(server.life.reason.to_string(), "it leads back to this daemon");
        assert_eq!(server.apply(Event::StartRequested), Some(Effect::Launch));
    }
}

#[test]
fn exit_on_probe_during_stop_stays_stopped() {
    let mut server = TestServer::starting(steady());
    server.apply(Event::StopRequested);
    assert_eq!(server.apply(Event::ExitedOnProbe(Exit::code(1))), None);
    assert_eq!(server.life.state, State::Stopped);
}

#[test]
fn kill_during_probe_counts() {
    let mut server = TestServer::starting(steady());
    assert_eq!(server.apply(Event::ExitedOnProbe(KILLED)), None);
    assert!(matches!(server.life.state, State::Backoff { .. }));
}

#[test]
fn requested_start_forgives_probe_again() {
    let mut server = TestServer::starting(steady());
    server.apply(Event::ExitedOnProbe(Exit::code(1)));
    server.apply(Event::RestartRequested);
    server.apply(crash());
    assert_eq!(server.apply(Event::ExitedOnProbe(Exit::code(1))), Some(Effect::Launch));
}

// Protocol errors.

fn protocol_error() -> Event {
    Event::ProtocolError("it speaks gibberish".into())
}

#[test]
fn protocol_error_is_counted_and_shown() {
    for mut server in [TestServer::starting(steady()), TestServer::running(steady())] {
        assert_eq!(server.apply(protocol_error()), Some(Effect::Stop));
        assert_eq!(server.says(), "it speaks gibberish");
        assert_eq!(server.apply(clean_exit()), None);
        assert!(matches!(server.life.state, State::Backoff { .. }));
        assert_eq!(server.says(), "it speaks gibberish");
        assert_eq!(server.life.tally.recent_exits.len(), 1);
    }
}

#[test]
fn protocol_error_keeps_its_reason_until_forced_stop() {
    let mut server = TestServer::running(steady());
    server.apply(protocol_error());
    assert_eq!(server.waits_for_deadline().1, Some(Effect::Kill));
    server.apply(Event::Exited(KILLED));
    assert_eq!(server.says(), "it speaks gibberish");
}

#[test]
fn protocol_error_after_stable_uptime_resets_attempts() {
    let mut server = TestServer::running(steady());
    server.lives_for(2 * SECOND);
    server.waits_for_deadline();
    server.apply(Event::Ready);
    assert_eq!(server.life.tally.in_a_row, 1);
    server.waits(server.rules.restart.reset_after);
    server.apply(protocol_error());
    server.apply(crash());
    assert_eq!(server.life.tally.in_a_row, 0);
}

#[test]
fn stop_after_protocol_error_wins() {
    let mut server = TestServer::running(steady());
    server.apply(protocol_error());
    server.apply(Event::StopRequested);
    assert_eq!(server.apply(crash()), None);
    assert_eq!(server.life.state, State::Stopped);
}
