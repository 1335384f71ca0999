//! Servers with an endpoint: local processes with a port, and remote servers.

use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerState, Transport};
use xy_supervisor::fleet::Operation;
use xy_supervisor::lifecycle::{Exit, Reason, State};
use xy_supervisor::protocol::{Connection, DriverCommand, DriverEvent, ServerIo};

use crate::stage::{Daemon, Home, handover, listening, remote, script};

/// Writes to stdout and stderr and lives on.
const TALKS: &str = "echo out; echo err >&2; exec sleep 1000";

const LIVES: &str = "exec sleep 1000";

/// Returns the connection of a server with an endpoint, which is ready now.
fn ready_connection(daemon: &mut Daemon) -> Connection {
    let connection = daemon.connection();
    assert!(matches!(connection.io, ServerIo::Endpoint));
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    connection
}

#[test]
fn server_with_port_is_ready_by_driver_and_logs_stdout() {
    for transport in [Transport::Http, Transport::Sse] {
        let home = Home::new();
        let mut daemon = home.daemon();
        daemon.apply(listening(transport, TALKS));
        let connection = daemon.connection();
        assert!(matches!(connection.io, ServerIo::Endpoint));
        assert!(connection.handover.is_none() && connection.settings.endpoint().is_some());
        let now = daemon.wait_until(|now| now.pid.is_some());
        assert_eq!((now.state(), now.pid), (ServerState::Starting, connection.pid));
        daemon.wait_until_logged("out");
        daemon.wait_until_logged("err");
        daemon.report(&connection, DriverEvent::UnparsedOutput(b"no message".to_vec()));
        daemon.report(&connection, DriverEvent::Ready);
        daemon.wait_for(ServerState::Running);
        daemon.wait_until_logged("no message");
        let mut log = daemon.log();
        log.sort();
        assert_eq!(log, ["err", "no message", "out"]);
        drop(connection);
        daemon.shutdown();
    }
}

#[test]
fn driver_of_endpoint_learns_of_stop_and_exit() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, LIVES));
    let mut connection = ready_connection(&mut daemon);
    daemon.operate(Operation::Stop);
    assert!(matches!(daemon.next_command(&mut connection), Some(DriverCommand::Close { .. })));
    assert!(matches!(
        daemon.next_command(&mut connection),
        Some(DriverCommand::Exited(Exit { signal: Some(15), .. }))
    ));
    drop(connection);
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

#[test]
fn driver_of_endpoint_learns_of_crash_and_gets_next_life() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, "sleep 0.2; exit 3"));
    let mut connection = ready_connection(&mut daemon);
    let end = daemon.next_command(&mut connection);
    assert!(matches!(end, Some(DriverCommand::Exited(exit)) if exit == Exit::code(3)), "{end:?}");
    let first = connection.pid;
    drop(connection);
    let connection = daemon.connection();
    assert_ne!(connection.pid, first);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn protocol_error_at_endpoint_stops_server_and_counts() {
    let wrongs: [fn(String) -> DriverEvent; 3] =
        [DriverEvent::ProtocolError, DriverEvent::Unreachable, DriverEvent::Unrecoverable];
    for wrong in wrongs {
        let home = Home::new();
        let mut daemon = home.daemon();
        daemon.apply(listening(Transport::Http, LIVES));
        let connection = daemon.connection();
        daemon.report(&connection, wrong("it answers 404".into()));
        drop(connection);
        let connection = daemon.connection();
        assert_eq!(daemon.wait_until(|now| now.pid.is_some()).life.tally.restart_count, 1);
        drop(connection);
        daemon.shutdown();
    }
}

#[test]
fn next_daemon_gets_note_of_endpoint_server() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, TALKS));
    let connection = ready_connection(&mut daemon);
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Note("session \"1\"".into()));
    daemon.hand_over(connection, b"");

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert!(matches!(connection.io, ServerIo::Endpoint));
    assert_eq!((connection.pid, handover(&connection)), (pid, ("session \"1\"", "")));
    assert_eq!(daemon.wait_for(ServerState::Running).life.reason, Reason::Adopted);
    daemon.report(&connection, DriverEvent::UnparsedOutput(b"last".to_vec()));
    daemon.wait_until_logged("last");
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!((connection.pid, handover(&connection)), (pid, ("session \"1\"", "")));
    drop(connection);
    daemon.shutdown();
}

#[test]
fn remote_server_starts_anew_with_every_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(remote());
    let connection = ready_connection(&mut daemon);
    assert!(connection.pid.is_none());
    daemon.report(&connection, DriverEvent::Note("session".into()));
    daemon.hand_over(connection, b"");

    let mut daemon = home.daemon();
    daemon.apply(remote());
    let connection = ready_connection(&mut daemon);
    assert!(connection.handover.is_none());
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    daemon.apply(remote());
    drop(ready_connection(&mut daemon));
    daemon.shutdown();
}

#[test]
fn each_client_can_have_its_own_remote_connection() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ServerSettings { isolation: Isolation::Client, ..remote() });
    let (one, other) = (daemon.hold(1), daemon.hold(2));
    let (mut first, second) = (daemon.connection(), daemon.connection());
    assert_eq!([&first, &second].map(|it| it.key.to_string()), ["one@1", "one@2"]);
    daemon.report(&second, DriverEvent::Ready);
    daemon.within(other.wait_until(|now| now.state() == ServerState::Running));
    daemon.release(1);
    assert!(matches!(daemon.next_command(&mut first), Some(DriverCommand::Close { .. })));
    drop(first);
    daemon.within(one.wait_until(|now| now.life.state == State::Retired));
    assert_eq!(other.now().state(), ServerState::Running);
    drop(second);
    daemon.shutdown();
}

#[test]
fn server_can_become_remote_and_local_again() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    assert!(connection.pid.is_some());
    daemon.apply(remote());
    drop(connection);
    let connection = ready_connection(&mut daemon);
    assert!(connection.pid.is_none());
    assert_eq!(daemon.wait_for(ServerState::Running).pid, None);
    daemon.apply(script(LIVES));
    drop(connection);
    let connection = daemon.connection();
    assert!(connection.pid.is_some() && matches!(connection.io, ServerIo::Pipes { .. }));
    drop(connection);
    daemon.shutdown();
}
