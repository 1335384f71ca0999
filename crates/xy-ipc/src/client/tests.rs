//! The client against a daemon that says whatever a test wants.

use std::io::{BufRead, BufReader};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use xy_protocol::control::Events;
use xy_protocol::error::ErrorKind;

use super::*;

/// A client, and a daemon that answers each line with the next of `says`, then hangs up.
fn client_of(says: Vec<String>) -> (Client, JoinHandle<Vec<Value>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let daemon = std::thread::spawn(move || {
        let mut lines = BufReader::new(&theirs).lines();
        let mut heard = Vec::new();
        for text in says {
            heard.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
            (&theirs).write_all(text.as_bytes()).unwrap();
        }
        heard
    });
    (Client::over(ours), daemon)
}

fn result(id: u64, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

#[test]
fn a_result_comes_as_it_was_written() {
    let (mut client, daemon) = client_of(vec![result(1, "[ 1,2 ]"), result(2, "null")]);
    assert_eq!(client.call(&Request::List).unwrap().get(), "[ 1,2 ]");
    assert_eq!(client.call(&Request::Events(Events::default())).unwrap().get(), "null");
    let heard = daemon.join().unwrap();
    assert_eq!(heard[0], json!({"jsonrpc": "2.0", "id": 1, "method": "list"}));
}

#[test]
fn an_error_of_the_daemon_keeps_its_words() {
    let error = CallError::new(ErrorKind::ServerNotFound, "no").hint("do").cause("because");
    let line = json!({"jsonrpc": "2.0", "id": 1, "error": error});
    let (mut client, _daemon) = client_of(vec![format!("{line}\n")]);
    match client.call(&Request::List) {
        Err(CallFailure::Refused(refused)) => assert_eq!(refused, error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_that_hangs_up_in_the_middle_is_told_so() {
    let (mut client, _daemon) = client_of(vec!["{\"jsonrpc\":\"2.0\",\"id\":1,\"res".to_owned()]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::HungUp)));
}

#[test]
fn a_daemon_that_turns_us_away_is_heard_even_if_it_closed_before_we_wrote() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let error = CallError::new(ErrorKind::QueueFull, "no room");
    let line = json!({"jsonrpc": "2.0", "id": null, "error": error});
    theirs.write_all(format!("{line}\n").as_bytes()).unwrap();
    drop(theirs);
    match Client::over(ours).call(&Request::List) {
        Err(CallFailure::Refused(refused)) => assert_eq!(refused.kind, ErrorKind::QueueFull),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_to_something_else_is_not_taken() {
    let (mut client, _daemon) = client_of(vec![result(9, "[]")]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
}

#[test]
fn what_is_not_json_is_not_taken() {
    let (mut client, _daemon) = client_of(vec!["220 smtp ready\n".to_owned()]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
}

#[test]
fn notifications_before_an_answer_are_kept_in_order() {
    let told = |n| format!("{{\"jsonrpc\":\"2.0\",\"method\":\"log\",\"params\":{n}}}\n");
    let says = told(1) + &told(2) + &result(1, "{}") + &told(3);
    let (mut client, _daemon) = client_of(vec![says]);
    client.call(&Request::Events(Events::default())).unwrap();
    for expected in ["1", "2", "3"] {
        let notification = client.next_notification().unwrap();
        assert_eq!((&*notification.method, notification.params.get()), ("log", expected));
    }
    assert!(matches!(client.next_notification(), Err(CallFailure::HungUp)));
}

#[test]
fn what_is_kept_has_a_bound() {
    let told = format!("{{\"method\":\"log\",\"params\":\"{}\"}}\n", "x".repeat(1 << 20));
    let (mut client, daemon) = client_of(vec![told.repeat(20)]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
    drop(client);
    let _ = daemon.join();
}

#[test]
fn a_silent_daemon_is_not_waited_for_longer_than_asked() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut client = Client::over(ours);
    client.answer_within(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(client.call(&Request::List), Err(CallFailure::TimedOut { .. })));
}

#[test]
fn it_knows_whether_more_is_waiting() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut client = Client::over(ours);
    assert!(!client.has_more());
    let line = "{\"jsonrpc\":\"2.0\",\"method\":\"log\",\"params\":1}\n";
    theirs.write_all(line.repeat(2).as_bytes()).unwrap();
    assert!(client.has_more());
    client.next_notification().unwrap();
    assert!(client.has_more());
    client.next_notification().unwrap();
    assert!(!client.has_more());
}

#[test]
fn the_end_can_be_waited_for() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"{\"method\":\"event_end\"}\n").unwrap();
    drop(theirs);
    Client::over(ours).wait_for_hang_up().unwrap();
}
