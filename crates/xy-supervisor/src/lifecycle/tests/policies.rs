//! Restart policies after an unexpected end.

use super::*;

fn after(policy: RestartPolicy, exit: Exit) -> Life {
    let mut server = TestServer::running(rules(|it| it.restart.policy = policy));
    server.waits(SECOND);
    assert_eq!(server.apply(Event::Exited(exit)), None);
    server.life
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
        let mut server = TestServer::starting(rules(|it| it.restart.policy = policy));
        server.apply(Event::LaunchFailed(permanent_fault()));
        assert_eq!(server.life.state, State::Failed);
        assert_eq!(server.life.reason.hint(), Some("install it"));
    }
}

#[test]
fn late_permanent_launch_failure_fails_server() {
    let mut server = TestServer::starting(steady());
    assert_eq!(server.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    server.apply(Event::LaunchFailed(permanent_fault()));
    assert_eq!((&server.life.state, server.life.tally.restarts_total), (&State::Failed, 0));
    assert_eq!(server.life.reason, Reason::LaunchFailed(permanent_fault()));
}

#[test]
fn ready_server_that_cannot_be_run_fails() {
    let mut server = TestServer::running(steady());
    server.apply(Event::LaunchFailed(permanent_fault()));
    assert_eq!((&server.life.state, server.life.tally.restarts_total), (&State::Failed, 0));
}

#[test]
fn missing_engine_is_retried_forever_uncounted() {
    let mut server = TestServer::starting(steady());
    let mut waited = Vec::new();
    for _ in 0..8 {
        assert_eq!(server.apply(Event::EngineUnavailable(engine_unavailable())), None);
        assert_eq!(server.life.reason.hint(), Some("start the engine"));
        assert!(server.life.is_unreachable());
        let (time, effect) = server.waits_for_deadline();
        assert_eq!(effect, Some(Effect::Launch));
        waited.push(time.as_secs());
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30, 30]);
    server.apply(Event::Ready);
    assert_eq!((server.life.tally.restarts_total, server.life.is_unreachable()), (0, false));
    // The next outage starts with the initial delay.
    server.apply(crash());
    server.waits_for_deadline();
    server.apply(Event::EngineUnavailable(engine_unavailable()));
    assert_eq!(server.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    assert_eq!(server.life.tally.restarts_total, 1, "the crash");
}

#[test]
fn missing_engine_fails_server_under_never() {
    let mut server = TestServer::starting(rules(|it| it.restart.policy = RestartPolicy::Never));
    server.apply(Event::EngineUnavailable(engine_unavailable()));
    assert_eq!(server.life.state, State::Failed);
    assert_eq!(server.says(), "no engine listens");
}

#[test]
fn five_attempts_of_older_launcher_can_be_configured() {
    let mut server = TestServer::starting(rules(|it| {
        it.restart.backoff_initial = 2 * SECOND;
        it.restart.backoff_max = 32 * SECOND;
        it.restart.max_attempts = 5;
        it.restart.max_retries_per_minute = 0;
        it.restart.jitter = false;
    }));
    let waited = [(); 5].map(|()| {
        server.apply(crash());
        server.waits_for_deadline().0.as_secs()
    });
    assert_eq!(waited, [2, 4, 8, 16, 32]);
    server.apply(crash());
    assert_eq!(server.life.state, State::Failed);
}

#[test]
fn transient_launch_failure_is_retried() {
    let mut server = TestServer::starting(steady());
    server.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(server.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    server.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(server.waits_for_deadline(), (2 * SECOND, Some(Effect::Launch)));
}

#[test]
fn transient_launch_failures_count_against_limits() {
    let mut server = TestServer::starting(rules(|it| it.restart.max_attempts = 1));
    server.apply(Event::LaunchFailed(transient_fault()));
    server.waits_for_deadline();
    server.apply(Event::LaunchFailed(transient_fault()));
    assert_eq!(server.life.state, State::Failed);
    insta::assert_snapshot!(server.says(), @"out of memory; gave up after 1 restart (max-attempts)");
}

#[test]
fn server_never_ready_is_stopped_and_counted() {
    let mut server = TestServer::starting(steady());
    assert_eq!(server.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    assert_eq!(server.says(), "not ready within 10s");
    server.waits(SECOND);
    // The clean exit after that does not make it a success.
    assert_eq!(server.apply(clean_exit()), None);
    assert_eq!(server.says(), "not ready within 10s");
    assert_eq!(server.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
    assert_eq!(server.life.tally.restart_count, 1);
}

#[test]
fn server_never_ready_is_given_up_eventually() {
    let mut server = TestServer::starting(rules(|it| it.restart.max_attempts = 1));
    server.waits_for_deadline();
    server.apply(clean_exit());
    server.waits_for_deadline();
    server.waits_for_deadline();
    server.apply(clean_exit());
    assert_eq!(server.life.state, State::Failed);
    insta::assert_snapshot!(server.says(), @"not ready within 10s; gave up after 1 restart (max-attempts)");
}

#[test]
fn server_never_ready_fails_at_once_under_never() {
    let mut server = TestServer::starting(rules(|it| it.restart.policy = RestartPolicy::Never));
    server.waits_for_deadline();
    server.apply(clean_exit());
    assert_eq!(server.life.state, State::Failed);
}
