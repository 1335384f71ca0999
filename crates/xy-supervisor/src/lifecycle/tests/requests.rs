//! Requests of operators.

use super::*;

#[test]
fn stop_works_in_every_state() {
    let stopped = |mut play: Play| {
        if play.apply(Event::StopRequested) == Some(Effect::Stop) {
            play.apply(Event::Exited(KILLED));
        } else if play.life.state.is_live() {
            play.apply(Event::Exited(KILLED)); // It was being stopped already.
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
    restarting.apply(Event::RestartRequested);
    stopped(restarting);
    let mut never_ready = Play::starting(steady());
    never_ready.waits_for_deadline();
    stopped(never_ready);
}

#[test]
fn stopped_server_is_left_alone() {
    let mut play = Play::running(rules(|it| it.restart.policy = RestartPolicy::Always));
    play.apply(Event::StopRequested);
    play.apply(crash());
    for event in [Event::Ready, crash(), Event::DeadlineReached, Event::RulesChanged] {
        assert_eq!(play.apply(event), None);
        assert_eq!(play.life.state, State::Stopped);
    }
}

#[test]
fn overdue_stop_is_forced_once() {
    let mut play = Play::running(steady());
    play.apply(Event::StopRequested);
    let grace = play.rules.stop.grace;
    assert_eq!(play.waits_for_deadline(), (grace + STOP_MARGIN, Some(Effect::Kill)));
    assert_eq!(play.life.state.deadline(), None, "a kill has no deadline");
    play.apply(Event::Exited(KILLED));
    assert_eq!((play.life.state, play.says().as_str()), (State::Stopped, "stopped as requested"));
}

#[test]
fn forced_stop_keeps_what_follows() {
    let mut play = Play::running(steady());
    play.apply(Event::RestartRequested);
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(play.apply(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn second_stop_does_not_extend_deadline() {
    let mut play = Play::running(steady());
    play.apply(Event::StopRequested);
    play.waits(5 * SECOND);
    assert_eq!(play.apply(Event::StopRequested), None);
    assert_eq!(play.waits_for_deadline(), (15 * SECOND, Some(Effect::Kill)));
}

#[test]
fn restart_is_one_request() {
    let mut play = Play::running(steady());
    assert_eq!(play.apply(Event::RestartRequested), Some(Effect::Stop));
    assert_eq!(play.life.wanted, Wanted::Up);
    assert_eq!(play.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.says(), "restart requested");
}

#[test]
fn repair_restarts_broken_server_with_reason() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut play = Play::running(steady());
    assert_eq!(play.apply(repair()), Some(Effect::Stop));
    assert_eq!(play.says(), "self-test: it hangs");
    assert_eq!(play.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(play.says(), "self-test: it hangs", "the new life keeps the reason");
    assert_eq!(play.apply(repair()), None, "it is starting already");
    for mut play in [Play::in_backoff(steady()), Play::failed()] {
        assert_eq!(play.apply(repair()), Some(Effect::Launch));
        assert_eq!(play.says(), "self-test: it hangs");
    }
}

#[test]
fn repair_counts_as_restart() {
    let mut play = Play::failed();
    let before = play.life.tally.clone();
    play.apply(Event::RepairRequested("self-test: it is dead".into()));
    let tally = &play.life.tally;
    assert_eq!(tally.restart_count, before.restart_count + 1);
    assert_eq!(tally.restarts_total, before.restarts_total + 1);
    assert_eq!(tally.in_a_row, before.in_a_row + 1);
    assert_eq!(tally.recent_exits, before.recent_exits);
}

#[test]
fn failed_server_that_crashes_after_repair_fails_again() {
    let repair = || Event::RepairRequested("self-test: it is dead".into());
    let mut play = Play::starting(rules(|it| it.restart.max_attempts = 3));
    while play.life.state != State::Failed {
        play.apply(crash());
        if play.life.state.deadline().is_some() {
            play.waits_for_deadline();
        }
    }
    for _ in 0..5 {
        assert_eq!(play.apply(repair()), Some(Effect::Launch), "it gets one attempt");
        play.apply(crash());
        assert_eq!(play.life.state, State::Failed);
    }
    play.apply(Event::StartRequested);
    play.apply(crash());
    assert!(
        matches!(play.life.state, State::Backoff { .. }),
        "an operator's start resets the attempts"
    );
}

#[test]
fn successful_repair_resets_attempts() {
    let mut play = Play::failed();
    play.apply(Event::RepairRequested("self-test: it is dead".into()));
    play.apply(Event::Ready);
    play.waits(Duration::from_hours(1));
    play.apply(crash());
    assert!(matches!(play.life.state, State::Backoff { .. }), "{:?}", play.life);
}

#[test]
fn forced_repair_is_still_a_repair() {
    let mut play = Play::running(steady());
    play.apply(Event::RepairRequested("self-test: it hangs".into()));
    assert_eq!(play.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(play.apply(Event::Exited(KILLED)), Some(Effect::Launch));
    assert_eq!(play.says(), "self-test: it hangs");
    assert_eq!(play.life.tally.restart_count, 1);
}

#[test]
fn repair_never_undoes_stop() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut play = Play::running(steady());
    play.apply(Event::StopRequested);
    assert_eq!(play.apply(repair()), None);
    play.apply(clean_exit());
    assert_eq!(play.apply(repair()), None);
    assert_eq!((play.life.state, play.life.wanted), (State::Stopped, Wanted::Down));
}

#[test]
fn restart_starts_stopped_server() {
    for mut play in [Play::new(steady()), Play::in_backoff(steady()), Play::failed()] {
        assert_eq!(play.apply(Event::RestartRequested), Some(Effect::Launch));
        assert_eq!(play.life.wanted, Wanted::Up);
    }
}

#[test]
fn start_while_stopping_follows_stop() {
    let mut play = Play::running(steady());
    play.apply(Event::StopRequested);
    assert_eq!(play.apply(Event::StartRequested), None, "only one life at a time");
    assert_eq!(play.life.wanted, Wanted::Up);
    assert_eq!(play.apply(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn start_skips_back_off() {
    let mut play = Play::in_backoff(steady());
    assert_eq!(play.apply(Event::StartRequested), Some(Effect::Launch));
}

#[test]
fn start_of_running_server_changes_nothing() {
    for mut play in [Play::starting(steady()), Play::running(steady())] {
        let before = play.life.clone();
        assert_eq!(play.apply(Event::StartRequested), None);
        assert_eq!(play.life, before);
    }
}

#[test]
fn readiness_during_a_stop_is_ignored() {
    let mut play = Play::starting(steady());
    play.apply(Event::StopRequested);
    let before = play.life.clone();
    assert_eq!(play.apply(Event::Ready), None);
    assert_eq!(play.life, before);
}

#[test]
fn retirement_is_final() {
    let retired = |mut play: Play| {
        if play.apply(Event::RetireRequested(Retirement::Removed)) == Some(Effect::Stop) {
            assert_eq!(play.apply(Event::StartRequested), None);
            assert_eq!(play.apply(Event::RestartRequested), None);
            assert_eq!(play.apply(Event::StopRequested), None);
            assert_eq!(play.apply(Event::ProcessChanged), None);
            assert_eq!(play.apply(crash()), None);
        }
        for event in [
            Event::StartRequested,
            Event::RestartRequested,
            Event::ProcessChanged,
            Event::RulesChanged,
            Event::DeadlineReached,
        ] {
            assert_eq!(play.apply(event), None);
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
fn retirement_overrides_any_stop() {
    for asked in [Event::StopRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut play = Play::running(steady());
        play.apply(asked);
        play.apply(Event::RetireRequested(Retirement::Removed));
        assert_eq!(play.apply(clean_exit()), None);
        assert_eq!(play.life.state, State::Retired);
    }
}

#[test]
fn successor_waits_for_predecessor_without_limit() {
    let mut play = Play::new(steady());
    play.life = Life::after_predecessor(Wanted::Up, false);
    assert_eq!(play.life.state.deadline(), None, "a predecessor is not killed");
    assert_eq!(play.apply(Event::Exited(Exit::UNKNOWN)), Some(Effect::Launch));
}

#[test]
fn unwanted_successor_stays_down() {
    let mut play = Play::new(steady());
    play.life = Life::after_predecessor(Wanted::Down, false);
    assert_eq!(play.apply(Event::Exited(Exit::UNKNOWN)), None);
    assert_eq!(play.life.state, State::Stopped);
}
