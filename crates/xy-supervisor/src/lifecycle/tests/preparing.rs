//! Servers whose launch needs preparation, such as an image pull.

use super::*;

#[test]
fn preparation_does_not_use_up_readiness_time() {
    let mut server = TestServer::new(rules(|it| it.ready.within = 10 * SECOND));
    server.apply(Event::StartRequested);
    for _ in 0..100 {
        server.waits(9 * SECOND);
        assert_eq!(server.apply(Event::Preparing), None);
        assert!(matches!(server.life.state, State::Starting { .. }), "{:?}", server.life);
    }
    assert_eq!(server.life.reason, Reason::StartRequested, "the reason stays");
    let (waited, effect) = server.waits_for_deadline();
    assert_eq!(
        (waited, effect),
        (10 * SECOND, Some(Effect::Stop)),
        "the time counts after the preparation"
    );
}

#[test]
fn stop_ends_preparation_and_ignores_its_later_events() {
    let mut server = TestServer::new(rules(|_| ()));
    server.apply(Event::StartRequested);
    server.apply(Event::Preparing);
    assert_eq!(server.apply(Event::StopRequested), Some(Effect::Stop));
    let before = server.life.clone();
    assert_eq!(server.apply(Event::Preparing), None);
    assert_eq!(server.life, before);
    server.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(server.life.state, State::Stopped);
}
