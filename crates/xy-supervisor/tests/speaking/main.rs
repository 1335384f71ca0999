//! Whoever speaks with a server, and what the supervisor makes of it: real shims, a speaker
//! that is the test itself, and daemons that are killed or replaced.

#![expect(clippy::unwrap_used, reason = "everything here is a test")]

use std::sync::Arc;
use std::time::Duration;

use xy_protocol::server::ServerState;
use xy_supervisor::fleet::Ask;
use xy_supervisor::lifecycle::{Exit, Reason};
use xy_supervisor::speak::{Line, Listener, Said, Told, Way};

use crate::stage::{Home, Probe, before, pipes, ready_by, script};

mod endpoints;
mod stage;

const SECOND: Duration = Duration::from_secs(1);

/// Lives until its stdin is closed.
const LIVES: &str = "read -r line";

/// Says half a message when it is spoken to, and lives on.
const SAYS_HALF: &str =
    "read -r line; printf 'whole\\nha'; read -r line; printf 'lf\\n'; read -r line";

fn write(line: &Line, text: &str) {
    assert_eq!(rustix::io::write(pipes(line).0, text.as_bytes()), Ok(text.len()));
}

// Ready, or not.

#[test]
fn a_server_is_ready_when_its_speaker_says_so() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    assert_eq!(line.key.to_string(), "one");
    assert!(line.before.is_none());
    let starting = daemon.wait_until(|now| now.pid.is_some());
    assert_eq!((starting.state(), starting.pid), (ServerState::Starting, line.pid));
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    drop(line);
    daemon.shutdown();
}

#[test]
fn where_its_program_is_enough_a_server_is_ready_though_nobody_said_so() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, 10 * SECOND, script(LIVES)));
    daemon.wait_for(ServerState::Running);
    let line = daemon.line();
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    drop(line);
    daemon.shutdown();
}

#[test]
fn a_server_whose_answer_is_not_waited_for_any_longer_is_ready_at_once() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    daemon.wait_until(|now| now.pid.is_some());
    daemon.apply(ready_by(Probe::Process, 10 * SECOND, script(LIVES)));
    assert_eq!(daemon.wait_for(ServerState::Running).pid, line.pid);
    drop(line);
    daemon.shutdown();
}

#[test]
fn a_server_that_never_answers_is_ended_and_counted() {
    let home = Home::new();
    let mut daemon = home.daemon();
    let within = Duration::from_millis(300);
    daemon.apply(ready_by(Probe::Mcp, within, script(LIVES)));
    let first = daemon.line();
    let failed = daemon.wait_for(ServerState::Stopping);
    assert_eq!(failed.life.reason, Reason::NeverReady { within, stray: None });
    drop(first);
    let second = daemon.line();
    assert_eq!(daemon.instance().now().life.tally.restart_count, 1);
    drop(second);
    daemon.shutdown();
}

#[test]
fn a_server_that_cannot_be_spoken_with_is_ended_and_counted() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let mut first = daemon.line();
    daemon.say(&first, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.say(&first, Said::Unfit("it speaks gibberish".into()));
    let ending = daemon.wait_for(ServerState::Stopping);
    assert_eq!(ending.life.reason.to_string(), "it speaks gibberish");
    assert!(matches!(daemon.told(&mut first), Some(Told::Close { .. })));
    drop(first);
    let second = daemon.line();
    let now = daemon.instance().now();
    assert_eq!(now.life.tally.restart_count, 1);
    let backoff = now.transitions.iter().find(|it| it.to == ServerState::Restarting).unwrap();
    assert_eq!(backoff.reason.to_string(), "it speaks gibberish");
    drop(second);
    daemon.shutdown();
}

#[test]
fn a_server_that_closes_its_stdout_and_lives_on_is_unfit() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("exec >&-; read -r line"));
    let line = daemon.line();
    daemon.say(&line, Said::Mute);
    let ending = daemon.wait_for(ServerState::Stopping);
    assert_eq!(ending.life.reason.to_string(), "it closed its stdout");
    drop(line);
    daemon.shutdown();
}

