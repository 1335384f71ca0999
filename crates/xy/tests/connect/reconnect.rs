//! Bridges that lose their daemon and find the next one.

use std::io::Write;

use crate::fixtures::{Client, initialize_result};
use crate::fixtures::{
    FakeDaemon, INITIALIZE, INITIALIZED, WELCOME, connected, expect_list_changes, home, json,
    request, result, welcome_reconnected,
};

#[test]
fn open_calls_fail_lists_are_retried_and_the_session_continues() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    let messages = [
        request(1, "tools/call"),
        request(2, "tools/list"),
        request(3, "tools/call"),
        request(4, "resources/read"),
    ];
    for line in &messages {
        client.send(line);
        assert_eq!(&bridge.receive(), line);
    }
    bridge.send(&result("3"));
    assert_eq!(client.receive(), result("3"));
    drop(bridge);

    let error = client.receive_json();
    assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("outcome unknown: "), "{message}");

    let mut bridge = welcome_reconnected(&daemon);
    assert_eq!(bridge.receive(), messages[1]);
    assert_eq!(bridge.receive(), messages[3]);
    expect_list_changes(&client);
    bridge.send(&result("2"));
    bridge.send(&result("4"));
    assert_eq!(client.receive(), result("2"));
    assert_eq!(client.receive(), result("4"));
    client.send(&request(5, "tools/call"));
    assert_eq!(bridge.receive(), request(5, "tools/call"));
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn messages_without_a_daemon_wait_in_order() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, bridge) = connected(&home, &daemon);
    drop(daemon); // For a while there is no daemon.
    drop(bridge);
    for id in 1..=200 {
        client.send(&request(id, "tools/call"));
    }
    let big = format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(3_000_000));
    client.send(&big); // More than a pipe buffer: the bridge reads on although there is no daemon.
    let daemon = FakeDaemon::open(&home);
    let mut bridge = welcome_reconnected(&daemon);
    for id in 1..=200 {
        assert_eq!(bridge.receive(), request(id, "tools/call"));
    }
    assert!(bridge.receive() == big);
    expect_list_changes(&client);
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn waiting_messages_are_limited() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, bridge) = connected(&home, &daemon);
    drop(daemon);
    drop(bridge);
    let mut stdin = client.take_stdin();
    let line =
        format!(r#"{{"jsonrpc":"2.0","method":"n","params":["{}"]}}"#, "x".repeat(1_000_000));
    let (wrote, written) = std::sync::mpsc::sync_channel(100);
    let expected = line.clone();
    let writer = std::thread::spawn(move || {
        for _ in 0..40 {
            stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
            wrote.send(()).unwrap();
        }
        stdin
    });
    let mut count = 0;
    while written.recv_timeout(std::time::Duration::from_secs(5)).is_ok() {
        count += 1;
    }
    assert!((15..=18).contains(&count), "{count} MB were taken");
    let daemon = FakeDaemon::open(&home);
    let mut bridge = welcome_reconnected(&daemon);
    for _ in 0..40 {
        assert!(bridge.receive() == expected);
    }
    drop(writer.join().unwrap());
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn partial_line_of_the_old_daemon_is_dropped() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "tools/call"));
    bridge.receive();
    bridge.send_raw(br#"{"jsonrpc":"2.0","id":1,"resu"#);
    drop(bridge);
    assert_eq!(client.receive_json()["error"]["code"], -32010);
    let mut bridge = welcome_reconnected(&daemon);
    expect_list_changes(&client);
    bridge.send(&result("7"));
    assert_eq!(client.receive(), result("7"));
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn partly_written_message_is_sent_again_whole() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send(&request(1, "tools/call"));
    assert_eq!(bridge.receive(), request(1, "tools/call"));
    // More than a socket buffer, so that the bridge still has its end when the daemon dies.
    let big = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"x":"{}"}}}}"#,
        "x".repeat(4_000_000)
    );
    let mut stdin = client.take_stdin();
    let text = big.clone();
    let writer = std::thread::spawn(move || {
        stdin.write_all(format!("{text}\n").as_bytes()).unwrap();
        stdin
    });
    let mut some = vec![0; 100_000];
    std::io::Read::read_exact(&mut bridge.stream(), &mut some).unwrap();
    drop(bridge);
    let error = client.receive_json();
    assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
    let mut bridge = welcome_reconnected(&daemon);
    assert!(bridge.receive() == big, "whole, and no error for it");
    expect_list_changes(&client);
    drop(writer.join().unwrap());
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn log_level_and_subscriptions_are_restored() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    let about = |id: u64, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    };
    for line in [
        about(1, "logging/setLevel", r#"{"level":"info"}"#),
        about(2, "resources/subscribe", r#"{"uri":"a:b"}"#),
        about(3, "resources/subscribe", r#"{"uri":"a:c"}"#),
        about(4, "resources/unsubscribe", r#"{"uri":"a:b"}"#),
        about(5, "logging/setLevel", r#"{"level":"debug"}"#),
    ] {
        client.send(&line);
        let id = json(&bridge.receive())["id"].to_string();
        bridge.send(&result(&id));
        assert_eq!(client.receive(), result(&id));
    }
    drop(bridge);
    let mut bridge = welcome_reconnected(&daemon);
    expect_list_changes(&client);
    for (method, params) in
        [("logging/setLevel", r#"{"level":"debug"}"#), ("resources/subscribe", r#"{"uri":"a:c"}"#)]
    {
        let restored = json(&bridge.receive());
        assert_eq!((&restored["method"], &restored["params"]), (&method.into(), &json(params)));
        bridge.send(&result(&restored["id"].to_string())); // The bridge swallows this response.
    }
    client.send(&request(6, "ping"));
    assert_eq!(bridge.receive(), request(6, "ping"));
    bridge.send(&result("6"));
    assert_eq!(client.receive(), result("6"));
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn stale_responses_do_not_reach_the_new_daemon() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    bridge.send(&request(1, "sampling/createMessage"));
    assert_eq!(client.receive(), request(1, "sampling/createMessage"));
    drop(bridge);
    let cancelled = client.receive_json();
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], 1);
    let mut bridge = welcome_reconnected(&daemon);
    expect_list_changes(&client);
    // The new daemon also counts from 1.
    bridge.send(&request(1, "roots/list"));
    let requested = client.receive_json();
    assert_eq!(requested["method"], "roots/list");
    client.send(&result("1"));
    client.send(&result(&requested["id"].to_string()));
    assert_eq!(bridge.receive(), result("1"), "the answer to the new request");
    client.send(&request(2, "ping"));
    assert_eq!(bridge.receive(), request(2, "ping"), "and not the other");
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn handshake_in_flight_is_repeated_by_the_bridge() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &[]);
    client.send(INITIALIZE);
    let mut bridge = daemon.accept();
    bridge.receive();
    assert_eq!(bridge.receive(), INITIALIZE);
    drop(bridge); // Before the welcome.
    let mut bridge = daemon.accept();
    assert_eq!(json(&bridge.receive())["xy"], "hello");
    bridge.send(WELCOME);
    assert_eq!(bridge.receive(), INITIALIZE);
    bridge.send(&initialize_result("0"));
    assert_eq!(client.receive(), initialize_result("0"));
    client.send(INITIALIZED);
    assert_eq!(bridge.receive(), INITIALIZED);
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn session_survives_many_daemons() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    for round in 1..=8 {
        drop(bridge);
        bridge = welcome_reconnected(&daemon);
        expect_list_changes(&client);
        client.send(&request(round, "tools/call"));
        assert_eq!(bridge.receive(), request(round, "tools/call"));
        bridge.send(&result(&round.to_string()));
        assert_eq!(client.receive(), result(&round.to_string()));
    }
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn missing_successor_is_given_up_with_an_answer() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--no-start", "--within", "700ms"]);
    let mut bridge = daemon.welcome();
    client.send(&request(1, "tools/list"));
    bridge.receive();
    drop((daemon, bridge));
    let answer = client.receive_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(2));
    assert!(stderr.contains("could not be reached within 700ms"), "{stderr}");
    home.finish();
}
