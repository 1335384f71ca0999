//! How long is waited between two lives.

//! How long to wait before the next life.

use super::*;

#[test]
fn the_delay_doubles_up_to_the_maximum() {
    let mut play = Play::starting(tireless(|_| {}));
    let delays = play.delays_between_lives_of(SECOND, 8);
    assert_eq!(seconds(&delays), [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]);
}

#[test]
fn after_very_many_tries_the_delay_is_still_the_maximum() {
    let mut play = Play::starting(tireless(|_| {}));
    let delays = play.delays_between_lives_of(SECOND, 100);
    assert_eq!(delays.last(), Some(&(30 * SECOND)));
}

#[test]
fn a_first_delay_over_the_maximum_is_the_maximum() {
    let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = 60 * SECOND));
    assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 2)), [30.0, 30.0]);
}

#[test]
fn jitter_adds_at_most_a_quarter_and_never_goes_over_the_maximum() {
    let jittery = tireless(|it| it.restart.jitter = true);
    let mut most = Play::starting(jittery.clone());
    most.chance = 255;
    let delays = most.delays_between_lives_of(SECOND, 7);
    assert_eq!(seconds(&delays), [1.25, 2.5, 5.0, 10.0, 20.0, 30.0, 30.0]);

    let mut least = Play::starting(jittery);
    assert_eq!(seconds(&least.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
}

#[test]
fn more_chance_never_means_less_delay() {
    let delays: Vec<_> = (0..=255)
        .map(|chance| {
            let mut play = Play::starting(tireless(|it| it.restart.jitter = true));
            play.chance = chance;
            play.delays_between_lives_of(SECOND, 1)[0]
        })
        .collect();
    assert!(delays.is_sorted());
    assert!(delays[128] > delays[0] && delays[255] > delays[128]);
}

#[test]
fn without_jitter_chance_decides_nothing() {
    let mut play = Play::starting(tireless(|_| {}));
    play.chance = 255;
    assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 2)), [1.0, 2.0]);
}

#[test]
fn without_back_off_the_successor_of_a_long_life_starts_at_once() {
    let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    assert_eq!(play.delays_between_lives_of(SHORT_LIFE, 3), [Duration::ZERO; 3]);
}

#[test]
fn without_back_off_the_successor_of_a_short_life_waits_a_moment() {
    let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    let delays = play.delays_between_lives_of(almost(SHORT_LIFE), 3);
    assert_eq!(delays, [SHORT_LIFE_DELAY; 3]);
}

#[test]
fn a_life_counts_from_its_launch_not_from_its_readiness() {
    let mut play = Play::starting(tireless(|it| it.restart.backoff_initial = Duration::ZERO));
    play.waits(almost(SHORT_LIFE));
    play.lives_for(MILLI);
    assert_eq!(play.waits_for_deadline().0, Duration::ZERO);
}

#[test]
fn enough_ready_uptime_makes_the_delay_short_again() {
    let mut play = Play::starting(tireless(|_| {}));
    assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 3)), [1.0, 2.0, 4.0]);
    assert_eq!(seconds(&play.delays_between_lives_of(60 * SECOND, 1)), [1.0]);
    assert_eq!(seconds(&play.delays_between_lives_of(SECOND, 1)), [2.0]);
}

#[test]
fn almost_enough_ready_uptime_does_not() {
    let mut play = Play::starting(tireless(|_| {}));
    assert_eq!(seconds(&play.delays_between_lives_of(almost(60 * SECOND), 2)), [1.0, 2.0]);
}

#[test]
fn time_before_readiness_is_no_ready_uptime() {
    let mut play = Play::starting(tireless(|it| it.ready.within = 100 * SECOND));
    play.delays_between_lives_of(SECOND, 2);
    play.waits(90 * SECOND);
    assert_eq!(seconds(&play.delays_between_lives_of(59 * SECOND, 1)), [4.0]);
}
