//! How it ends: the client leaves, or does not read, or somebody ends the bridge.

use std::io::Write;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Client, Door, GOODBYE, SOON, home, request, result, talking};

#[test]
fn answers_still_come_after_the_clients_last_word() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "tools/call"));
    client.say_raw(request(2, "tools/call").as_bytes()); // Without its end.
    drop(client.take_stdin());
    assert_eq!(caller.hear(), request(1, "tools/call"));
    assert_eq!(caller.hear(), request(2, "tools/call"));
    assert_eq!(caller.hear(), "", "the daemon knows that the client has left");
    caller.say(&result("1"));
    caller.say(&result("2"));
    assert_eq!(client.hear(), result("1"));
    assert_eq!(client.hear(), result("2"));
    drop(caller);
    let (status, rest, told) = client.ended();
    assert_eq!((status.code(), &rest[..], told.as_str()), (Some(0), &b""[..], ""));
    drop(door);
    home.finish();
}

#[test]
fn a_daemon_that_never_hangs_up_is_not_waited_for_for_ever() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, caller) = talking(&home, &door);
    drop(client.take_stdin());
    let (status, _, told) = client.ended(); // After five seconds.
    assert_eq!((status.code(), told.as_str()), (Some(0), ""));
    drop((caller, door));
    home.finish();
}

#[test]
fn a_client_that_has_left_hears_what_was_not_answered() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "tools/call"));
    drop(client.take_stdin());
    assert_eq!(caller.hear(), request(1, "tools/call"));
    let answer = client.hear_json(); // After five seconds.
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32010).into()));
    let (status, rest, told) = client.ended();
    assert_eq!((status.code(), &rest[..], told.as_str()), (Some(0), &b""[..], ""));
    drop((caller, door));
    home.finish();
}

#[test]
fn what_is_said_last_is_answered_though_no_daemon_comes_any_more() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "resources/list"));
    assert_eq!(caller.hear(), request(1, "resources/list"));
    caller.say(GOODBYE);
    drop((door, caller));
    client.say(&request(2, "tools/list"));
    client.say(&request(3, "tools/call"));
    drop(client.take_stdin());
    let mut answered = Vec::new();
    for _ in 1..=3 {
        let answer = client.hear_json(); // After five seconds.
        assert_eq!(answer["error"]["code"], -32005, "{answer}");
        answered.push(answer["id"].as_u64().unwrap());
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    let (status, rest, told) = client.ended();
    assert_eq!((status.code(), &rest[..]), (Some(2), &b""[..]));
    assert!(told.starts_with("error: no daemon is running\n"), "{told}");
    home.finish();
}

#[test]
fn a_daemon_that_goes_after_the_clients_last_word_owes_it_an_answer() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "tools/list"));
    client.say(&request(2, "tools/call"));
    drop(client.take_stdin());
    assert_eq!(caller.hear(), request(1, "tools/list"));
    assert_eq!(caller.hear(), request(2, "tools/call"));
    assert_eq!(caller.hear(), "", "the client has left");
    drop((door, caller));
    let call = client.hear_json();
    assert_eq!((&call["id"], &call["error"]["code"]), (&2.into(), &(-32010).into()));
    let list = client.hear_json();
    assert_eq!((&list["id"], &list["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, _, told) = client.ended();
    assert_eq!(status.code(), Some(2), "{told}");
    home.finish();
}

#[test]
fn a_client_that_does_not_listen_any_more_is_no_reason_to_complain() {
    let home = home();
    let door = Door::open(&home);
    let mut child = home
        .command(&["connect"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut caller = door.welcome();
    drop(child.stdout.take());
    caller.say(&result("1"));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    drop(door);
    home.finish();
}

#[test]
fn a_client_that_leaves_without_reading_is_not_waited_for_for_ever() {
    let home = home();
    let door = Door::open(&home);
    let mut child = home
        .command(&["connect"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let caller = door.welcome();
    let mut stream = caller.stream();
    let flood = std::thread::spawn(move || {
        let line = format!("{}\n", result("1"));
        while stream.write_all(line.as_bytes()).is_ok() {}
    });
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0)); // After five seconds.
    flood.join().unwrap();
    drop(door);
    home.finish();
}

#[test]
fn a_signal_ends_it_without_a_word() {
    let home = home();
    let door = Door::open(&home);
    for signal in [Signal::TERM, Signal::INT] {
        let (client, _caller) = talking(&home, &door);
        let pid = Pid::from_raw(client.pid().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let (_, rest, told) = client.ended();
        assert_eq!((&rest[..], told.as_str()), (&b""[..], ""));
    }
    drop(door);
    home.finish();
}

#[test]
fn nothing_said_and_nobody_there_is_over_soon() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &[]);
    drop(client.take_stdin());
    let mut caller = door.welcome();
    assert_eq!(caller.hear(), "");
    drop(caller);
    let (status, _, _) = client.ended();
    assert_eq!(status.code(), Some(0), "within {SOON:?}");
    drop(door);
    home.finish();
}
