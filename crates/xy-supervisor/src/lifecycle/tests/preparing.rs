//! Servers that need something fetched before they can begin.

use super::*;

#[test]
fn the_time_of_a_fetch_is_not_that_of_becoming_ready() {
    let mut play = Play::new(rules(|it| it.ready.within = 10 * SECOND));
    play.sees(Event::StartRequested);
    for _ in 0..100 {
        play.waits(9 * SECOND);
        assert_eq!(play.sees(Event::Preparing), None);
        assert!(matches!(play.life.state, State::Starting { .. }), "{:?}", play.life);
    }
    assert_eq!(play.life.reason, Reason::StartRequested, "nothing new has happened");
    let (waited, effect) = play.waits_for_deadline();
    assert_eq!((waited, effect), (10 * SECOND, Some(Effect::Stop)), "once that is over it counts");
}

#[test]
fn a_stop_ends_a_fetch_and_what_is_heard_of_it_later_means_nothing() {
    let mut play = Play::new(rules(|_| ()));
    play.sees(Event::StartRequested);
    play.sees(Event::Preparing);
    assert_eq!(play.sees(Event::StopRequested), Some(Effect::Stop));
    let before = play.life.clone();
    assert_eq!(play.sees(Event::Preparing), None);
    assert_eq!(play.life, before);
    play.sees(Event::Exited(Exit::UNSEEN));
    assert_eq!(play.life.state, State::Stopped);
}
