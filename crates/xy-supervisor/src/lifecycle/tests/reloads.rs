//! What a changed file brings.

//! What a changed file means.

use super::*;

#[test]
fn what_an_operator_stopped_stays_stopped() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut play = Play::running(steady());
        play.sees(Event::StopRequested);
        assert_eq!(play.sees(event.clone()), None);
        play.sees(clean_exit());
        assert_eq!(play.sees(event), None);
        assert_eq!(play.life.state, State::Stopped);
    }
}

#[test]
fn any_change_of_the_file_clears_a_failure() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut play = Play::failed();
        assert_eq!(play.sees(event), Some(Effect::Launch));
        assert_eq!(play.says(), "its file has changed");
    }
}

#[test]
fn another_process_replaces_the_living_one() {
    for mut play in [Play::starting(steady()), Play::running(steady())] {
        assert_eq!(play.sees(Event::ProcessChanged), Some(Effect::Stop));
        assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
        assert_eq!(play.says(), "its file has changed");
    }
}

#[test]
fn another_process_does_not_wait_for_the_back_off_of_the_old_one() {
    assert_eq!(Play::in_backoff(steady()).sees(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn another_process_starts_what_ended_by_itself() {
    let mut play = Play::running(steady());
    play.sees(clean_exit());
    assert_eq!(play.life.state, State::Stopped);
    assert_eq!(play.sees(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn other_rules_leave_a_living_or_waiting_one_alone() {
    for mut play in [Play::starting(steady()), Play::running(steady()), Play::in_backoff(steady())]
    {
        let before = play.life.clone();
        assert_eq!(play.sees(Event::RulesChanged), None);
        assert_eq!(play.life, before);
    }
}

#[test]
fn other_rules_judge_the_end_of_the_living_one() {
    let mut play = Play::running(steady());
    play.rules.restart.policy = RestartPolicy::Never;
    play.sees(Event::RulesChanged);
    play.sees(crash());
    assert_eq!(play.life.state, State::Failed);
}

#[test]
fn another_process_while_the_old_one_is_ended_for_not_being_ready_is_started_at_once() {
    let mut play = Play::starting(steady());
    play.waits_for_deadline();
    assert_eq!(play.sees(Event::ProcessChanged), None);
    assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.life.tally, Tally::default());
}
