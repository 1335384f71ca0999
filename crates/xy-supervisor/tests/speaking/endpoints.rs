//! Servers that listen somewhere: processes behind a port, and those of other machines.

use xy_config::settings::{Isolation, ServerSettings};
use xy_protocol::server::{ServerState, Transport};
use xy_supervisor::fleet::Ask;
use xy_supervisor::lifecycle::{Exit, Reason, State};
use xy_supervisor::speak::{Line, Said, Told, Way};

use crate::stage::{Daemon, Home, before, elsewhere, listening, script};

/// Says something on both its outputs and lives.
const TALKS: &str = "echo out; echo err >&2; exec sleep 1000";

const LIVES: &str = "exec sleep 1000";

/// The line to a server that listens, which is ready now.
fn ready_line(daemon: &mut Daemon) -> Line {
    let line = daemon.line();
    assert!(matches!(line.way, Way::Endpoint));
    daemon.say(&line, Said::Ready);
    daemon.wait_for(ServerState::Running);
    line
}

#[test]
fn one_behind_a_port_is_ready_when_its_speaker_says_so_and_its_stdout_is_for_its_log() {
    for transport in [Transport::Http, Transport::Sse] {
        let home = Home::new();
        let mut daemon = home.daemon();
        daemon.apply(listening(transport, TALKS));
        let line = daemon.line();
        assert!(matches!(line.way, Way::Endpoint));
        assert!(line.before.is_none() && line.settings.endpoint().is_some());
        let now = daemon.wait_until(|now| now.pid.is_some());
        assert_eq!((now.state(), now.pid), (ServerState::Starting, line.pid));
        daemon.wait_until_logged("out");
        daemon.wait_until_logged("err");
        daemon.say(&line, Said::Stray(b"no message".to_vec()));
        daemon.say(&line, Said::Ready);
        daemon.wait_for(ServerState::Running);
        daemon.wait_until_logged("no message");
        let mut log = daemon.log();
        log.sort();
        assert_eq!(log, ["err", "no message", "out"]);
        drop(line);
        daemon.shutdown();
    }
}

#[test]
fn its_speaker_is_told_of_a_stop_and_of_the_end() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, LIVES));
    let mut line = ready_line(&mut daemon);
    daemon.ask(Ask::Stop);
    assert!(matches!(daemon.told(&mut line), Some(Told::Close { .. })));
    assert!(matches!(daemon.told(&mut line), Some(Told::Over(Exit { signal: Some(15), .. }))));
    drop(line);
    daemon.wait_for(ServerState::Stopped);
    daemon.shutdown();
}

#[test]
fn its_speaker_is_told_of_a_crash_and_speaks_with_its_successor() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, "sleep 0.2; exit 3"));
    let mut line = ready_line(&mut daemon);
    let over = daemon.told(&mut line);
    assert!(matches!(over, Some(Told::Over(exit)) if exit == Exit::code(3)), "{over:?}");
    let first = line.pid;
    drop(line);
    let line = daemon.line();
    assert_ne!(line.pid, first);
    drop(line);
    daemon.shutdown();
}

#[test]
fn one_that_cannot_be_spoken_with_is_ended_which_counts() {
    let wrongs: [fn(String) -> Said; 3] = [Said::Unfit, Said::Unreachable, Said::Hopeless];
    for wrong in wrongs {
        let home = Home::new();
        let mut daemon = home.daemon();
        daemon.apply(listening(Transport::Http, LIVES));
        let line = daemon.line();
        daemon.say(&line, wrong("it answers 404".into()));
        drop(line);
        let line = daemon.line();
        assert_eq!(daemon.wait_until(|now| now.pid.is_some()).life.tally.restart_count, 1);
        drop(line);
        daemon.shutdown();
    }
}

#[test]
fn it_goes_on_with_the_next_daemon_which_gets_the_note_and_nothing_unread() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(listening(Transport::Http, TALKS));
    let line = ready_line(&mut daemon);
    let pid = line.pid;
    daemon.say(&line, Said::Note("session \"1\"".into()));
    daemon.hand_over(line, b"");

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert!(matches!(line.way, Way::Endpoint));
    assert_eq!((line.pid, before(&line)), (pid, ("session \"1\"", "")));
    assert_eq!(daemon.wait_for(ServerState::Running).life.reason, Reason::Adopted);
    daemon.say(&line, Said::Stray(b"last".to_vec()));
    daemon.wait_until_logged("last");
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    let line = daemon.line();
    assert_eq!((line.pid, before(&line)), (pid, ("session \"1\"", "")));
    drop(line);
    daemon.shutdown();
}

#[test]
fn one_elsewhere_begins_anew_with_every_daemon() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(elsewhere());
    let line = ready_line(&mut daemon);
    assert!(line.pid.is_none());
    daemon.say(&line, Said::Note("session".into()));
    daemon.hand_over(line, b"");

    let mut daemon = home.daemon();
    daemon.apply(elsewhere());
    let line = ready_line(&mut daemon);
    assert!(line.before.is_none());
    daemon.killed();
    drop(line);

    let mut daemon = home.daemon();
    daemon.apply(elsewhere());
    drop(ready_line(&mut daemon));
    daemon.shutdown();
}

#[test]
fn each_client_may_have_a_line_of_its_own_to_one_elsewhere() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(ServerSettings { isolation: Isolation::Client, ..elsewhere() });
    let (one, other) = (daemon.hold(1), daemon.hold(2));
    let (mut first, second) = (daemon.line(), daemon.line());
    assert_eq!([&first, &second].map(|it| it.key.to_string()), ["one@1", "one@2"]);
    daemon.say(&second, Said::Ready);
    daemon.within(other.wait_until(|now| now.state() == ServerState::Running));
    daemon.release(1);
    assert!(matches!(daemon.told(&mut first), Some(Told::Close { .. })));
    drop(first);
    daemon.within(one.wait_until(|now| now.life.state == State::Retired));
    assert_eq!(other.now().state(), ServerState::Running);
    drop(second);
    daemon.shutdown();
}

#[test]
fn a_server_may_move_elsewhere_and_back() {
    let home = Home::new();
    let mut daemon = home.daemon();
    daemon.apply(script(LIVES));
    let line = daemon.line();
    assert!(line.pid.is_some());
    daemon.apply(elsewhere());
    drop(line);
    let line = ready_line(&mut daemon);
    assert!(line.pid.is_none());
    assert_eq!(daemon.wait_for(ServerState::Running).pid, None);
    daemon.apply(script(LIVES));
    drop(line);
    let line = daemon.line();
    assert!(line.pid.is_some() && matches!(line.way, Way::Pipes { .. }));
    drop(line);
    daemon.shutdown();
}
