//! Delays between two lives.

use super::*;

#[test]
fn delay_doubles_up_to_maximum() {
    let mut server = TestServer::starting(tireless(|_| {}));
    let delays = server.delays_between_lives_of(SECOND, 8);
    assert_eq!(seconds(&delays), [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]);
}

#[test]
fn delay_stays_at_maximum() {
    let mut server = TestServer::starting(tireless(|_| {}));
    let delays = server.delays_between_lives_of(SECOND, 100);
    assert_eq!(delays.last(), Some(&(30 * SECOND)));
}

#[test]
fn initial_delay_is_capped_at_maximum() {
    let mut server = TestServer::starting(tireless(|it| it.restart.backoff_initial = 60 * SECOND));
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 2)), [30.0, 30.0]);
}

#[test]
fn jitter_adds_at_most_a_quarter_within_maximum() {
    let jittery = tireless(|it| it.restart.jitter = true);
    let mut most = TestServer::starting(jittery.clone());
    most.random = 255;
    let delays = most.delays_between_lives_of(SECOND, 7);
    assert_eq!(seconds(&delays), [1.25, 2.5, 5.0, 10.0, 20.0, 30.0, 30.0]);

    let mut least = TestServer::starting(jittery);
    assert_eq!(seconds(&least.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
}

#[test]
fn delay_grows_with_random_number() {
    let delays: Vec<_> = (0..=255)
        .map(|random| {
            let mut server = TestServer::starting(tireless(|it| it.restart.jitter = true));
            server.random = random;
            server.delays_between_lives_of(SECOND, 1)[0]
        })
        .collect();
    assert!(delays.is_sorted());
    assert!(delays[128] > delays[0] && delays[255] > delays[128]);
}

#[test]
fn without_jitter_delay_is_fixed() {
    let mut server = TestServer::starting(tireless(|_| {}));
    server.random = 255;
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 2)), [1.0, 2.0]);
}

#[test]
fn without_back_off_long_life_is_followed_at_once() {
    let mut server =
        TestServer::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    assert_eq!(server.delays_between_lives_of(SHORT_LIFE, 3), [Duration::ZERO; 3]);
}

#[test]
fn without_back_off_short_life_is_followed_by_delay() {
    let mut server =
        TestServer::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    let delays = server.delays_between_lives_of(almost(SHORT_LIFE), 3);
    assert_eq!(delays, [SHORT_LIFE_DELAY; 3]);
}

#[test]
fn life_counts_from_launch_not_readiness() {
    let mut server =
        TestServer::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    server.waits(almost(SHORT_LIFE));
    server.lives_for(MILLI);
    assert_eq!(server.waits_for_deadline().0, Duration::ZERO);
}

#[test]
fn stable_uptime_resets_delay() {
    let mut server = TestServer::starting(tireless(|_| {}));
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
    assert_eq!(seconds(&server.delays_between_lives_of(60 * SECOND, 1)), [1.0]);
    assert_eq!(seconds(&server.delays_between_lives_of(SECOND, 1)), [2.0]);
}

#[test]
fn almost_stable_uptime_does_not_reset_delay() {
    let mut server = TestServer::starting(tireless(|_| {}));
    assert_eq!(seconds(&server.delays_between_lives_of(almost(60 * SECOND), 2)), [1.0, 2.0]);
}

#[test]
fn time_before_readiness_is_no_uptime() {
    let mut server = TestServer::starting(tireless(|it| it.ready.within = 100 * SECOND));
    server.delays_between_lives_of(SECOND, 2);
    server.waits(90 * SECOND);
    assert_eq!(seconds(&server.delays_between_lives_of(59 * SECOND, 1)), [4.0]);
}
