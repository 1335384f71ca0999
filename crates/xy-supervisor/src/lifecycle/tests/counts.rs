//! Restart counts and their reset.

use super::*;

#[test]
fn only_automatic_restarts_count() {
    let mut play = Play::running(steady());
    play.apply(Event::RestartRequested);
    play.apply(clean_exit());
    play.apply(Event::ProcessChanged);
    play.apply(clean_exit());
    assert_eq!(play.life.tally, Tally::default());
    play.delays_between_lives_of(SECOND, 2);
    assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (2, 2));
}

#[test]
fn start_resets_count_but_not_total() {
    let mut play = Play::starting(steady());
    play.delays_between_lives_of(SECOND, 2);
    play.apply(Event::RestartRequested);
    play.apply(clean_exit());
    assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 2));
    play.delays_between_lives_of(SECOND, 1);
    play.apply(Event::StopRequested);
    play.apply(clean_exit());
    assert_eq!(play.life.tally.restart_count, 1, "a stop alone resets nothing");
    play.apply(Event::StartRequested);
    assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 3));
}

#[test]
fn stable_uptime_does_not_reset_count() {
    let mut play = Play::starting(steady());
    play.delays_between_lives_of(60 * SECOND, 3);
    assert_eq!(play.life.tally.restart_count, 3);
    assert_eq!(play.life.tally.in_a_row, 1);
}
