//! What is said on one side is heard on the other, byte by byte.

use std::io::{Read, Write};

use crate::stage::{Client, Door, INITIALIZE, granted, home, json, request, result, talking};

#[test]
fn the_bridge_says_who_comes_and_does_not_wait_to_be_let_in() {
    let home = home();
    let door = Door::open(&home);
    let views = [
        (&[][..], serde_json::json!({ "profile": "default" })),
        (&["--profile", "work"], serde_json::json!({ "profile": "work" })),
        (&["--server", "github"], serde_json::json!({ "server": "github" })),
    ];
    for (args, view) in views {
        let mut client = Client::start(&home, args);
        let mut caller = door.accept();
        let hello = json(&caller.hear());
        let us = std::process::id();
        let expected = serde_json::json!(
            { "xy": "hello", "protocol": 1, "view": view, "client_pid": us }
        );
        assert_eq!(hello, expected);
        // Not let in yet.
        client.say(INITIALIZE);
        assert_eq!(caller.hear(), INITIALIZE);
        caller.say(crate::stage::WELCOME);
        caller.say(&granted("0"));
        assert_eq!(client.hear(), granted("0"));
        client.kill();
    }
    drop(door);
    home.finish();
}

#[test]
fn every_byte_passes_as_it_is_both_ways() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    let long = format!(r#"{{"jsonrpc":"2.0","id":9,"result":"{}"}}"#, "ü".repeat(2_500_000));
    let odd = [
        "{ \"jsonrpc\" : \"2.0\",\t\"id\":1.50e1, \"method\" :\"x\" , \"params\": {\"a\":1.0} } ",
        "{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":{\"t\":\"\\u00fc \u{1f980} \u{2028}\"}}\r",
        "not json at all",
        "",
        "[]",
        "{\"half\":",
        &long,
    ];
    for line in odd {
        let (there, back) = (line.to_owned(), line.to_owned());
        let mut stdin = client.take_stdin();
        let writer = std::thread::spawn(move || {
            stdin.write_all(format!("{there}\n").as_bytes()).unwrap();
            stdin
        });
        assert!(caller.hear() == line, "to the daemon: {line:.80}");
        client.put_stdin(writer.join().unwrap());
        let mut stream = caller.stream();
        let writer =
            std::thread::spawn(move || stream.write_all(format!("{back}\n").as_bytes()).unwrap());
        assert!(client.hear_raw() == format!("{line}\n").as_bytes(), "back: {line:.80}");
        writer.join().unwrap();
    }
    // Bytes that are no text pass too.
    client.say_raw(b"\xff\xfe\x00\n");
    let mut bytes = [0; 4];
    caller.stream().read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\xff\xfe\x00\n");
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn lines_in_pieces_and_many_at_once_come_whole_and_in_order() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    client.say_raw(b"{\"jsonrpc\":\"2.0\",");
    client.say_raw(b"\"method\":\"a\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"b\"}\n{\"json");
    client.say_raw(b"rpc\":\"2.0\",\"method\":\"c\"}\n");
    for method in ["a", "b", "c"] {
        assert_eq!(json(&caller.hear())["method"], method);
    }
    caller.say_raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"d\"}\n{\"jsonrpc\"");
    assert_eq!(client.hear_json()["method"], "d");
    caller.say_raw(b":\"2.0\",\"method\":\"e\"}\n");
    assert_eq!(client.hear_json()["method"], "e");
    for id in 1..=50 {
        client.say(&request(id, "tools/call"));
    }
    for id in 1..=50 {
        assert_eq!(caller.hear(), request(id, "tools/call"));
    }
    for id in (1..=50).rev() {
        caller.say(&result(&id.to_string()));
    }
    for id in (1..=50).rev() {
        assert_eq!(client.hear(), result(&id.to_string()));
    }
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_flood_both_ways_at_once_is_carried_without_loss() {
    const COUNT: u64 = 20_000;
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    let mut stdin = client.take_stdin();
    let there = std::thread::spawn(move || {
        for id in 0..COUNT {
            stdin.write_all(format!("{}\n", request(id, "tools/call")).as_bytes()).unwrap();
        }
        stdin
    });
    let mut stream = caller.stream();
    let back = std::thread::spawn(move || {
        for id in 0..COUNT {
            stream.write_all(format!("{}\n", result(&id.to_string())).as_bytes()).unwrap();
        }
    });
    for id in 0..COUNT {
        assert_eq!(caller.hear(), request(id, "tools/call"));
    }
    for id in 0..COUNT {
        assert_eq!(client.hear(), result(&id.to_string()));
    }
    back.join().unwrap();
    drop(there.join().unwrap());
    assert_eq!(caller.hear_all(), b"");
    client.kill();
    drop(door);
    home.finish();
}

#[test]
fn a_message_that_is_too_long_is_answered_and_passed_over() {
    let home = home();
    let door = Door::open(&home);
    let (mut client, mut caller) = talking(&home, &door);
    let mut stdin = client.take_stdin();
    let writer = std::thread::spawn(move || {
        let filler = vec![b'x'; 1024 * 1024];
        for begins in [r#"{"jsonrpc":"2.0","id":"big","params":""#, r#"{"params":""#] {
            stdin.write_all(begins.as_bytes()).unwrap();
            for _ in 0..33 {
                stdin.write_all(&filler).unwrap();
            }
            stdin.write_all(b"\"}\n").unwrap();
        }
        stdin.write_all(format!("{}\n", request(1, "ping")).as_bytes()).unwrap();
        stdin
    });
    for id in [serde_json::json!("big"), serde_json::Value::Null] {
        let answer = client.hear_json();
        assert_eq!(answer["id"], id);
        assert_eq!(answer["error"]["code"], -32600);
        assert!(answer["error"]["message"].as_str().unwrap().contains("32 MiB"), "{answer}");
    }
    assert_eq!(caller.hear(), request(1, "ping"));
    drop(writer.join().unwrap());
    client.kill();
    drop(door);
    home.finish();
}
