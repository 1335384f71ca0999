//! Restart policies after an unexpected end.

use super::*;

fn after(policy: RestartPolicy, exit: Exit) -> Life {
    let mut play = Play::running(rules(|it| it.restart.policy = policy));
    play.waits(SECOND);
    assert_eq!(play.apply(Event::Exited(exit)), None);
    play.life
}

#[test]
fn always_restarts_after_any_exit() {
    for exit in [Exit::code(0), Exit::code(1), KILLED, Exit::UNKNOWN] {
        let life = after(RestartPolicy::Always, exit);
        assert!(matches!(life.state, State::Backoff { .. }), "{exit}");
    }
}

#[test]
fn on_failure_restarts_after_unclean_exit_only() {
    for exit in [Exit::code(1), KILLED, Exit::UNKNOWN] {
        let life = after(RestartPolicy::OnFailure, exit);
        assert!(matches!(life.state, State::Backoff { .. }), "{exit}");
    }
    assert_eq!(after(RestartPolicy::OnFailure, Exit::code(0)).state, State::Stopped);
}

#[test]
fn never_leaves_server_failed_or_stopped() {
    assert_eq!(after(RestartPolicy::Never, Exit::code(0)).state, State::Stopped);
    for exit in [Exit::code(1), KILLED, Exit::UNKNOWN] {
        assert_eq!(after(RestartPolicy::Never, exit).state, State::Failed, "{exit}");
    }
}

#[test]
fn exited_server_is_still_wanted_up() {
    assert_eq!(after(RestartPolicy::OnFailure, Exit::code(0)).wanted, Wanted::Up);
}

#[test]
fn permanent_launch_failure_fails_at_once() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut play = Play::starting(rules(|it| it.restart.policy = policy));
        play.apply(Event::LaunchFailed(permanent_fault()));
        assert_eq!(play.life.state, State::Failed);
        assert_eq!(play.life.reason.hint(), Some("install it"));
    }
}

#[test]
fn late_permanent_launch_failure_fails_server() {
    let mut play = Play::starting(steady());
    assert_eq!(play.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    play.apply(Event::LaunchFailed(permanent_fault()));
    assert_eq!((&play.life.state, play.life.tally.restarts_total), (&State::Failed, 0));
    assert_eq!(play.life.reason, Reason::LaunchFailed(permanent_fault()));
}

#[test]
fn ready_server_that_cannot_be_run_fails() {
    let mut play = Play::running(steady());
    play.apply(Event::LaunchFailed(permanent_fault()));
    assert_eq!((&play.life.state, play.life.tally.restarts_total), (&State::Failed, 0));
}

#[test]
fn missing_engine_is_retried_forever_uncounted() {
    let mut play = Play::starting(steady());
    let mut waited = Vec::new();
    for _ in 0..8 {
        assert_eq!(play.apply(Event::EngineUnavailable(engine_unavailable())), None);
        assert_eq!(play.life.reason.hint(), Some("start the engine"));
        assert!(play.life.is_unreachable());
        let (time, effect) = play.waits_for_deadline();
        assert_eq!(effect, Some(Effect::Launch));
        waited.push(time.as_secs());
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30, 30]);
    play.apply(Event::Ready);
    assert_eq!((play.life.tally.restarts_total, play.life.is_unreachable()), (0, false));
    // The next outage starts with the initial delay.
    play.apply(crash());
    play.waits_for_deadline();
    play.apply(Event::EngineUnavailable(engine_unavailable()));
    assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    assert_eq!(play.life.tally.restarts_total, 1, "the crash");
}

#[test]
fn missing_engine_fails_server_under_never() {
    let mut play = Play::starting(rules(|it| it.restart.policy = RestartPolicy::Never));
    play.apply(Event::EngineUnavailable(engine_unavailable()));
    assert_eq!(play.life.state, State::Failed);
    assert_eq!(play.says(), "no engine listens");
}

#[test]
fn five_attempts_of_older_launcher_can_be_configured() {
    let mut play = Play::starting(rules(|it| {
        it.restart.backoff_initial = 2 * SECOND;
        it.restart.backoff_max = 32 * SECOND;
        it.restart.max_attempts = 5;
        it.restart.max_retries_per_minute = 0;
        it.restart.jitter = false;
    }));
    let waited = [(); 5].map(|()| {
        play.apply(crash());
        play.waits_for_deadline().0.as_secs()
    });
    assert_eq!(waited, [2, 4, 8, 16, 32]);
    play.apply(crash());
    assert_eq!(play.life.state, State::Failed);
}

#[test]
fn transient_launch_failure_is_retried() {
    let mut play = Play::starting(steady());
    play.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    play.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(play.waits_for_deadline(), (2 * SECOND, Some(Effect::Launch)));
}

#[test]
fn transient_launch_failures_count_against_limits() {
    let mut play = Play::starting(rules(|it| it.restart.max_attempts = 1));
    play.apply(Event::LaunchFailed(transient_fault()));
    play.waits_for_deadline();
    play.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(play.life.state, State::Failed);
    insta::assert_snapshot!(play.says(), @"out of memory; gave up after 1 restart (max-attempts)");
}

#[test]
fn server_never_ready_is_stopped_and_counted() {
    let mut play = Play::starting(steady());
    assert_eq!(play.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    assert_eq!(play.says(), "not ready within 10s");
    play.waits(SECOND);
    // The clean exit after that does not make it a success.
    assert_eq!(play.apply(clean_exit()), None);
    assert_eq!(play.says(), "not ready within 10s");
    assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    assert_eq!(play.life.tally.restart_count, 1);
}

#[test]
fn server_never_ready_is_given_up_eventually() {
    let mut play = Play::starting(rules(|it| it.restart.max_attempts = 1));
    play.waits_for_deadline();
    play.apply(clean_exit());
    play.waits_for_deadline();
    play.waits_for_deadline();
    play.apply(clean_exit());
    assert_eq!(play.life.state, State::Failed);
    insta::assert_snapshot!(play.says(), @"not ready within 10s; gave up after 1 restart (max-attempts)");
}

#[test]
fn server_never_ready_fails_at_once_under_never() {
    let mut play = Play::starting(rules(|it| it.restart.policy = RestartPolicy::Never));
    play.waits_for_deadline();
    play.apply(clean_exit());
    assert_eq!(play.life.state, State::Failed);
}
