//! The end of a bridge: the client disconnects or does not read, or a signal arrives.

use std::io::Write;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixtures::{
    Client, FakeDaemon, GOODBYE, TEST_TIMEOUT, connected, home, request, result,
};

#[test]
fn answers_arrive_after_the_client_closed_stdin() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "tools/call"));
    client.send_raw(request(2, "tools/call").as_bytes()); // Without a line end.
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), request(1, "tools/call"));
    assert_eq!(bridge.receive(), request(2, "tools/call"));
    assert_eq!(bridge.receive(), "", "the daemon knows that the client has left");
    bridge.send(&result("1"));
    bridge.send(&result("2"));
    assert_eq!(client.receive(), result("1"));
    assert_eq!(client.receive(), result("2"));
    drop(bridge);
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!((status.code(), &rest[..], stderr.as_str()), (Some(0), &b""[..], ""));
    drop(daemon);
    home.finish();
}

#[test]
fn daemon_that_never_hangs_up_is_not_waited_for_forever() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, bridge) = connected(&home, &daemon);
    drop(client.take_stdin());
    let (status, _, stderr) = client.wait_exit(); // After five seconds.
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    drop((bridge, daemon));
    home.finish();
}

#[test]
fn closed_client_gets_errors_for_unanswered_calls() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "tools/call"));
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), request(1, "tools/call"));
    let answer = client.receive_json(); // After five seconds.
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32010).into()));
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!((status.code(), &rest[..], stderr.as_str()), (Some(0), &b""[..], ""));
    drop((bridge, daemon));
    home.finish();
}

#[test]
fn last_requests_are_answered_without_a_daemon() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "resources/list"));
    assert_eq!(bridge.receive(), request(1, "resources/list"));
    bridge.send(GOODBYE);
    drop((daemon, bridge));
    client.send(&request(2, "tools/list"));
    client.send(&request(3, "tools/call"));
    drop(client.take_stdin());
    let mut answered = Vec::new();
    for _ in 1..=3 {
        let answer = client.receive_json(); // After five seconds.
        assert_eq!(answer["error"]["code"], -32005, "{answer}");
        answered.push(answer["id"].as_u64().unwrap());
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!((status.code(), &rest[..]), (Some(2), &b""[..]));
    assert!(stderr.starts_with("error: no daemon is running\n"), "{stderr}");
    home.finish();
}

#[test]
fn shutdown_after_closed_stdin_still_answers_calls() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "tools/list"));
    client.send(&request(2, "tools/call"));
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), request(1, "tools/list"));
    assert_eq!(bridge.receive(), request(2, "tools/call"));
    assert_eq!(bridge.receive(), "", "the client has left");
    drop((daemon, bridge));
    let call = client.receive_json();
    assert_eq!((&call["id"], &call["error"]["code"]), (&2.into(), &(-32010).into()));
    let list = client.receive_json();
    assert_eq!((&list["id"], &list["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(2), "{stderr}");
    home.finish();
}

#[test]
fn client_that_closes_stdout_causes_no_error() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut child = home
        .command(&["connect"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut bridge = daemon.welcome();
    drop(child.stdout.take());
    bridge.send(&result("1"));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    drop(daemon);
    home.finish();
}

#[test]
fn client_that_leaves_without_reading_is_not_waited_for_forever() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut child = home
        .command(&["connect"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let bridge = daemon.welcome();
    let mut stream = bridge.stream();
    let flood = std::thread::spawn(move || {
        let line = format!("{}\n", result("1"));
        while stream.write_all(line.as_bytes()).is_ok() {}
    });
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0)); // After five seconds.
    flood.join().unwrap();
    drop(daemon);
    home.finish();
}

#[test]
fn signal_ends_the_bridge_silently() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    for signal in [Signal::TERM, Signal::INT] {
        let (client, _caller) = connected(&home, &daemon);
        let pid = Pid::from_raw(client.pid().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let (_, rest, stderr) = client.wait_exit();
        assert_eq!((&rest[..], stderr.as_str()), (&b""[..], ""));
    }
    drop(daemon);
    home.finish();
}

#[test]
fn unused_session_ends_soon() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &[]);
    drop(client.take_stdin());
    let mut bridge = daemon.welcome();
    assert_eq!(bridge.receive(), "");
    drop(bridge);
    let (status, _, _) = client.wait_exit();
    assert_eq!(status.code(), Some(0), "within {TEST_TIMEOUT:?}");
    drop(daemon);
    home.finish();
}
