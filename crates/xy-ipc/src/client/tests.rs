//! Tests of the client with a daemon that sends whatever a test wants.

use std::io::{BufRead, BufReader};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use xy_protocol::control::Events;
use xy_protocol::error::ErrorKind;

use super::*;

/// Returns a client and a daemon that answers each line with the next of `replies`, then hangs up.
fn client_of(replies: Vec<String>) -> (Client, JoinHandle<Vec<Value>>) {
    let (client_end, daemon_end) = UnixStream::pair().unwrap();
    let daemon = std::thread::spawn(move || {
        let mut lines = BufReader::new(&daemon_end).lines();
        let mut received = Vec::new();
        for text in replies {
            received.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
            (&daemon_end).write_all(text.as_bytes()).unwrap();
        }
        received
    });
    (Client::from_stream(client_end), daemon)
}

fn result(id: u64, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

#[test]
fn result_is_returned_as_written() {
    let (mut client, daemon) = client_of(vec![result(1, "[ 1,2 ]"), result(2, "null")]);
    assert_eq!(client.call(&Request::List).unwrap().get(), "[ 1,2 ]");
    assert_eq!(client.call(&Request::Events(Events::default())).unwrap().get(), "null");
    let received = daemon.join().unwrap();
    assert_eq!(received[0], json!({"jsonrpc": "2.0", "id": 1, "method": "list"}));
}

#[test]
fn error_of_the_daemon_is_returned() {
    let error = CallError::new(ErrorKind::ServerNotFound, "no").hint("do").cause("because");
    let line = json!({"jsonrpc": "2.0", "id": 1, "error": error});
    let (mut client, _daemon) = client_of(vec![format!("{line}\n")]);
    match client.call(&Request::List) {
        Err(CallFailure::Refused(refused)) => assert_eq!(refused, error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hang_up_before_the_answer_is_reported() {
    let (mut client, _daemon) = client_of(vec!["{\"jsonrpc\":\"2.0\",\"id\":1,\"res".to_owned()]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::HungUp)));
}

#[test]
fn rejection_is_read_after_a_failed_write() {
    let (client_end, mut daemon_end) = UnixStream::pair().unwrap();
    let error = CallError::new(ErrorKind::QueueFull, "no room");
    let line = json!({"jsonrpc": "2.0", "id": null, "error": error});
    daemon_end.write_all(format!("{line}\n").as_bytes()).unwrap();
    drop(daemon_end);
    match Client::from_stream(client_end).call(&Request::List) {
        Err(CallFailure::Refused(refused)) => assert_eq!(refused.kind, ErrorKind::QueueFull),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_to_another_request_is_rejected() {
    let (mut client, _daemon) = client_of(vec![result(9, "[]")]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
}

#[test]
fn invalid_json_is_rejected() {
    let (mut client, _daemon) = client_of(vec!["220 smtp ready\n".to_owned()]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
}

#[test]
fn early_notifications_are_queued_in_order() {
    let notification = |n| format!("{{\"jsonrpc\":\"2.0\",\"method\":\"log\",\"params\":{n}}}\n");
    let replies = notification(1) + &notification(2) + &result(1, "{}") + &notification(3);
    let (mut client, _daemon) = client_of(vec![replies]);
    client.call(&Request::Events(Events::default())).unwrap();
    for expected in ["1", "2", "3"] {
        let notification = client.next_notification().unwrap();
        assert_eq!((&*notification.method, notification.params.get()), ("log", expected));
    }
    assert!(matches!(client.next_notification(), Err(CallFailure::HungUp)));
}

#[test]
fn queue_is_bounded() {
    let notification = format!("{{\"method\":\"log\",\"params\":\"{}\"}}\n", "x".repeat(1 << 20));
    let (mut client, daemon) = client_of(vec![notification.repeat(20)]);
    assert!(matches!(client.call(&Request::List), Err(CallFailure::NotXy { .. })));
    drop(client);
    let _ = daemon.join();
}

#[test]
fn silent_daemon_times_out() {
    let (client_end, _theirs) = UnixStream::pair().unwrap();
    let mut client = Client::from_stream(client_end);
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(client.call(&Request::List), Err(CallFailure::TimedOut { .. })));
}

#[test]
fn has_more_reports_pending_messages() {
    let (client_end, mut daemon_end) = UnixStream::pair().unwrap();
    let mut client = Client::from_stream(client_end);
    assert!(!client.has_more());
    let line = "{\"jsonrpc\":\"2.0\",\"method\":\"log\",\"params\":1}\n";
    daemon_end.write_all(line.repeat(2).as_bytes()).unwrap();
    assert!(client.has_more());
    client.next_notification().unwrap();
    assert!(client.has_more());
    client.next_notification().unwrap();
    assert!(!client.has_more());
}

#[test]
fn wait_for_hang_up_returns_at_the_end() {
    let (client_end, mut daemon_end) = UnixStream::pair().unwrap();
    daemon_end.write_all(b"{\"method\":\"event_end\"}\n").unwrap();
    drop(daemon_end);
    Client::from_stream(client_end).wait_for_hang_up().unwrap();
}
