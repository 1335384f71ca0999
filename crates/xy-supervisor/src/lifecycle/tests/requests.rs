//! Requests of operators.

use super::*;

#[test]
fn stop_works_in_every_state() {
    let stopped = |mut server: TestServer| {
        if server.apply(Event::StopRequested) == Some(Effect::Stop) {
            server.apply(Event::Exited(KILLED));
        } else if server.life.state.is_live() {
            server.apply(Event::Exited(KILLED)); // It was being stopped already.
        }
        assert_eq!((server.life.state, server.life.wanted), (State::Stopped, Wanted::Down));
        assert_eq!(server.life.state.deadline(), None);
    };
    stopped(TestServer::new(steady()));
    stopped(TestServer::starting(steady()));
    stopped(TestServer::running(steady()));
    stopped(TestServer::in_backoff(steady()));
    stopped(TestServer::failed());
    let mut restarting = TestServer::running(steady());
    restarting.apply(Event::RestartRequested);
    stopped(restarting);
    let mut never_ready = TestServer::starting(steady());
    never_ready.waits_for_deadline();
    stopped(never_ready);
}

#[test]
fn stopped_server_is_left_alone() {
    let mut server = TestServer::running(rules(|it| it.restart.policy = RestartPolicy::Always));
    server.apply(Event::StopRequested);
    server.apply(crash());
    for event in [Event::Ready, crash(), Event::DeadlineReached, Event::RulesChanged] {
        assert_eq!(server.apply(event), None);
        assert_eq!(server.life.state, State::Stopped);
    }
}

#[test]
fn overdue_stop_is_forced_once() {
    let mut server = TestServer::running(steady());
    server.apply(Event::StopRequested);
    let grace = server.rules.stop.grace;
    assert_eq!(server.waits_for_deadline(), (grace + STOP_MARGIN, Some(Effect::Kill)));
    assert_eq!(server.life.state.deadline(), None, "a kill has no deadline");
    server.apply(Event::Exited(KILLED));
    assert_eq!(
        (server.life.state, server.says().as_str()),
        (State::Stopped, "stopped as requested")
    );
}

