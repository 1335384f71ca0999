//! The seam to protocol drivers, with real shims: the test is the driver, and daemons are killed or
//! replaced.

#![expect(clippy::unwrap_used, reason = "everything here is a test")]

use std::sync::Arc;
use std::time::Duration;

use xy_protocol::server::ServerState;
use xy_supervisor::fleet::Operation;
use xy_supervisor::lifecycle::{Exit, Reason};
use xy_supervisor::protocol::{Connection, DriverCommand, DriverEvent, LogOnlyDriver, ServerIo};

use crate::stage::{Home, Probe, handover, pipes, ready_by, script};

mod endpoints;
mod stage;

const SECOND: Duration = Duration::from_secs(1);

/// Lives until its stdin is closed.
const LIVES: &str = "read -r line";

/// Writes half a message when it receives a line, and lives on.
const SAYS_HALF: &str =
    "read -r line; printf 'whole\\nha'; read -r line; printf 'lf\\n'; read -r line";

fn write(connection: &Connection, text: &str) {
    assert_eq!(rustix::io::write(pipes(connection).0, text.as_bytes()), Ok(text.len()));
}

// Readiness.

#[test]
fn server_is_ready_when_driver_reports_it() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    assert_eq!(connection.key.to_string(), "one");
    assert!(connection.handover.is_none());
    let starting = daemon.wait_until(|now| now.pid.is_some());
    assert_eq!((starting.state(), starting.pid), (ServerState::Starting, connection.pid));
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn process_probe_makes_server_ready_without_driver() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, 10 * SECOND, script(LIVES)));
    daemon.wait_for(ServerState::Running);
    let connection = daemon.connection();
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn rules_change_to_process_probe_makes_server_ready() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    daemon.wait_until(|now| now.pid.is_some());
    daemon.apply(ready_by(Probe::Process, 10 * SECOND, script(LIVES)));
    assert_eq!(daemon.wait_for(ServerState::Running).pid, connection.pid);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn server_that_never_answers_is_stopped_and_counted() {
    let home = Home::new();
    let mut daemon = home.daemon();
    let within = Duration::from_millis(300);
    daemon.apply(ready_by(Probe::Mcp, within, script(LIVES)));
    let first = daemon.connection();
    let failed = daemon.wait_for(ServerState::Stopping);
    assert_eq!(failed.life.reason, Reason::NeverReady { within, unparsed_output: None });
    drop(first);
    let second = daemon.connection();
    assert_eq!(daemon.instance().now().life.tally.restart_count, 1);
    drop(second);
    daemon.shutdown();
}

#[test]
fn protocol_error_stops_server_and_counts() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let mut first = daemon.connection();
    daemon.report(&first, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.report(&first, DriverEvent::ProtocolError("it speaks gibberish".into()));
    let ending = daemon.wait_for(ServerState::Stopping);
    assert_eq!(ending.life.reason.to_string(), "it speaks gibberish");
    assert!(matches!(daemon.next_command(&mut first), Some(DriverCommand::Close { .. })));
    drop(first);
    let second = daemon.connection();
    let now = daemon.instance().now();
    assert_eq!(now.life.tally.restart_count, 1);
    let backoff = now.transitions.iter().find(|it| it.to == ServerState::Restarting).unwrap();
    assert_eq!(backoff.reason.to_string(), "it speaks gibberish");
    drop(second);
    daemon.shutdown();
}

#[test]
fn closed_stdout_of_living_server_is_protocol_error() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("exec >&-; read -r line"));
    let connection = daemon.connection();
    daemon.report(&connection, DriverEvent::StdoutClosed);
    let ending = daemon.wait_for(ServerState::Stopping);
    assert_eq!(ending.life.reason.to_string(), "it closed its stdout");
    drop(connection);
    daemon.shutdown();
}

#[test]
fn closed_stdout_of_exiting_server_is_plain_exit() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("exec >&-; read -r line; exit 3"));
    let mut connection = daemon.connection();
    daemon.report(&connection, DriverEvent::StdoutClosed);
    write(&connection, "end\n");
    let ended = daemon.next_command(&mut connection);
    assert!(
        matches!(ended, Some(DriverCommand::Exited(exit)) if exit == Exit::code(3)),
        "{ended:?}"
    );
    drop(connection);
    daemon.wait_until(|now| now.last_exit.is_some_and(|seen| seen.exit == Exit::code(3)));
    daemon.shutdown();
}

