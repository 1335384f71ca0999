//! When it cannot be: the client gets an answer that says why, and people a word on stderr.

use insta::assert_snapshot;

use crate::stage::{Client, Door, INITIALIZE, home, json, request};

/// What the client hears and people read, without the paths of this test.
fn shown(home: &xy_testkit::Home, client: Client) -> String {
    let (status, rest, told) = client.ended();
    let rest = String::from_utf8(rest).unwrap();
    let text = format!("exit {}\n--- stdout\n{rest}--- stderr\n{told}", status.code().unwrap());
    text.replace(home.root().to_str().unwrap(), "ROOT")
}

#[test]
fn a_refusal_is_shown_to_the_client_and_to_people() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--server", "nope"]);
    let mut caller = door.accept();
    caller.hear();
    client.say(INITIALIZE);
    caller.hear();
    caller.say(
        r#"{"xy":"refused","message":"there is no server named `nope`","hint":"see `xy list`"}"#,
    );
    drop(caller);
    assert_snapshot!(shown(&home, client));
    drop(door);
    home.finish();
}

#[test]
fn a_daemon_of_another_time_is_not_spoken_to() {
    let home = home();
    let door = Door::open(&home);
    for (word, cause) in [
        (r#"{"xy":"welcome","protocol":2}"#, "its version is 2, and ours 1"),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "is not xy"),
        ("SSH-2.0-OpenSSH", "is not xy"),
    ] {
        let mut client = Client::start(&home, &[]);
        let mut caller = door.accept();
        caller.hear();
        client.say(INITIALIZE);
        caller.hear();
        caller.say(word);
        let answer = client.hear_json();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&0.into(), &(-32600).into()));
        let (status, _, told) = client.ended();
        assert_eq!(status.code(), Some(1));
        assert!(told.contains(cause), "{told}");
    }
    drop(door);
    home.finish();
}

#[test]
fn without_a_daemon_every_request_is_answered_with_the_reason() {
    let home = home();
    let mut client = Client::start(&home, &["--no-start"]);
    client.say_raw(format!("{INITIALIZE}\n{}\n", request(1, "tools/list")).as_bytes());
    assert_snapshot!(shown(&home, client));
    assert!(!home.root().join("state/xy").exists(), "nothing is left behind");
    home.finish();
}

#[test]
fn without_a_daemon_a_client_that_has_left_is_answered_too() {
    let home = home();
    let mut client = Client::start(&home, &["--no-start"]);
    client.say_raw(INITIALIZE.as_bytes());
    drop(client.take_stdin());
    let (status, rest, _) = client.ended();
    assert_eq!(status.code(), Some(2));
    assert_eq!(json(str::from_utf8(&rest).unwrap())["error"]["code"], -32005);
    home.finish();
}

#[test]
fn without_a_daemon_a_client_that_says_nothing_is_not_waited_for_long() {
    let home = home();
    let client = Client::start(&home, &["--no-start"]);
    let (status, rest, told) = client.ended();
    assert_eq!((status.code(), rest.len()), (Some(2), 0));
    assert!(told.starts_with("error: no daemon is running\n"), "{told}");
    home.finish();
}

#[test]
fn a_daemon_that_accepts_and_says_nothing_is_given_up() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--within", "3s"]);
    client.say(INITIALIZE);
    client.say(&request(1, "tools/call"));
    let caller = door.accept();
    let first = client.hear_json();
    assert_eq!((&first["id"], &first["error"]["code"]), (&1.into(), &(-32010).into()));
    let second = client.hear_json();
    assert_eq!((&second["id"], &second["error"]["code"]), (&0.into(), &(-32005).into()));
    let (status, _, told) = client.ended();
    assert_eq!(status.code(), Some(2));
    assert!(told.contains("did not answer within 5 s"), "{told}");
    drop((caller, door));
    home.finish();
}

#[test]
fn a_profile_and_a_server_at_once_are_wrong_usage() {
    let home = home();
    let ran = home.xy(&["connect", "--profile", "a", "--server", "b"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (64, ""));
    home.finish();
}

#[test]
fn a_daemon_that_grants_less_after_a_restart_ends_it_with_a_reason() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, caller) = crate::stage::talking(&home, &door);
    drop(caller);
    let mut caller = door.welcome();
    client.say(&request(1, "tools/call"));
    let id = json(&caller.hear())["id"].to_string();
    caller.say(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2024-11-05"}}}}"#
    ));
    let answer = client.hear_json();
    assert_eq!(answer["id"], 1);
    let (status, _, told) = client.ended();
    assert_eq!(status.code(), Some(1));
    assert!(told.contains("2025-06-18 was agreed on before"), "{told}");
    drop(door);
    home.finish();
}
