//! Restart counts and their reset.

use super::*;

#[test]
fn only_automatic_restarts_count() {
    let mut server = TestServer::running(steady());
    server.apply(Event::RestartRequested);
    server.apply(clean_exit());
    server.apply(Event::ProcessChanged);
    server.apply(clean_exit());
    assert_eq!(server.life.tally, Tally::default());
    server.delays_between_lives_of(SECOND, 2);
    assert_eq!((server.life.tally.restart_count, server.life.tally.restarts_total), (2, 2));
}

#[test]
fn start_resets_count_but_not_total() {
    let mut server = TestServer::starting(steady());
    server.delays_between_lives_of(SECOND, 2);
    server.apply(Event::RestartRequested);
    server.apply(clean_exit());
    assert_eq!((server.life.tally.restart_count, server.life.tally.restarts_total), (0, 2));
    server.delays_between_lives_of(SECOND, 1);
    server.apply(Event::StopRequested);
    server.apply(clean_exit());
    assert_eq!(server.life.tally.restart_count, 1, "a stop alone resets nothing");
    server.apply(Event::StartRequested);
    assert_eq!((server.life.tally.restart_count, server.life.tally.restarts_total), (0, 3));
}

#[test]
fn stable_uptime_does_not_reset_count() {
    let mut server = TestServer::starting(steady());
    server.delays_between_lives_of(60 * SECOND, 3);
    assert_eq!(server.life.tally.restart_count, 3);
    assert_eq!(server.life.tally.in_a_row, 1);
}