// Unparsed output.

#[test]
fn unparsed_output_is_logged_in_order() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    let texts: Vec<String> = (0..200).map(|number| format!("line {number}")).collect();
    for text in &texts {
        daemon.report(&connection, DriverEvent::UnparsedOutput(text.clone().into_bytes()));
    }
    daemon.report(&connection, DriverEvent::UnparsedOutput(b"two\nin one".to_vec()));
    let expected: Vec<&str> = texts.iter().map(String::as_str).chain(["two", "in one"]).collect();
    daemon.wait_for_log(&expected);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn last_output_of_server_is_awaited() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script("read -r line; echo last words")));
    let mut connection = daemon.connection();
    write(&connection, "end\n");
    let ended = daemon.next_command(&mut connection);
    assert!(
        matches!(ended, Some(DriverCommand::Exited(exit)) if exit == Exit::code(0)),
        "{ended:?}"
    );
    let words = daemon.read(&connection, "last words\n".len());
    daemon.report(&connection, DriverEvent::UnparsedOutput(words.trim_end().into()));
    drop(connection);
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.log(), ["last words"]);
    daemon.shutdown();
}

#[test]
fn log_only_driver_logs_everything() {
    let home = Home::new();
    let daemon = home.daemon_with(Arc::new(LogOnlyDriver));
    let talks = "echo one; echo; printf 'thr'; printf 'ee\\nthe end'";
    daemon.apply(ready_by(Probe::Process, SECOND, script(talks)));
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.log(), ["one", "", "three", "the end"]);
    daemon.shutdown();
}

#[test]
fn log_only_driver_loses_nothing_of_a_flood() {
    let home = Home::new();
    let daemon = home.daemon_with(Arc::new(LogOnlyDriver));
    let floods = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    daemon.apply(ready_by(Probe::Process, SECOND, script(floods)));
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.instance().logs().next_seq(), 20_001);
    assert_eq!(daemon.log().last().unwrap(), "19999");
    daemon.shutdown();
}

// The end of a life, for the driver.

#[test]
fn driver_learns_of_stop_and_exit() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("read -r line; exit 5"));
    let mut connection = daemon.connection();
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.operate(Operation::Stop);
    assert!(matches!(daemon.next_command(&mut connection), Some(DriverCommand::Close { .. })));
    let Connection { io, events, mut commands, .. } = connection;
    let ServerIo::Pipes { stdin, stdout } = io else { panic!("it has no pipes") };
    drop(stdin); // The last writer of the pipe.
    let end = daemon.within(commands.recv());
    assert!(matches!(end, Some(DriverCommand::Exited(exit)) if exit == Exit::code(5)), "{end:?}");
    drop((stdout, events));
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

#[test]
fn driver_with_open_stdin_does_not_prevent_stop() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    daemon.operate(Operation::Stop);
    daemon.wait_for(ServerState::Stopped);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn server_without_driver_can_be_stopped_and_handed_over() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script(LIVES)));
    drop(daemon.connection());
    let pid = daemon.wait_for(ServerState::Running).pid;
    daemon.hand_over_without_driver();
    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!(connection.pid, pid);
    drop(connection);
    daemon.operate(Operation::Stop);
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

// A later daemon.

#[test]
fn partial_message_goes_to_next_driver() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(SAYS_HALF));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    write(&connection, "speak\n");
    assert_eq!(daemon.read(&connection, 8), "whole\nha");
    daemon.report(&connection, DriverEvent::Note("first".into()));
    daemon.report(&connection, DriverEvent::Note("era \"2\"".into()));
    daemon.hand_over(connection, b"ha");

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!(connection.pid, pid);
    assert_eq!(handover(&connection), ("era \"2\"", "ha"));
    daemon.wait_for(ServerState::Running);
    write(&connection, "go on\n");
    assert_eq!(daemon.read(&connection, 3), "lf\n");
    daemon.hand_over(connection, b"");

    // Consumed output is not repeated, but the note is.
    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!(handover(&connection), ("era \"2\"", ""));
    drop(connection);
    daemon.shutdown();
}

