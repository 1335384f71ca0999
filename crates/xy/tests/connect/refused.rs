//! Failures to connect: the client gets an error response, and the user a message on stderr.

use insta::assert_snapshot;

use crate::fixtures::{Client, FakeDaemon, INITIALIZE, home, json, request};

/// Returns the exit code, stdout and stderr, without the paths of this test.
fn shown(home: &xy_testkit::Home, client: Client) -> String {
    let (status, rest, stderr) = client.wait_exit();
    let rest = String::from_utf8(rest).unwrap();
    let text = format!("exit {}\n--- stdout\n{rest}--- stderr\n{stderr}", status.code().unwrap());
    text.replace(home.root().to_str().unwrap(), "ROOT")
}

#[test]
fn refusal_is_shown_to_client_and_user() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--server", "nope"]);
    let mut bridge = daemon.accept();
    bridge.receive();
    client.send(INITIALIZE);
    bridge.receive();
    bridge.send(
        r#"{"xy":"refused","message":"there is no server named `nope`","hint":"see `xy list`"}"#,
    );
    drop(bridge);
    assert_snapshot!(shown(&home, client));
    drop(daemon);
    home.finish();
}

#[test]
fn daemon_with_another_protocol_is_refused() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    for (word, cause) in [
        (r#"{"xy":"welcome","protocol":2}"#, "the daemon has version 2, this `xy` has 1"),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "is not xy"),
        ("SSH-2.0-OpenSSH", "is not xy"),
    ] {
        let mut client = Client::start(&home, &[]);
        let mut bridge = daemon.accept();
        bridge.receive();
        client.send(INITIALIZE);
        bridge.receive();
        bridge.send(word);
        let answer = client.receive_json();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&0.into(), &(-32600).into()));
        let (status, _, stderr) = client.wait_exit();
        assert_eq!(status.code(), Some(1));
        assert!(stderr.contains(cause), "{stderr}");
    }
    drop(daemon);
    home.finish();
}

#[test]
fn requests_without_a_daemon_are_answered_with_the_reason() {
    let home = home();
    let mut client = Client::start(&home, &["--no-start"]);
    client.send_raw(format!("{INITIALIZE}\n{}\n", request(1, "tools/list")).as_bytes());
    assert_snapshot!(shown(&home, client));
    assert!(!home.root().join("state/xy").exists(), "nothing is left behind");
    home.finish();
}

#[test]
fn request_before_closed_stdin_is_answered_without_a_daemon() {
    let home = home();
    let mut client = Client::start(&home, &["--no-start"]);
    client.send_raw(INITIALIZE.as_bytes());
    drop(client.take_stdin());
    let (status, rest, _) = client.wait_exit();
    assert_eq!(status.code(), Some(2));
    assert_eq!(json(str::from_utf8(&rest).unwrap())["error"]["code"], -32005);
    home.finish();
}

#[test]
fn silent_client_without_a_daemon_ends_soon() {
    let home = home();
    let client = Client::start(&home, &["--no-start"]);
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!((status.code(), rest.len()), (Some(2), 0));
    assert!(stderr.starts_with("error: no daemon is running\n"), "{stderr}");
    home.finish();
}

#[test]
fn silent_daemon_is_given_up() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let mut client = Client::start(&home, &["--within", "3s"]);
    client.send(INITIALIZE);
    client.send(&request(1, "tools/call"));
    let bridge = daemon.accept();
    let first = client.receive_json();
    assert_eq!((&first["id"], &first["error"]["code"]), (&1.into(), &(-32010).into()));
    let second = client.receive_json();
    assert_eq!((&second["id"], &second["error"]["code"]), (&0.into(), &(-32005).into()));
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(2));
    assert!(stderr.contains("did not answer within 5 s"), "{stderr}");
    drop((bridge, daemon));
    home.finish();
}

#[test]
fn profile_and_server_together_are_wrong_usage() {
    let home = home();
    let ran = home.xy(&["connect", "--profile", "a", "--server", "b"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (64, ""));
    home.finish();
}

#[test]
fn older_revision_after_a_restart_ends_the_session() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, bridge) = crate::fixtures::connected(&home, &daemon);
    drop(bridge);
    let mut bridge = daemon.welcome();
    client.send(&request(1, "tools/call"));
    let id = json(&bridge.receive())["id"].to_string();
    bridge.send(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2024-11-05"}}}}"#
    ));
    let answer = client.receive_json();
    assert_eq!(answer["id"], 1);
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("2025-06-18 was negotiated before"), "{stderr}");
    drop(daemon);
    home.finish();
}
