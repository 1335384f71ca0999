//! Broken, slow and malicious clients. None of them affects another client.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, Wire, WireEvent};

use crate::talk::Talk;
use crate::{TIMEOUT, home, home_with_one};

const GOOD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"good\",\"method\":\"version\"}\n";

/// Checks that connected clients and new clients are answered.
struct Bystander<'a> {
    home: &'a Home,
    wire: Wire,
}

impl<'a> Bystander<'a> {
    fn of(home: &'a Home) -> Self {
        Self { home, wire: home.connect() }
    }

    #[track_caller]
    fn assert_served(&mut self) {
        assert!(self.wire.call("list", Value::Null).unwrap().is_array());
        assert!(self.home.call("status", json!({ "name": "one" })).unwrap().is_object());
    }
}

/// Checks that the next answer is the one to [`GOOD`].
#[track_caller]
fn assert_good_answer(wire: &mut Wire) {
    assert_eq!(wire.next(TIMEOUT)["id"], "good");
}

/// Returns pseudo-random bytes that are the same in every run.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn invalid_lines_are_refused_one_by_one() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut wire = home.connect();
    wire.send_raw(&noise(100_000));
    bystander.assert_served();
    wire.send_raw(b"\n");
    wire.send_raw(GOOD);
    let mut refused = 0;
    loop {
        let answer = wire.next(TIMEOUT);
        if answer["id"] == "good" {
            break;
        }
        assert!([-32700, -32600].contains(&answer["error"]["code"].as_i64().unwrap()), "{answer}");
        assert!(answer["id"].is_null(), "{answer}");
        refused += 1;
    }
    assert!(refused > 100, "{refused}");
    bystander.assert_served();
    home.finish();
}

#[test]
fn incomplete_line_is_discarded_on_disconnect() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    for half in [
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"shutdown\"}", // Without its line end.
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"meth",
        "{",
        "\u{0}",
    ] {
        let mut gone = home.connect();
        gone.send_raw(half.as_bytes());
        drop(gone);
        let mut only_closed = home.connect();
        only_closed.send_raw(half.as_bytes());
        only_closed.close_sending();
        assert_eq!(only_closed.receive(TIMEOUT), WireEvent::Closed);
        bystander.assert_served();
    }
    home.finish();
}

#[test]
fn incomplete_line_delays_no_client() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut silent: Vec<Wire> = (0..20).map(|_| home.connect()).collect();
    for wire in &mut silent {
        wire.send_raw(&GOOD[..20]);
    }
    bystander.assert_served();
    for wire in &mut silent {
        wire.send_raw(&GOOD[20..]);
        assert_good_answer(wire);
    }
    home.finish();
}

#[test]
fn split_and_joined_requests_are_answered() {
    let home = home_with_one();
    let mut wire = home.connect();
    for byte in GOOD {
        wire.send_raw(&[*byte]);
    }
    assert_good_answer(&mut wire);
    wire.send_raw(&[GOOD, GOOD, GOOD].concat());
    for _ in 0..3 {
        assert_good_answer(&mut wire);
    }
    home.finish();
}

#[test]
fn oversized_line_is_refused_without_memory_growth() {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &[]));
    let daemon = home.daemon();
    let mut bystander = Bystander::of(&home);
    let mut wire = home.connect();
    let megabyte = vec![b'x'; 1_000_000];
    for part in 0..100 {
        wire.send_raw(&megabyte);
        if part % 25 == 0 {
            bystander.assert_served();
        }
    }
    wire.send_raw(b"\n");
    wire.send_raw(GOOD);
    let refused = wire.next(TIMEOUT);
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32600), &Value::Null));
    assert_good_answer(&mut wire);
    if let Some(peak) = memory(daemon.pid, "VmHWM:") {
        assert!(peak < 60_000, "the daemon took {peak} kB");
    }
    home.finish();
}

