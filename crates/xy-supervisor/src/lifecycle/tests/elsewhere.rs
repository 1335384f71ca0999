//! Servers that live somewhere else: they cannot die here, only be out of reach.

use xy_config::settings::REMOTE_BACKOFF_MAX;

use super::*;

fn elsewhere() -> Play {
    let mut play = Play::new(rules(|it| it.restart.backoff_max = REMOTE_BACKOFF_MAX));
    play.is_remote = true;
    assert_eq!(play.sees(Event::StartRequested), Some(Effect::Launch));
    play
}

fn silence() -> Event {
    Event::Unreachable("connection refused".into())
}

/// Cannot be reached, again and again; answers the delays in between.
fn delays(play: &mut Play, times: usize) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..times {
        assert_eq!(play.sees(silence()), None);
        let (waited, effect) = play.waits_for_deadline();
        assert_eq!(effect, Some(Effect::Launch));
        delays.push(waited);
    }
    delays
}

#[test]
fn one_that_cannot_be_reached_is_tried_again_ever_more_seldom_and_never_given_up() {
    let mut play = elsewhere();
    let waited = delays(&mut play, 9);
    assert_eq!(seconds(&waited), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    delays(&mut play, 200);
    assert_eq!(play.life.reason, Reason::TriedAgain { attempt: 210 });
    assert_eq!((play.life.tally.restart_count, play.life.tally.restarts_total), (0, 0));
}

#[test]
fn jitter_is_as_configured() {
    let mut play = elsewhere();
    play.rules.restart.jitter = true;
    play.chance = 255;
    assert_eq!(seconds(&delays(&mut play, 3)), [1.25, 2.5, 5.0]);
}

#[test]
fn without_any_delay_it_is_not_tried_without_a_pause() {
    let mut play = elsewhere();
    play.rules.restart.backoff_initial = Duration::ZERO;
    play.rules.restart.backoff_max = Duration::ZERO;
    assert_eq!(delays(&mut play, 2), [SHORT_LIFE_DELAY; 2]);
}

#[test]
fn one_that_was_there_for_a_while_is_tried_soon() {
    let mut play = elsewhere();
    delays(&mut play, 5);
    play.sees(Event::Ready);
    assert!(!play.life.is_unreachable());
    play.waits(59 * SECOND);
    assert_eq!(seconds(&delays(&mut play, 1)), [32.0], "it comes and goes");
    play.sees(Event::Ready);
    play.waits(60 * SECOND);
    assert_eq!(seconds(&delays(&mut play, 1)), [1.0]);
}

#[test]
fn one_that_does_not_answer_in_time_is_out_of_reach() {
    let mut play = elsewhere();
    assert_eq!(play.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    assert!(play.life.is_unreachable());
    play.sees(Event::Exited(Exit::UNSEEN));
    assert_eq!(play.life.reason.to_string(), "no answer within 10s");
    assert!(matches!(play.life.state, State::Backoff { .. }));
    assert_eq!(play.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
}

#[test]
fn one_whose_line_cannot_be_closed_is_tried_again_too() {
    let mut play = elsewhere();
    play.waits_for_deadline();
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    play.sees(Event::Exited(Exit::UNSEEN));
    assert_eq!(play.life.reason.to_string(), "no answer within 10s");
}

#[test]
fn one_that_refuses_is_given_up_at_once() {
    let (first, mut later) = (elsewhere(), elsewhere());
    later.sees(Event::Ready);
    for mut play in [first, later] {
        assert_eq!(play.sees(Event::Hopeless("401 Unauthorized".into())), None);
        assert_eq!(play.life.state, State::Failed);
        assert_eq!(play.life.reason.to_string(), "401 Unauthorized");
        assert_eq!(play.sees(Event::RulesChanged), Some(Effect::Launch), "perhaps it does now");
    }
}

#[test]
fn whoever_asks_for_it_need_not_wait() {
    for asked in [Event::StartRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut play = elsewhere();
        delays(&mut play, 5);
        play.sees(silence());
        assert_eq!(play.sees(asked), Some(Effect::Launch));
        assert!(!play.life.is_unreachable(), "nobody knows yet");
        assert_eq!(seconds(&delays(&mut play, 1)), [1.0]);
    }
}

#[test]
fn a_stop_is_heard_while_it_is_out_of_reach() {
    let mut play = elsewhere();
    play.sees(silence());
    assert_eq!(play.sees(Event::StopRequested), None);
    assert_eq!(play.life.state, State::Stopped);
    let mut play = elsewhere();
    play.waits_for_deadline();
    play.sees(Event::StopRequested);
    play.sees(silence());
    assert_eq!(play.life.state, State::Stopped);
}

#[test]
fn new_settings_are_tried_at_once_while_the_line_of_the_old_is_being_closed() {
    let mut play = elsewhere();
    play.waits_for_deadline();
    play.sees(Event::ProcessChanged);
    assert_eq!(play.sees(Event::Exited(Exit::UNSEEN)), Some(Effect::Launch));
    assert_eq!(play.life.reason, Reason::SettingsChanged);
}
