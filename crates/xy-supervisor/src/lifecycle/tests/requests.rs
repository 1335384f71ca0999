//! What operators ask for.

//! What operators may ask, and when.

use super::*;

#[test]
fn a_stop_works_in_every_state() {
    let stopped = |mut play: Play| {
        if play.sees(Event::StopRequested) == Some(Effect::Stop) {
            play.sees(Event::Exited(KILLED));
        } else if play.life.state.is_live() {
            play.sees(Event::Exited(KILLED)); // It was being stopped already.
        }
        assert_eq!((play.life.state, play.life.wanted), (State::Stopped, Wanted::Down));
        assert_eq!(play.life.state.deadline(), None);
    };
    stopped(Play::new(steady()));
    stopped(Play::starting(steady()));
    stopped(Play::running(steady()));
    stopped(Play::in_backoff(steady()));
    stopped(Play::failed());
    let mut restarting = Play::running(steady());
    restarting.sees(Event::RestartRequested);
    stopped(restarting);
    let mut never_ready = Play::starting(steady());
    never_ready.waits_for_deadline();
    stopped(never_ready);
}

#[test]
fn what_an_operator_stopped_is_left_alone() {
    let mut play = Play::running(rules(|it| it.restart.policy = RestartPolicy::Always));
    play.sees(Event::StopRequested);
    play.sees(crash());
    for event in [Event::Ready, crash(), Event::DeadlineReached, Event::RulesChanged] {
        assert_eq!(play.sees(event), None);
        assert_eq!(play.life.state, State::Stopped);
    }
}

#[test]
fn a_stop_that_takes_too_long_is_forced_once() {
    let mut play = Play::running(steady());
    play.sees(Event::StopRequested);
    let grace = play.rules.stop.grace;
    assert_eq!(play.waits_for_deadline(), (grace + STOP_MARGIN, Some(Effect::Kill)));
    assert_eq!(play.life.state.deadline(), None, "there is nothing stronger to wait for");
    play.sees(Event::Exited(KILLED));
    assert_eq!((play.life.state, play.says().as_str()), (State::Stopped, "stopped as requested"));
}

#[test]
fn a_forced_end_does_not_forget_what_comes_after_it() {
    let mut play = Play::running(steady());
    play.sees(Event::RestartRequested);
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn a_second_stop_does_not_give_it_more_time() {
    let mut play = Play::running(steady());
    play.sees(Event::StopRequested);
    play.waits(5 * SECOND);
    assert_eq!(play.sees(Event::StopRequested), None);
    assert_eq!(play.waits_for_deadline(), (15 * SECOND, Some(Effect::Kill)));
}

#[test]
fn a_restart_is_one_thing() {
    let mut play = Play::running(steady());
    assert_eq!(play.sees(Event::RestartRequested), Some(Effect::Stop));
    assert_eq!(play.life.wanted, Wanted::Up);
    assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.says(), "restart requested");
}

#[test]
fn a_repair_starts_again_what_is_broken_and_tells_why() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut play = Play::running(steady());
    assert_eq!(play.sees(repair()), Some(Effect::Stop));
    assert_eq!(play.says(), "self-test: it hangs");
    assert_eq!(play.sees(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.says(), "self-test: it hangs", "so the new life is told why it began");
    assert_eq!(play.sees(repair()), None, "it has begun already");
    for mut play in [Play::in_backoff(steady()), Play::failed()] {
        assert_eq!(play.sees(repair()), Some(Effect::Launch));
        assert_eq!(play.says(), "self-test: it hangs");
    }
}

#[test]
fn a_repair_is_a_restart_and_does_not_forget_the_others() {
    let mut play = Play::failed();
    let before = play.life.tally.clone();
    play.sees(Event::RepairRequested("self-test: it is dead".into()));
    let tally = &play.life.tally;
    assert_eq!(tally.restart_count, before.restart_count + 1);
    assert_eq!(tally.restarts_total, before.restarts_total + 1);
    assert_eq!(tally.in_a_row, before.in_a_row + 1);
    assert_eq!(tally.recent_exits, before.recent_exits);
}

#[test]
fn one_that_had_failed_and_crashes_after_its_repair_has_failed_again_at_once() {
    let repair = || Event::RepairRequested("self-test: it is dead".into());
    let mut play = Play::starting(rules(|it| it.restart.max_attempts = 3));
    while play.life.state != State::Failed {
        play.sees(crash());
        if play.life.state.deadline().is_some() {
            play.waits_for_deadline();
        }
    }
    for _ in 0..5 {
        assert_eq!(play.sees(repair()), Some(Effect::Launch), "it is tried once");
        play.sees(crash());
        assert_eq!(play.life.state, State::Failed);
    }
    play.sees(Event::StartRequested);
    play.sees(crash());
    assert!(matches!(play.life.state, State::Backoff { .. }), "an operator begins anew");
}

