//! Limits on restarts.

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
fn too_many_exits_within_a_minute_fail_server() {
    let mut server = TestServer::starting(at_most_exits(3));
    server.delays_between_lives_of(SECOND, 3);
    server.lives_for(SECOND);
    assert_eq!(server.life.state, State::Failed);
    insta::assert_snapshot!(server.says(), @"exited with code 1; 4 unexpected exits within 60 s (max-retries-per-minute is 3)");
}

#[test]
fn old_exits_leave_the_window() {
    let mut server = TestServer::starting(at_most_exits(3));
    // Exits at 20 s, 40 s, 60 s, 80 s …: never more than three within 60 s.
    let delays = server.delays_between_lives_of(20 * SECOND, 10);
    assert_eq!(delays, [Duration::ZERO; 10]);
}

#[test]
fn exit_exactly_one_window_ago_does_not_count() {
    let mut server = TestServer::starting(at_most_exits(1));
    server.delays_between_lives_of(WINDOW, 3);
    server.lives_for(almost(WINDOW));
    assert_eq!(server.life.state, State::Failed);
}

#[test]
fn window_is_checked_at_exit() {
    let mut server = TestServer::starting(rules(|it| {
        it.restart.max_retries_per_minute = 1;
        it.restart.backoff_initial = 30 * SECOND;
    }));
    server.delays_between_lives_of(31 * SECOND, 1);
    // The exit is 59 s after the last one. The delay before the next life does not matter.
    server.lives_for(29 * SECOND);
    assert_eq!(server.life.state, State::Failed);
}

#[test]
fn exits_are_unlimited_without_limit() {
    let mut server = TestServer::starting(at_most_exits(0));
    server.delays_between_lives_of(MILLI, 500);
    assert!(server.life.tally.recent_exits.len() <= 1, "unneeded exits are not kept");
}

#[test]
fn remembered_exits_are_bounded_by_limit() {
    let mut server = TestServer::starting(at_most_exits(4));
    for _ in 0..50 {
        server.lives_for(15 * SECOND);
        assert!(server.life.tally.recent_exits.len() <= 5);
        server.waits_for_deadline();
    }
}

#[test]
fn server_is_given_up_after_max_attempts() {
    let mut server = TestServer::starting(at_most_attempts(2));
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 2)), [1.0, 2.0]);
    server.lives_for(SECOND);
    assert_eq!(server.life.state, State::Failed);
    insta::assert_snapshot!(server.says(), @"exited with code 1; gave up after 2 restarts in a row (max-attempts)");
}

#[test]
fn restarts_are_unlimited_without_limit() {
    TestServer::starting(at_most_attempts(0)).delays_between_lives_of(SECOND, 500);
}

#[test]
fn stable_uptime_resets_attempts() {
    let mut server = TestServer::starting(at_most_attempts(2));
    server.delays_between_lives_of(SECOND, 2);
    assert_eq!(seconds(&server.delays_between_lives_of(60 * SECOND, 1)), [1.0]);
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 1)), [2.0]);
    server.lives_for(SECOND);
    assert_eq!(server.life.state, State::Failed);
}

#[test]
fn reason_names_last_attempt() {
    let mut server = TestServer::starting(at_most_attempts(3));
    let mut texts = Vec::new();
    for _ in 0..3 {
        server.delays_between_lives_of(SECOND, 1);
        texts.push(server.says());
    }
    assert_eq!(texts, ["attempt 1 of 3", "attempt 2 of 3", "final restart attempt (3 of 3)"]);
}

#[test]
fn start_after_failure_resets_attempts() {
    let mut server = TestServer::starting(at_most_attempts(1));
    server.delays_between_lives_of(SECOND, 1);
    server.lives_for(SECOND);
    assert_eq!(server.life.state, State::Failed);
    assert_eq!(server.apply(Event::StartRequested), Some(Effect::Launch));
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 1)), [1.0]);
}

#[test]
fn requested_end_never_counts() {
    let mut server = TestServer::running(rules(|it| it.restart.max_retries_per_minute = 1));
    for _ in 0..10 {
        assert_eq!(server.apply(Event::RestartRequested), Some(Effect::Stop));
        assert_eq!(server.apply(Event::Exited(KILLED)), Some(Effect::Launch));
        server.apply(Event::Ready);
    }
    assert_eq!(server.life.tally, Tally::default());
}
