//! Changed settings.

use super::*;

#[test]
fn stopped_server_stays_stopped() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut server = TestServer::running(steady());
        server.apply(Event::StopRequested);
        assert_eq!(server.apply(event.clone()), None);
        server.apply(clean_exit());
        assert_eq!(server.apply(event), None);
        assert_eq!(server.life.state, State::Stopped);
    }
}

#[test]
fn any_settings_change_clears_failure() {
    for event in [Event::ProcessChanged, Event::RulesChanged] {
        let mut server = TestServer::failed();
        assert_eq!(server.apply(event), Some(Effect::Launch));
        assert_eq!(server.says(), "its file has changed");
    }
}

#[test]
fn process_change_replaces_running_server() {
    for mut server in [TestServer::starting(steady()), TestServer::running(steady())] {
        assert_eq!(server.apply(Event::ProcessChanged), Some(Effect::Stop));
        assert_eq!(server.apply(clean_exit()), Some(Effect::Launch));
        assert_eq!(server.says(), "its file has changed");
    }
}

#[test]
fn process_change_skips_back_off() {
    assert_eq!(TestServer::in_backoff(steady()).apply(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn process_change_starts_exited_server() {
    let mut server = TestServer::running(steady());
    server.apply(clean_exit());
    assert_eq!(server.life.state, State::Stopped);
    assert_eq!(server.apply(Event::ProcessChanged), Some(Effect::Launch));
}

#[test]
fn rules_change_leaves_running_or_waiting_server_alone() {
    for mut server in [
        TestServer::starting(steady()),
        TestServer::running(steady()),
        TestServer::in_backoff(steady()),
    ] {
        let before = server.life.clone();
        assert_eq!(server.apply(Event::RulesChanged), None);
        assert_eq!(server.life, before);
    }
}

#[test]
fn new_rules_judge_end_of_running_server() {
    let mut server = TestServer::running(steady());
    server.rules.restart.policy = RestartPolicy::Never;
    server.apply(Event::RulesChanged);
    server.apply(crash());
    assert_eq!(server.life.state, State::Failed);
}

#[test]
fn process_change_during_failed_start_starts_at_once() {
    let mut server = TestServer::starting(steady());
    server.waits_for_deadline();
    assert_eq!(server.apply(Event::ProcessChanged), None);
    assert_eq!(server.apply(clean_exit()), Some(Effect::Launch));
    assert_eq!(server.life.tally, Tally::default());
}