#[test]
fn a_repair_that_holds_ends_the_row() {
    let mut play = Play::failed();
    play.sees(Event::RepairRequested("self-test: it is dead".into()));
    play.sees(Event::Ready);
    play.waits(Duration::from_hours(1));
    play.sees(crash());
    assert!(matches!(play.life.state, State::Backoff { .. }), "{:?}", play.life);
}

#[test]
fn a_repair_that_has_to_be_forced_is_still_one() {
    let mut play = Play::running(steady());
    play.sees(Event::RepairRequested("self-test: it hangs".into()));
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
    assert_eq!(play.says(), "self-test: it hangs");
    assert_eq!(play.life.tally.restart_count, 1);
}

#[test]
fn a_repair_never_undoes_a_stop() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut play = Play::running(steady());
    play.sees(Event::StopRequested);
    assert_eq!(play.sees(repair()), None);
    play.sees(clean_exit());
    assert_eq!(play.sees(repair()), None);
    assert_eq!((play.life.state, play.life.wanted), (State::Stopped, Wanted::Down));
}

#[test]
fn a_restart_starts_what_is_down() {
    for mut play in [Play::new(steady()), Play::in_backoff(steady()), Play::failed()] {
        assert_eq!(play.sees(Event::RestartRequested), Some(Effect::Launch));
        assert_eq!(play.life.wanted, Wanted::Up);
    }
}

#[test]
fn a_start_while_stopping_is_done_after_the_stop() {
    let mut play = Play::running(steady());
    play.sees(Event::StopRequested);
    assert_eq!(play.sees(Event::StartRequested), None, "nothing starts beside the old life");
    assert_eq!(play.life.wanted, Wanted::Up);
    assert_eq!(play.sees(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn a_start_does_not_wait_for_the_back_off() {
    let mut play = Play::in_backoff(steady());
    assert_eq!(play.sees(Event::StartRequested), Some(Effect::Launch));
}

#[test]
fn a_start_of_what_is_up_changes_nothing() {
    for mut play in [Play::starting(steady()), Play::running(steady())] {
        let before = play.life.clone();
        assert_eq!(play.sees(Event::StartRequested), None);
        assert_eq!(play.life, before);
    }
}

#[test]
fn news_of_readiness_comes_too_late_for_a_stop() {
    let mut play = Play::starting(steady());
    play.sees(Event::StopRequested);
    let before = play.life.clone();
    assert_eq!(play.sees(Event::Ready), None);
    assert_eq!(play.life, before);
}

#[test]
fn retirement_is_final() {
    let retired = |mut play: Play| {
        if play.sees(Event::RetireRequested(Retirement::Removed)) == Some(Effect::Stop) {
            assert_eq!(play.sees(Event::StartRequested), None);
            assert_eq!(play.sees(Event::RestartRequested), None);
            assert_eq!(play.sees(Event::StopRequested), None);
            assert_eq!(play.sees(Event::ProcessChanged), None);
            assert_eq!(play.sees(crash()), None);
        }
        for event in [
            Event::StartRequested,
            Event::RestartRequested,
            Event::ProcessChanged,
            Event::RulesChanged,
            Event::DeadlineReached,
        ] {
            assert_eq!(play.sees(event), None);
            assert_eq!(play.life.state, State::Retired);
        }
    };
    retired(Play::new(steady()));
    retired(Play::starting(steady()));
    retired(Play::running(steady()));
    retired(Play::in_backoff(steady()));
    retired(Play::failed());
}

#[test]
fn whatever_a_stop_was_for_retirement_takes_its_place() {
    for asked in [Event::StopRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut play = Play::running(steady());
        play.sees(asked);
        play.sees(Event::RetireRequested(Retirement::Removed));
        assert_eq!(play.sees(clean_exit()), None);
        assert_eq!(play.life.state, State::Retired);
    }
}

#[test]
fn a_successor_waits_for_its_predecessor_without_a_limit() {
    let mut play = Play::new(steady());
    play.life = Life::after_predecessor(Wanted::Up, false);
    assert_eq!(play.life.state.deadline(), None, "it is not ours to force");
    assert_eq!(play.sees(Event::Exited(Exit::UNSEEN)), Some(Effect::Launch));
}

#[test]
fn a_successor_that_is_not_wanted_stays_down() {
    let mut play = Play::new(steady());
    play.life = Life::after_predecessor(Wanted::Down, false);
    assert_eq!(play.sees(Event::Exited(Exit::UNSEEN)), None);
    assert_eq!(play.life.state, State::Stopped);
}
