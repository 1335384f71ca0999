//! A daemon that goes away, and the next one.

use std::io::Write;

use crate::stage::{Client, granted};
use crate::stage::{
    Door, INITIALIZE, INITIALIZED, WELCOME, hears_of_lists, home, json, request, result, talking,
    welcome_again,
};

#[test]
fn calls_in_flight_get_an_error_lists_are_asked_again_and_the_talk_goes_on() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    let sayings = [
        request(1, "tools/call"),
        request(2, "tools/list"),
        request(3, "tools/call"),
        request(4, "resources/read"),
    ];
    for line in &sayings {
        client.say(line);
        assert_eq!(&caller.hear(), line);
    }
    caller.say(&result("3"));
    assert_eq!(client.hear(), result("3"));
    drop(caller);

    let error = client.hear_json();
    assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("outcome unknown: "), "{message}");

    let mut caller = welcome_again(&door);
    assert_eq!(caller.hear(), sayings[1]);
    assert_eq!(caller.hear(), sayings[3]);
    hears_of_lists(&client);
    caller.say(&result("2"));
    caller.say(&result("4"));
    assert_eq!(client.hear(), result("2"));
    assert_eq!(client.hear(), result("4"));
    client.say(&request(5, "tools/call"));
    assert_eq!(caller.hear(), request(5, "tools/call"));
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn what_is_said_meanwhile_waits_and_keeps_its_order() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, caller) = talking(&home, &door);
    drop(door); // Nobody is there for a while.
    drop(caller);
    for id in 1..=200 {
        client.say(&request(id, "tools/call"));
    }
    let big = format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(3_000_000));
    client.say(&big); // More than a pipe holds: it is read, though there is nobody to hear it.
    let door = Door::open(&home);
    let mut caller = welcome_again(&door);
    for id in 1..=200 {
        assert_eq!(caller.hear(), request(id, "tools/call"));
    }
    assert!(caller.hear() == big);
    hears_of_lists(&client);
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn no_more_than_a_bound_waits() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, caller) = talking(&home, &door);
    drop(door);
    drop(caller);
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
    let door = Door::open(&home);
    let mut caller = welcome_again(&door);
    for _ in 0..40 {
        assert!(caller.hear() == expected);
    }
    drop(writer.join().unwrap());
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn half_a_line_from_the_old_daemon_never_reaches_the_client() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "tools/call"));
    caller.hear();
    caller.say_raw(br#"{"jsonrpc":"2.0","id":1,"resu"#);
    drop(caller);
    assert_eq!(client.hear_json()["error"]["code"], -32010);
    let mut caller = welcome_again(&door);
    hears_of_lists(&client);
    caller.say(&result("7"));
    assert_eq!(client.hear(), result("7"));
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_half_written_message_is_sent_again_whole() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say(&request(1, "tools/call"));
    assert_eq!(caller.hear(), request(1, "tools/call"));
    // More than a socket holds, so that its end is still ours when the daemon dies.
    let big = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"x":"{}"}}}}"#,
        "x".repeat(4_000_000)
    );
    let mut stdin = client.take_stdin();
    let said = big.clone();
    let writer = std::thread::spawn(move || {
        stdin.write_all(format!("{said}\n").as_bytes()).unwrap();
        stdin
    });
    let mut some = vec![0; 100_000];
    std::io::Read::read_exact(&mut caller.stream(), &mut some).unwrap();
    drop(caller);
    let error = client.hear_json();
    assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
    let mut caller = welcome_again(&door);
    assert!(caller.hear() == big, "whole, and no error for it");
    hears_of_lists(&client);
    drop(writer.join().unwrap());
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn the_level_and_the_subscriptions_are_repeated() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
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
        client.say(&line);
        let id = json(&caller.hear())["id"].to_string();
        caller.say(&result(&id));
        assert_eq!(client.hear(), result(&id));
    }
    drop(caller);
    let mut caller = welcome_again(&door);
    hears_of_lists(&client);
    for (method, params) in
        [("logging/setLevel", r#"{"level":"debug"}"#), ("resources/subscribe", r#"{"uri":"a:c"}"#)]
    {
        let said = json(&caller.hear());
        assert_eq!((&said["method"], &said["params"]), (&method.into(), &json(params)));
        caller.say(&result(&said["id"].to_string())); // Swallowed.
    }
    client.say(&request(6, "ping"));
    assert_eq!(caller.hear(), request(6, "ping"));
    caller.say(&result("6"));
    assert_eq!(client.hear(), result("6"));
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn answers_to_the_old_daemon_are_kept_from_the_new_one() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    caller.say(&request(1, "sampling/createMessage"));
    assert_eq!(client.hear(), request(1, "sampling/createMessage"));
    drop(caller);
    let cancelled = client.hear_json();
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], 1);
    let mut caller = welcome_again(&door);
    hears_of_lists(&client);
    // The new one counts from the beginning too.
    caller.say(&request(1, "roots/list"));
    let asked = client.hear_json();
    assert_eq!(asked["method"], "roots/list");
    client.say(&result("1"));
    client.say(&result(&asked["id"].to_string()));
    assert_eq!(caller.hear(), result("1"), "the one that was asked for");
    client.say(&request(2, "ping"));
    assert_eq!(caller.hear(), request(2, "ping"), "and not the other");
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_handshake_in_flight_is_the_clients_own() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &[]);
    client.say(INITIALIZE);
    let mut caller = door.accept();
    caller.hear();
    assert_eq!(caller.hear(), INITIALIZE);
    drop(caller); // Before it let us in.
    let mut caller = door.accept();
    assert_eq!(json(&caller.hear())["xy"], "hello");
    caller.say(WELCOME);
    assert_eq!(caller.hear(), INITIALIZE);
    caller.say(&granted("0"));
    assert_eq!(client.hear(), granted("0"));
    client.say(INITIALIZED);
    assert_eq!(caller.hear(), INITIALIZED);
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn many_daemons_one_after_the_other_are_survived() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    for round in 1..=8 {
        drop(caller);
        caller = welcome_again(&door);
        hears_of_lists(&client);
        client.say(&request(round, "tools/call"));
        assert_eq!(caller.hear(), request(round, "tools/call"));
        caller.say(&result(&round.to_string()));
        assert_eq!(client.hear(), result(&round.to_string()));
    }
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_successor_that_never_comes_is_given_up_with_an_answer() {
    let home = home();
    let door = Door::open(&home);
    let mut client = Client::start(&home, &["--no-start", "--within", "700ms"]);
    let mut caller = door.welcome();
    client.say(&request(1, "tools/list"));
    caller.hear();
    drop((door, caller));
    let answer = client.hear_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32005).into()));
    let (status, _, told) = client.ended();
    assert_eq!(status.code(), Some(2));
    assert!(told.contains("could not be reached within 700ms"), "{told}");
    home.finish();
}