/// Returns a field of `/proc/<pid>/status` in kB, on systems that have it.
pub(crate) fn memory(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn odd_messages_are_answered() {
    let home = home_with_one();
    let mut talk = Talk::with(&home);
    let long = "x".repeat(1000);
    talk.remark("ids");
    for id in [
        "null",
        "0",
        "-7",
        "9223372036854775807",
        "9223372036854775808",
        "123456789012345678901234567890",
        "1.5",
        "1e3",
        "true",
        "{}",
        "[1]",
        "\"\"",
        "\"a\\u0000\\u001b\\ud83d\\ude00\\\"\"",
        &format!("\"{long}\""),
    ] {
        talk.ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"version"}}"#));
    }
    talk.remark("keys in another order, twice, unknown, escaped, with blanks");
    talk.ask(r#"{"method":"version","id":1,"jsonrpc":"2.0"}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"version"}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":3,"method":"stop","method":"version"}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":4,"method":"status","params":{"name":"x","name":"one"}}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":5,"method":"version","trace":[1,2]}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":6,"method":"\u0076ersion"}"#);
    talk.ask(" \t{ \"jsonrpc\" : \"2.0\" , \"id\" : 7 , \"method\" : \"version\" } \t\r");
    talk.ask(r#"{"jsonrpc":"2.0","id":8,"method":"version","params":null}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":9,"method":"version","params":7}"#);
    talk.remark("text that is none");
    talk.ask(r#"{"jsonrpc":"2.0","id":10,"method":"\ud800"}"#);
    talk.ask("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":11,\"method\":\"version\"}");
    talk.ask(r#"{"jsonrpc":"2.0","id":12,"method":"version"} {"jsonrpc":"2.0","id":13,"method":"version"}"#);
    talk.ask("{\"jsonrpc\":\"2.0\",\"id\":14,\u{0}\"method\":\"version\"}");
    talk.send_unlogged(b"{\"jsonrpc\":\"2.0\",\"id\":15,\"method\":\"\xff\xfe\"}\n");
    talk.receive();
    talk.send_unlogged(b"\0\0\0\0\n");
    talk.receive();
    talk.remark("empty lines and notifications are not answered, whatever they ask");
    talk.send("");
    talk.send("\r");
    talk.send(r#"{"jsonrpc":"2.0","method":"list"}"#);
    talk.send(r#"{"jsonrpc":"2.0","method":"no-such-method"}"#);
    talk.send(r#"{"jsonrpc":"2.0","method":"status","params":{"name":"nobody"}}"#);
    talk.send(r#"{"jsonrpc":"2.0","method":"events"}"#);
    talk.send(r#"{"jsonrpc":"2.0","method":"logs_cancel","params":{"subscription_id":1}}"#);
    talk.ask(r#"{"jsonrpc":"2.0","id":16,"method":"version"}"#);
    assert_snapshot!(talk.text().replace(&long, "[a thousand x]"));
    home.finish();
}

#[test]
fn notification_is_executed() {
    let home = home_with_one();
    let mut wire = home.connect();
    wire.send(&json!({ "jsonrpc": "2.0", "method": "stop", "params": { "name": "one" } }));
    home.wait_for_state("one", "stopped");
    wire.send_raw(GOOD);
    assert_good_answer(&mut wire);
    home.finish();
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut wire = home.connect();
    let deep = |open: &str, close: &str| open.repeat(100_000) + "1" + &close.repeat(100_000);
    let (arrays, objects) = (deep("[", "]"), deep("{\"a\":", "}"));
    for line in [
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        objects.clone(),
        format!(r#"{{"jsonrpc":"2.0","id":{arrays},"method":"version"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":{arrays}}}"#),
        format!(r#"{{"jsonrpc":{arrays},"id":1,"method":"version"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"version","params":{arrays}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"status","params":{objects}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"status","params":{{"name":{arrays}}}}}"#),
    ] {
        wire.send_raw(line.as_bytes());
        wire.send_raw(b"\n");
        let answer = wire.next(TIMEOUT);
        let code = answer["error"]["code"].as_i64();
        assert!(matches!(code, Some(-32700 | -32600 | -32602)), "{line:.60} → {answer}");
        bystander.assert_served();
    }
    // An unknown key may hold any JSON, which the daemon skips.
    wire.send_raw(
        format!(r#"{{"more":{arrays},{}"#, &String::from_utf8_lossy(&GOOD[1..])).as_bytes(),
    );
    assert_good_answer(&mut wire);
    home.finish();
}

#[test]
fn megabyte_name_is_not_echoed() {
    let home = home_with_one();
    for number in 0..40 {
        home.server(&format!("server-{number}"), "command \"/nowhere/at/all\"\n");
    }
    home.call("reload", Value::Null).unwrap();
    let mut bystander = Bystander::of(&home);
    let mut wire = home.connect();
    let params = json!({ "name": "o".repeat(1_000_000) });
    for method in ["status", "start", "stop", "restart", "logs"] {
        wire.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    }
    bystander.assert_served();
    for _ in 0..5 {
        let answer = wire.next(TIMEOUT);
        assert_eq!(answer["error"]["code"], -32001);
        assert!(answer.to_string().len() < 1000, "{} bytes", answer.to_string().len());
    }
    home.finish();
}

#[test]
fn client_with_unread_answers_delays_no_other() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut silent = home.connect();
    let ask = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "list" }).to_string() + "\n";
    silent.send_raw((0..1000).map(ask).collect::<String>().as_bytes());
    for _ in 0..20 {
        bystander.assert_served();
    }
    let mut ids: Vec<u64> =
        (0..1000).map(|_| silent.next(TIMEOUT)["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..1000), "each was answered once");
    home.finish();
}

#[test]
fn daemon_stops_reading_a_client_that_never_reads() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut silent = UnixStream::connect(home.socket()).unwrap();
    silent.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let many = GOOD.repeat(1000);
    let mut sent = 0;
    let stopped = loop {
        match silent.write(&many) {
            Ok(count) => sent += count,
            Err(cause) => break cause,
        }
        assert!(sent < 50_000_000, "the daemon keeps {sent} bytes of requests");
    };
    assert_eq!(stopped.kind(), ErrorKind::WouldBlock);
    bystander.assert_served();
    drop(silent);
    bystander.assert_served();
    home.finish();
}

#[test]
fn follower_that_never_reads_delays_no_other() {
    let home = home_with_one();
    let mut bystander = Bystander::of(&home);
    let mut silent = home.connect();
    silent.call("logs", json!({ "name": "one", "tail": 1, "follow": true })).unwrap();
    assert!(silent.next(TIMEOUT)["params"]["line"].as_str().unwrap().starts_with("started"));
    let spews = ["--lines", "300000", "--flush", "block"];
    home.server("one", &home.kdl_command("xy-test-spew", &spews));
    home.call("reload", Value::Null).unwrap();
    bystander.assert_served();
    // The server ends once all its lines have been read.
    let in_the_end = home.wait_for_state("one", "stopped");
    assert_eq!(in_the_end["last_exit"]["code"], 0);
    bystander.assert_served();
    let all = 300_001; // And the last line of its previous life.
    let (mut shown, mut skipped) = (0, 0);
    while shown + skipped < all {
        let message = silent.next(TIMEOUT);
        match message["method"].as_str().unwrap() {
            "log" => shown += 1,
            "log_skipped" => skipped += message["params"]["count"].as_u64().unwrap(),
            other => panic!("unexpected method `{other}`"),
        }
    }
    assert_eq!(shown + skipped, all);
    assert!(skipped > 0, "the daemon kept everything for a client that never read");
    home.finish();
}