#[test]
fn consumed_output_is_not_repeated_after_kill() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script(SAYS_HALF)));
    let connection = daemon.connection();
    write(&connection, "speak\n");
    assert_eq!(daemon.read(&connection, 8), "whole\nha");
    daemon.hand_over(connection, b"ha");

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!(handover(&connection), ("", "ha"));
    daemon.report(&connection, DriverEvent::UnparsedOutput(Vec::new()));
    daemon.wait_for_log(&[""]); // The shim knows by now that the output was consumed.
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!(handover(&connection), ("", ""));
    drop(connection);
    daemon.shutdown();
}

#[test]
fn note_and_uptime_survive_killed_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.report(&connection, DriverEvent::Note("known".into()));
    daemon.report(&connection, DriverEvent::UnparsedOutput(b"said".to_vec()));
    daemon.wait_for_log(&["said"]); // The shim has processed all of it.
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    assert_eq!((connection.pid, handover(&connection).0), (pid, "known"));
    assert_eq!(daemon.wait_for(ServerState::Running).life.reason, Reason::Adopted);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn starting_server_gets_its_whole_time_after_kill() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.wait_until(|now| now.pid.is_some());
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let connection = daemon.connection();
    let adopted = daemon.instance().now();
    assert_eq!((adopted.state(), connection.pid), (ServerState::Starting, pid));
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    drop(connection);
    daemon.shutdown();
}

#[test]
fn interrupted_write_restarts_server_uncounted() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_write(&connection);
    write(&connection, "half a mess");
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let torn = daemon.connection();
    assert_eq!(torn.pid, pid);
    drop(torn);
    let anew = daemon.connection();
    assert_ne!(anew.pid, pid);
    let now = daemon.instance().now();
    assert_eq!((now.life.reason, now.life.tally.restarts_total), (Reason::WriteInterrupted, 0));
    drop(anew);
    daemon.shutdown();
}

#[test]
fn stuck_driver_is_left_with_its_torn_write_recorded() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_write(&connection);
    daemon.hand_over_without_driver();
    drop(connection);

    let mut daemon = home.daemon();
    assert_eq!(daemon.connection().pid, pid);
    assert_ne!(daemon.connection().pid, pid);
    assert_eq!(daemon.instance().now().life.reason, Reason::WriteInterrupted);
    daemon.shutdown();
}

#[test]
fn server_with_complete_write_continues() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("read -r line; read -r line"));
    let connection = daemon.connection();
    let pid = connection.pid;
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_write(&connection);
    write(&connection, "a whole message\n");
    daemon.report(&connection, DriverEvent::WriteEnds);
    daemon.hand_over(connection, b"");

    let mut daemon = home.daemon();
    assert_eq!(daemon.connection().pid, pid);
    assert_eq!(daemon.wait_for(ServerState::Running).pid, pid);
    daemon.shutdown();
}

#[test]
fn output_of_stopping_server_is_read_by_next_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("trap '' TERM; echo up; read -r line; read -r line; sleep 600"));
    let connection = daemon.connection();
    daemon.report(&connection, DriverEvent::Ready);
    daemon.wait_for(ServerState::Running);
    assert_eq!(daemon.read(&connection, 3), "up\n");
    daemon.operate(Operation::Stop);
    daemon.report(&connection, DriverEvent::UnparsedOutput(b"heard".to_vec()));
    daemon.wait_for_log(&["heard"]); // The shim has processed the stop before.
    daemon.kill();
    drop(connection);

    let mut daemon = home.daemon();
    let mut connection = daemon.connection();
    assert!(matches!(daemon.next_command(&mut connection), Some(DriverCommand::Close { .. })));
    assert!(matches!(daemon.next_command(&mut connection), Some(DriverCommand::Exited(_))));
    drop(connection);
    daemon.wait_until(|now| !now.state().eq(&ServerState::Stopping));
    daemon.shutdown();
}