#[test]
fn a_server_that_closes_its_stdout_because_it_ends_has_simply_ended() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("exec >&-; read -r line; exit 3"));
    let mut line = daemon.line();
    daemon.say(&line, Said::Mute);
    write(&line, "end\n");
    let ended = daemon.told(&mut line);
    assert!(matches!(ended, Some(Told::Over(exit)) if exit == Exit::code(3)), "{ended:?}");
    drop(line);
    daemon.wait_until(|now| now.last_exit.is_some_and(|seen| seen.exit == Exit::code(3)));
    daemon.shutdown();
}

// What is said that is no message.

#[test]
fn what_is_no_message_is_logged_in_order_a_line_each() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    let texts: Vec<String> = (0..200).map(|number| format!("line {number}")).collect();
    for text in &texts {
        daemon.say(&line, Said::Stray(text.clone().into_bytes()));
    }
    daemon.say(&line, Said::Stray(b"two\nin one".to_vec()));
    let expected: Vec<&str> = texts.iter().map(String::as_str).chain(["two", "in one"]).collect();
    daemon.wait_for_log(&expected);
    drop(line);
    daemon.shutdown();
}

#[test]
fn the_last_words_of_a_server_are_waited_for() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script("read -r line; echo last words")));
    let mut line = daemon.line();
    write(&line, "end\n");
    let ended = daemon.told(&mut line);
    assert!(matches!(ended, Some(Told::Over(exit)) if exit == Exit::code(0)), "{ended:?}");
    let words = daemon.read(&line, "last words\n".len());
    daemon.say(&line, Said::Stray(words.trim_end().into()));
    drop(line);
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.log(), ["last words"]);
    daemon.shutdown();
}

#[test]
fn one_who_only_listens_logs_everything_to_the_last_byte() {
    let home = Home::new();
    let daemon = home.daemon_with(Arc::new(Listener));
    let talks = "echo one; echo; printf 'thr'; printf 'ee\\nthe end'";
    daemon.apply(ready_by(Probe::Process, SECOND, script(talks)));
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.log(), ["one", "", "three", "the end"]);
    daemon.shutdown();
}

#[test]
fn a_server_that_floods_those_who_only_listen_loses_nothing() {
    let home = Home::new();
    let daemon = home.daemon_with(Arc::new(Listener));
    let floods = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    daemon.apply(ready_by(Probe::Process, SECOND, script(floods)));
    daemon.wait_for(ServerState::Stopped);
    assert_eq!(daemon.instance().logs().next_seq(), 20_001);
    assert_eq!(daemon.log().last().unwrap(), "19999");
    daemon.shutdown();
}

// The end, for whoever speaks.

#[test]
fn a_speaker_is_told_of_a_stop_and_of_the_end() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("read -r line; exit 5"));
    let mut line = daemon.line();
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.ask(Ask::Stop);
    assert!(matches!(daemon.told(&mut line), Some(Told::Close { .. })));
    let Line { way, said, told, .. } = line;
    let Way::Pipes { stdin, stdout } = way else { panic!("it has no pipes") };
    drop(stdin); // Only now there is nobody left who could write.
    let mut told = told;
    let over = daemon.within(told.recv());
    assert!(matches!(over, Some(Told::Over(exit)) if exit == Exit::code(5)), "{over:?}");
    drop((stdout, said));
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

#[test]
fn a_speaker_that_does_not_close_stdin_does_not_prevent_a_stop() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    daemon.ask(Ask::Stop);
    daemon.wait_for(ServerState::Stopped);
    drop(line);
    daemon.shutdown();
}

#[test]
fn a_server_whose_speaker_is_gone_can_be_stopped_and_handed_over() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script(LIVES)));
    drop(daemon.line());
    let pid = daemon.wait_for(ServerState::Running).pid;
    daemon.let_go();
    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!(line.pid, pid);
    drop(line);
    daemon.ask(Ask::Stop);
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

// Another daemon.

#[test]
fn half_a_message_is_given_back_and_goes_to_the_next_speaker() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(SAYS_HALF));
    let line = daemon.line();
    let pid = line.pid;
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    write(&line, "speak\n");
    assert_eq!(daemon.read(&line, 8), "whole\nha");
    daemon.say(&line, Said::Note("first".into()));
    daemon.say(&line, Said::Note("era \"2\"".into()));
    daemon.hand_over(line, b"ha");

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!(line.pid, pid);
    assert_eq!(before(&line), ("era \"2\"", "ha"));
    daemon.wait_for(ServerState::Running);
    write(&line, "go on\n");
    assert_eq!(daemon.read(&line, 3), "lf\n");
    daemon.hand_over(line, b"");

    // What has been used does not come again; what was noted does.
    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!(before(&line), ("era \"2\"", ""));
    drop(line);
    daemon.shutdown();
}

