//! Servers whose launch needs preparation, such as an image pull.

use super::*;

#[test]
fn preparation_does_not_use_up_readiness_time() {
    let mut play = Play::new(rules(|it| it.ready.within = 10 * SECOND));
    play.apply(Event::StartRequested);
    for _ in 0..100 {
        play.waits(9 * SECOND);
        assert_eq!(play.apply(Event::Preparing), None);
        assert!(matches!(play.life.state, State::Starting { .. }), "{:?}", play.life);
    }
    assert_eq!(play.life.reason, Reason::StartRequested, "the reason stays");
    let (waited, effect) = play.waits_for_deadline();
    assert_eq!(
        (waited, effect),
        (10 * SECOND, Some(Effect::Stop)),
        "the time counts after the preparation"
    );
}

#[test]
fn stop_ends_preparation_and_ignores_its_later_events() {
    let mut play = Play::new(rules(|_| ()));
    play.apply(Event::StartRequested);
    play.apply(Event::Preparing);
    assert_eq!(play.apply(Event::StopRequested), Some(Effect::Stop));
    let before = play.life.clone();
    assert_eq!(play.apply(Event::Preparing), None);
    assert_eq!(play.life, before);
    play.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(play.life.state, State::Stopped);
}