#[test]
fn forced_stop_keeps_what_follows() {
    let mut server = TestServer::running(steady());
    server.apply(Event::RestartRequested);
    assert_eq!(server.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(server.apply(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn second_stop_does_not_extend_deadline() {
    let mut server = TestServer::running(steady());
    server.apply(Event::StopRequested);
    server.waits(5 * SECOND);
    assert_eq!(server.apply(Event::StopRequested), None);
    assert_eq!(server.waits_for_deadline(), (15 * SECOND, Some(Effect::Kill)));
}

#[test]
fn restart_is_one_request() {
    let mut server = TestServer::running(steady());
    assert_eq!(server.apply(Event::RestartRequested), Some(Effect::Stop));
    assert_eq!(server.life.wanted, Wanted::Up);
    assert_eq!(server.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(server.says(), "restart requested");
}

#[test]
fn repair_restarts_broken_server_with_reason() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut server = TestServer::running(steady());
    assert_eq!(server.apply(repair()), Some(Effect::Stop));
    assert_eq!(server.says(), "self-test: it hangs");
    assert_eq!(server.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(server.says(), "self-test: it hangs", "the new life keeps the reason");
    assert_eq!(server.apply(repair()), None, "it is starting already");
    for mut server in [TestServer::in_backoff(steady()), TestServer::failed()] {
        assert_eq!(server.apply(repair()), Some(Effect::Launch));
        assert_eq!(server.says(), "self-test: it hangs");
    }
}

#[test]
fn repair_counts_as_restart() {
    let mut server = TestServer::failed();
    let before = server.life.tally.clone();
    server.apply(Event::RepairRequested("self-test: it is dead".into()));
    let tally = &server.life.tally;
    assert_eq!(tally.restart_count, before.restart_count + 1);
    assert_eq!(tally.restarts_total, before.restarts_total + 1);
    assert_eq!(tally.in_a_row, before.in_a_row + 1);
    assert_eq!(tally.recent_exits, before.recent_exits);
}

#[test]
fn failed_server_that_crashes_after_repair_fails_again() {
    let repair = || Event::RepairRequested("self-test: it is dead".into());
    let mut server = TestServer::starting(rules(|it| it.restart.max_attempts = 3));
    while server.life.state != State::Failed {
        server.apply(crash());
        if server.life.state.deadline().is_some() {
            server.waits_for_deadline();
        }
    }
    for _ in 0..5 {
        assert_eq!(server.apply(repair()), Some(Effect::Launch), "it gets one attempt");
        server.apply(crash());
        assert_eq!(server.life.state, State::Failed);
    }
    server.apply(Event::StartRequested);
    server.apply(crash());
    assert!(
        matches!(server.life.state, State::Backoff { .. }),
        "an operator's start resets the attempts"
    );
}

#[test]
fn successful_repair_resets_attempts() {
    let mut server = TestServer::failed();
    server.apply(Event::RepairRequested("self-test: it is dead".into()));
    server.apply(Event::Ready);
    server.waits(Duration::from_hours(1));
    server.apply(crash());
    assert!(matches!(server.life.state, State::Backoff { .. }), "{:?}", server.life);
}

#[test]
fn forced_repair_is_still_a_repair() {
    let mut server = TestServer::running(steady());
    server.apply(Event::RepairRequested("self-test: it hangs".into()));
    assert_eq!(server.waits_for_deadline().1, Some(Effect::Kill));
    assert_eq!(server.apply(Event::Exited(KILLED)), Some(Effect::Launch));
    assert_eq!(server.says(), "self-test: it hangs");
    assert_eq!(server.life.tally.restart_count, 1);
}

#[test]
fn repair_never_undoes_stop() {
    let repair = || Event::RepairRequested("self-test: it hangs".into());
    let mut server = TestServer::running(steady());
    server.apply(Event::StopRequested);
    assert_eq!(server.apply(repair()), None);
    server.apply(clean_exit());
    assert_eq!(server.apply(repair()), None);
    assert_eq!((server.life.state, server.life.wanted), (State::Stopped, Wanted::Down));
}

#[test]
fn restart_starts_stopped_server() {
    for mut server in
        [TestServer::new(steady()), TestServer::in_backoff(steady()), TestServer::failed()]
    {
        assert_eq!(server.apply(Event::RestartRequested), Some(Effect::Launch));
        assert_eq!(server.life.wanted, Wanted::Up);
    }
}

#[test]
fn start_while_stopping_follows_stop() {
    let mut server = TestServer::running(steady());
    server.apply(Event::StopRequested);
    assert_eq!(server.apply(Event::StartRequested), None, "only one life at a time");
    assert_eq!(server.life.wanted, Wanted::Up);
    assert_eq!(server.apply(Event::Exited(KILLED)), Some(Effect::Launch));
}

#[test]
fn start_skips_back_off() {
    let mut server = TestServer::in_backoff(steady());
    assert_eq!(server.apply(Event::StartRequested), Some(Effect::Launch));
}

#[test]
fn start_of_running_server_changes_nothing() {
    for mut server in [TestServer::starting(steady()), TestServer::running(steady())] {
        let before = server.life.clone();
        assert_eq!(server.apply(Event::StartRequested), None);
        assert_eq!(server.life, before);
    }
}

#[test]
fn readiness_during_a_stop_is_ignored() {
    let mut server = TestServer::starting(steady());
    server.apply(Event::StopRequested);
    let before = server.life.clone();
    assert_eq!(server.apply(Event::Ready), None);
    assert_eq!(server.life, before);
}

#[test]
fn retirement_is_final() {
    let retired = |mut server: TestServer| {
        if server.apply(Event::RetireRequested(Retirement::Removed)) == Some(Effect::Stop) {
            assert_eq!(server.apply(Event::StartRequested), None);
            assert_eq!(server.apply(Event::RestartRequested), None);
            assert_eq!(server.apply(Event::StopRequested), None);
            assert_eq!(server.apply(Event::ProcessChanged), None);
            assert_eq!(server.apply(crash()), None);
        }
        for event in [
            Event::StartRequested,
            Event::RestartRequested,
            Event::ProcessChanged,
            Event::RulesChanged,
            Event::DeadlineReached,
        ] {
            assert_eq!(server.apply(event), None);
            assert_eq!(server.life.state, State::Retired);
        }
    };
    retired(TestServer::new(steady()));
    retired(TestServer::starting(steady()));
    retired(TestServer::running(steady()));
    retired(TestServer::in_backoff(steady()));
    retired(TestServer::failed());
}

#[test]
fn retirement_overrides_any_stop() {
    for asked in [Event::StopRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut server = TestServer::running(steady());
        server.apply(asked);
        server.apply(Event::RetireRequested(Retirement::Removed));
        assert_eq!(server.apply(clean_exit()), None);
        assert_eq!(server.life.state, State::Retired);
    }
}

#[test]
fn successor_waits_for_predecessor_without_limit() {
    let mut server = TestServer::new(steady());
    server.life = Life::after_predecessor(Wanted::Up, false);
    assert_eq!(server.life.state.deadline(), None, "a predecessor is not killed");
    assert_eq!(server.apply(Event::Exited(Exit::UNKNOWN)), Some(Effect::Launch));
}

#[test]
fn unwanted_successor_stays_down() {
    let mut server = TestServer::new(steady());
    server.life = Life::after_predecessor(Wanted::Down, false);
    assert_eq!(server.apply(Event::Exited(Exit::UNKNOWN)), None);
    assert_eq!(server.life.state, State::Stopped);
}
