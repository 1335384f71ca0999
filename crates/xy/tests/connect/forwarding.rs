//! Messages are forwarded byte by byte in both directions.

use std::io::{Read, Write};

use crate::fixtures::{
    Client, FakeDaemon, INITIALIZE, connected, home, initialize_result, json, request, result,
};

#[test]
fn bridge_introduces_itself_without_waiting_for_the_welcome() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let views = [
        (&[][..], serde_json::json!({ "profile": "default" })),
        (&["--profile", "work"], serde_json::json!({ "profile": "work" })),
        (&["--server", "github"], serde_json::json!({ "server": "github" })),
    ];
    for (args, view) in views {
        let mut client = Client::start(&home, args);
        let mut bridge = daemon.accept();
        let hello = json(&bridge.receive());
        let us = std::process::id();
        let expected = serde_json::json!(
            { "xy": "hello", "protocol": 1, "view": view, "client_pid": us }
        );
        assert_eq!(hello, expected);
        // Not welcomed yet.
        client.send(INITIALIZE);
        assert_eq!(bridge.receive(), INITIALIZE);
        bridge.send(crate::fixtures::WELCOME);
        bridge.send(&initialize_result("0"));
        assert_eq!(client.receive(), initialize_result("0"));
        client.kill();
    }
    drop(daemon);
    home.finish();
}

#[test]
fn every_byte_is_forwarded_unchanged() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
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
        assert!(bridge.receive() == line, "to the daemon: {line:.80}");
        client.put_stdin(writer.join().unwrap());
        let mut stream = bridge.stream();
        let writer =
            std::thread::spawn(move || stream.write_all(format!("{back}\n").as_bytes()).unwrap());
        assert!(client.receive_raw() == format!("{line}\n").as_bytes(), "back: {line:.80}");
        writer.join().unwrap();
    }
    // Bytes that are not text pass too.
    client.send_raw(b"\xff\xfe\x00\n");
    let mut bytes = [0; 4];
    bridge.stream().read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\xff\xfe\x00\n");
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn partial_and_joined_lines_arrive_whole_and_in_order() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    client.send_raw(b"{\"jsonrpc\":\"2.0\",");
    client.send_raw(b"\"method\":\"a\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"b\"}\n{\"json");
    client.send_raw(b"rpc\":\"2.0\",\"method\":\"c\"}\n");
    for method in ["a", "b", "c"] {
        assert_eq!(json(&bridge.receive())["method"], method);
    }
    bridge.send_raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"d\"}\n{\"jsonrpc\"");
    assert_eq!(client.receive_json()["method"], "d");
    bridge.send_raw(b":\"2.0\",\"method\":\"e\"}\n");
    assert_eq!(client.receive_json()["method"], "e");
    for id in 1..=50 {
        client.send(&request(id, "tools/call"));
    }
    for id in 1..=50 {
        assert_eq!(bridge.receive(), request(id, "tools/call"));
    }
    for id in (1..=50).rev() {
        bridge.send(&result(&id.to_string()));
    }
    for id in (1..=50).rev() {
        assert_eq!(client.receive(), result(&id.to_string()));
    }
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn flood_in_both_directions_is_forwarded_without_loss() {
    const COUNT: u64 = 20_000;
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
    let mut stdin = client.take_stdin();
    let there = std::thread::spawn(move || {
        for id in 0..COUNT {
            stdin.write_all(format!("{}\n", request(id, "tools/call")).as_bytes()).unwrap();
        }
        stdin
    });
    let mut stream = bridge.stream();
    let back = std::thread::spawn(move || {
        for id in 0..COUNT {
            stream.write_all(format!("{}\n", result(&id.to_string())).as_bytes()).unwrap();
        }
    });
    for id in 0..COUNT {
        assert_eq!(bridge.receive(), request(id, "tools/call"));
    }
    for id in 0..COUNT {
        assert_eq!(client.receive(), result(&id.to_string()));
    }
    back.join().unwrap();
    drop(there.join().unwrap());
    assert_eq!(bridge.receive_all(), b"");
    client.kill();
    drop(daemon);
    home.finish();
}

#[test]
fn too_long_message_is_answered_and_skipped() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let (mut client, mut bridge) = connected(&home, &daemon);
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
        let answer = client.receive_json();
        assert_eq!(answer["id"], id);
        assert_eq!(answer["error"]["code"], -32600);
        assert!(answer["error"]["message"].as_str().unwrap().contains("32 MiB"), "{answer}");
    }
    assert_eq!(bridge.receive(), request(1, "ping"));
    drop(writer.join().unwrap());
    client.kill();
    drop(daemon);
    home.finish();
}
