//! Remote servers, which cannot exit here, but can be unreachable.

use xy_config::settings::REMOTE_BACKOFF_MAX;

use super::*;

fn remote() -> TestServer {
    let mut server = TestServer::new(rules(|it| it.restart.backoff_max = REMOTE_BACKOFF_MAX));
    server.is_remote = true;
    assert_eq!(server.apply(Event::StartRequested), Some(Effect::Launch));
    server
}

fn silence() -> Event {
    Event::Unreachable("connection refused".into())
}

/// Lets the server be unreachable repeatedly. Returns the delays in between.
fn delays(server: &mut TestServer, times: usize) -> Vec<Duration> {
    let mut delays = Vec::new();
    for _ in 0..times {
        assert_eq!(server.apply(silence()), None);
        let (waited, effect) = server.waits_for_deadline();
        assert_eq!(effect, Some(Effect::Launch));
        delays.push(waited);
    }
    delays
}

#[test]
fn unreachable_server_is_retried_forever_with_growing_delays() {
    let mut server = remote();
    let waited = delays(&mut server, 9);
    assert_eq!(seconds(&waited), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    delays(&mut server, 200);
    assert_eq!(server.life.reason, Reason::ReconnectAttempt { attempt: 210 });
    assert_eq!((server.life.tally.restart_count, server.life.tally.restarts_total), (0, 0));
}

#[test]
fn reconnect_delay_has_jitter() {
    let mut server = remote();
    server.rules.restart.jitter = true;
    server.random = 255;
    assert_eq!(seconds(&delays(&mut server, 3)), [1.25, 2.5, 5.0]);
}

#[test]
fn reconnect_delay_has_a_minimum() {
    let mut server = remote();
    server.rules.restart.backoff_initial = Duration::ZERO;
    server.rules.restart.backoff_max = Duration::ZERO;
    assert_eq!(delays(&mut server, 2), [SHORT_LIFE_DELAY; 2]);
}

#[test]
fn stable_connection_resets_reconnect_delay() {
    let mut server = remote();
    delays(&mut server, 5);
    server.apply(Event::Ready);
    assert!(!server.life.is_unreachable());
    server.waits(59 * SECOND);
    assert_eq!(seconds(&delays(&mut server, 1)), [32.0], "a short connection resets nothing");
    server.apply(Event::Ready);
    server.waits(60 * SECOND);
    assert_eq!(seconds(&delays(&mut server, 1)), [1.0]);
}

#[test]
fn server_without_answer_in_time_is_unreachable() {
    let mut server = remote();
    assert_eq!(server.waits_for_deadline(), (10 * SECOND, Some(Effect::Stop)));
    assert!(server.life.is_unreachable());
    server.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(server.life.reason.to_string(), "no answer within 10s");
    assert!(matches!(server.life.state, State::Backoff { .. }));
    assert_eq!(server.waits_for_deadline(), (SECOND, Some(Effect::Launch)));
}

#[test]
fn server_with_stuck_disconnect_is_retried() {
    let mut server = remote();
    server.waits_for_deadline();
    assert_eq!(server.waits_for_deadline().1, Some(Effect::Kill));
    server.apply(Event::Exited(Exit::UNKNOWN));
    assert_eq!(server.life.reason.to_string(), "no answer within 10s");
}

#[test]
fn refusing_server_is_given_up_at_once() {
    let (first, mut later) = (remote(), remote());
    later.apply(Event::Ready);
    for mut server in [first, later] {
        assert_eq!(server.apply(Event::Unrecoverable("401 Unauthorized".into())), None);
        assert_eq!(server.life.state, State::Failed);
        assert_eq!(server.life.reason.to_string(), "401 Unauthorized");
        assert_eq!(
            server.apply(Event::RulesChanged),
            Some(Effect::Launch),
            "the new rules may help"
        );
    }
}

#[test]
fn start_does_not_wait_for_reconnect_delay() {
    for asked in [Event::StartRequested, Event::RestartRequested, Event::ProcessChanged] {
        let mut server = remote();
        delays(&mut server, 5);
        server.apply(silence());
        assert_eq!(server.apply(asked), Some(Effect::Launch));
        assert!(!server.life.is_unreachable(), "that is not known yet");
        assert_eq!(seconds(&delays(&mut server, 1)), [1.0]);
    }
}

#[test]
fn unreachable_server_can_be_stopped() {
    let mut server = remote();
    server.apply(silence());
    assert_eq!(server.apply(Event::StopRequested), None);
    assert_eq!(server.life.state, State::Stopped);
    let mut server = remote();
    server.waits_for_deadline();
    server.apply(Event::StopRequested);
    server.apply(silence());
    assert_eq!(server.life.state, State::Stopped);
}

#[test]
fn new_settings_are_tried_when_the_old_connection_has_closed() {
    let mut server = remote();
    server.waits_for_deadline();
    server.apply(Event::ProcessChanged);
    assert_eq!(server.apply(Event::Exited(Exit::UNKNOWN)), Some(Effect::Launch));
    assert_eq!(server.life.reason, Reason::SettingsChanged);
}
