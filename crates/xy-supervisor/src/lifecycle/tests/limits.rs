//! When it is given up.

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
