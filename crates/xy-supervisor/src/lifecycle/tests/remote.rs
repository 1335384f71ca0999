//! Remote servers, which cannot exit here, but can be unreachable.

use xy_config::settings::REMOTE_BACKOFF_MAX;

use super::*;

fn remote() -> Play {
    let mut play = Play::new(rules(|it| it.restart.backoff_max = REMOTE_BACKOFF_MAX));
    play.is_remote = true;
    assert_eq!(play.apply(Event::StartRequested), Some(Effect::Launch));
    play
}

fn silence() -> Event {
    Event::Unreachable("connection refused".into())
}

/// Lets the server be unreachable repeatedly. Returns the delays in between.
fn delays(play: &mut Play, times: usize) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..times {
        assert_eq!(play.apply(silence()), None);
        let (waited, effect) = play.waits_for_deadline();
        assert_eq!(effect, Some(Effect::Launch));
        delays.push(waited);
    }
    delays
}

#[test]
fn unreachable_server_is_retried_forever_with_growing_delays() {
    let mut play = remote();
    let waited = delays(&mut play, 9);
    assert_eq!(seconds(&waited), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    delays(&mut play, 200);
    assert_eq!(play.life.reason, Reason::ReconnectAttempt { attempt: 210 });
    assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 0));
}

#[test]
fn reconnect_delay_has_jitter() {
    let mut play = remote();
    play.rules.restart.jitter = true;
    play.random = 255;
    assert_eq!(seconds(&delays(&mut play, 3)), [1.25, 2.5, 5.0]);
}

#[test]
fn reconnect_delay_has_a_minimum() {
    let mut play = remote();
    play.rules.restart.backoff_initial = Duration::ZERO;
    play.rules.restart.backoff_max = Duration::ZERO;
    assert_eq!(delays(&mut play, 2), [SHORT_LIFE_DELAY; 2]);
}

#[test]
fn stable_connection_resets_reconnect_delay() {
    let mut play = remote();
    delays(&mut play, 5);
    play.apply(Event::Ready);
    assert!(!play.life.is_unreachable());
    play.waits(59 * SECOND);
    assert_eq!(seconds(&delays(&mut play, 1)), [32.0], "a short connection resets nothing");
    play.apply(Event::Ready);
    play.waits(60 * SECOND);
    assert_eq!(seconds(&delays(&mut play, 1)), [1.0]);
}

#[test]
fn server_without_answer_in_time_is_unreachable() {
    let mut play = remote();
    assert_eq!(play.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    assert!(play.life.is_unreachable());
    play.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(play.life.reason.to_string(), "no answer within 10s");
    assert!(matches!(play.life.state, State::Backoff { .. }));
    assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
}

#[test]
fn server_with_stuck_disconnect_is_retried() {
    let mut play = remote();
    play.waits_for_deadline();
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    play.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(play.life.reason.to_string(), "no answer within 10s");
}

#[test]
fn refusing_server_is_given_up_at_once() {
    let (first, mut later) = (remote(), remote());
    later.apply(Event::Ready);
    for mut play in [first, later] {
        assert_eq!(play.apply(Event::Unrecoverable("401 Unauthorized".into())), None);
        assert_eq!(play.life.state, State::Failed);
        assert_eq!(play.life.reason.to_string(), "401 Unauthorized");
        assert_eq!(play.apply(Event::RulesChanged), Some(Effect::Launch), "the new rules may help");
    }
}

#[test]
fn start_does_not_wait_for_reconnect_delay() {
    for asked in [Event::StartRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut play = remote();
        delays(&mut play, 5);
        play.apply(silence());
        assert_eq!(play.apply(asked), Some(Effect::Launch));
        assert!(!play.life.is_unreachable(), "that is not known yet");
        assert_eq!(seconds(&delays(&mut play, 1)), [1.0]);
    }
}

#[test]
fn unreachable_server_can_be_stopped() {
    let mut play = remote();
    play.apply(silence());
    assert_eq!(play.apply(Event::StopRequested), None);
    assert_eq!(play.life.state, State::Stopped);
    let mut play = remote();
    play.waits_for_deadline();
    play.apply(Event::StopRequested);
    play.apply(silence());
    assert_eq!(play.life.state, State::Stopped);
}

#[test]
fn new_settings_are_tried_when_the_old_connection_has_closed() {
    let mut play = remote();
    play.waits_for_deadline();
    play.apply(Event::ProcessChanged);
    assert_eq!(play.apply(Event::Exited(Exit::UNKNOWN)), Some(Effect::Launch));
    assert_eq!(play.life.reason, Reason::SettingsChanged);
}