#[test]
fn what_was_used_does_not_come_again_though_its_daemon_was_killed() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ready_by(Probe::Process, SECOND, script(SAYS_HALF)));
    let line = daemon.line();
    write(&line, "speak\n");
    assert_eq!(daemon.read(&line, 8), "whole\nha");
    daemon.hand_over(line, b"ha");

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!(before(&line), ("", "ha"));
    daemon.say(&line, Said::Stray(Vec::new()));
    daemon.wait_for_log(&[""]); // The shim has heard by now that we have it.
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!(before(&line), ("", ""));
    drop(line);
    daemon.shutdown();
}

#[test]
fn a_note_and_an_uptime_survive_a_killed_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    let pid = line.pid;
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.say(&line, Said::Note("known".into()));
    daemon.say(&line, Said::Stray(b"said".to_vec()));
    daemon.wait_for_log(&["said"]); // The shim has heard all of it.
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!((line.pid, before(&line).0), (pid, "known"));
    assert_eq!(daemon.wait_for(ServerState::Running).life.reason, Reason::Adopted);
    drop(line);
    daemon.shutdown();
}

#[test]
fn one_that_was_not_ready_when_its_daemon_was_killed_has_all_its_time_again() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    let pid = line.pid;
    daemon.wait_until(|now| now.pid.is_some());
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let line = daemon.line();
    let adopted = daemon.instance().now();
    assert_eq!((adopted.state(), line.pid), (ServerState::Starting, pid));
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    drop(line);
    daemon.shutdown();
}

#[test]
fn one_that_was_left_in_the_middle_of_a_message_is_started_anew_and_not_counted() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    let pid = line.pid;
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_to_write(&line);
    write(&line, "half a mess");
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let torn = daemon.line();
    assert_eq!(torn.pid, pid);
    drop(torn);
    let anew = daemon.line();
    assert_ne!(anew.pid, pid);
    let now = daemon.instance().now();
    assert_eq!((now.life.reason, now.life.tally.restarts_total), (Reason::Torn, 0));
    drop(anew);
    daemon.shutdown();
}

#[test]
fn a_speaker_that_does_not_let_go_is_not_waited_for_and_what_it_has_torn_is_known() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    let pid = line.pid;
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_to_write(&line);
    daemon.let_go();
    drop(line);

    let mut daemon = home.daemon();
    assert_eq!(daemon.line().pid, pid);
    assert_ne!(daemon.line().pid, pid);
    assert_eq!(daemon.instance().now().life.reason, Reason::Torn);
    daemon.shutdown();
}

#[test]
fn one_whose_message_was_written_whole_goes_on() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("read -r line; read -r line"));
    let line = daemon.line();
    let pid = line.pid;
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    daemon.begin_to_write(&line);
    write(&line, "a whole message\n");
    daemon.say(&line, Said::WriteEnds);
    daemon.hand_over(line, b"");

    let mut daemon = home.daemon();
    assert_eq!(daemon.line().pid, pid);
    assert_eq!(daemon.wait_for(ServerState::Running).pid, pid);
    daemon.shutdown();
}

#[test]
fn one_that_is_being_ended_is_still_listened_to_by_the_next_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script("trap '' TERM; echo up; read -r line; read -r line; sleep 600"));
    let line = daemon.line();
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    assert_eq!(daemon.read(&line, 3), "up\n");
    daemon.ask(Ask::Stop);
    daemon.say(&line, Said::Stray(b"heard".to_vec()));
    daemon.wait_for_log(&["heard"]); // The shim has heard of the stop before.
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let mut line = daemon.line();
    assert!(matches!(daemon.told(&mut line), Some(Told::Close { .. })));
    assert!(matches!(daemon.told(&mut line), Some(Told::Over(_))));
    drop(line);
    daemon.wait_until(|now| !now.state().eq(&ServerState::Stopping));
    daemon.shutdown();
}
