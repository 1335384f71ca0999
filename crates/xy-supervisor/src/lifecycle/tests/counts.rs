//! What is counted, and when that begins anew.

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
