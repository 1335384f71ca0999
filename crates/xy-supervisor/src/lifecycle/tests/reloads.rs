//! Changed settings.

use super::*;

#[test]
fn stopped_server_stays_stopped() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut play = Play::running(steady());
        play.apply(Event::StopRequested);
        assert_eq!(play.apply(event.clone()), None);
        play.apply(clean_exit());
        assert_eq!(play.apply(event), None);
        assert_eq!(play.life.state, State::Stopped);
    }
}

#[test]
fn any_settings_change_clears_failure() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut play = Play::failed();
        assert_eq!(play.apply(event), Some(Effect::Launch));
        assert_eq!(play.says(), "its file has changed");
    }
}

#[test]
fn process_change_replaces_running_server() {
    for mut play in [Play::starting(steady()), Play::running(steady())] {
        assert_eq!(play.apply(Event::ProcessChanged), Some(Effect::Stop));
        assert_eq!(play.apply(clean_exit()), Some(Effect::Launch));
        assert_eq!(play.says(), "its file has changed");
    }
}

#[test]
fn process_change_skips_back_off() {
    assert_eq!(Play::in_backoff(steady()).apply(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn process_change_starts_exited_server() {
    let mut play = Play::running(steady());
    play.apply(clean_exit());
    assert_eq!(play.life.state, State::Stopped);
    assert_eq!(play.apply(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn rules_change_leaves_running_or_waiting_server_alone() {
    for mut play in [Play::starting(steady()), Play::running(steady()), Play::in_backoff(steady())]
    {
        let before = play.life.clone();
        assert_eq!(play.apply(Event::RulesChanged), None);
        assert_eq!(play.life, before);
    }
}

#[test]
fn new_rules_judge_end_of_running_server() {
    let mut play = Play::running(steady());
    play.rules.restart.policy = RestartPolicy::Never;
    play.apply(Event::RulesChanged);
    play.apply(crash());
    assert_eq!(play.life.state, State::Failed);
}

#[test]
fn process_change_during_failed_start_starts_at_once() {
    let mut play = Play::starting(steady());
    play.waits_for_deadline();
    assert_eq!(play.apply(Event::ProcessChanged), None);
    assert_eq!(play.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.life.tally, Tally::default());
}
