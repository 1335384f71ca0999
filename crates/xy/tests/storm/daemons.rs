//! Daemons that are killed during calls: clients behind `xy connect` go on, and servers never
//! notice.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::Daemon;

use crate::clients::Client;
use crate::faults::{Fault, Target};
use crate::fixture::{CallPattern, Fixture, http_flags};
use crate::ledger::Rules;
use crate::rng::Rng;
use crate::support::signal;
use crate::{pause, print_figure, seconds};

const SERVERS: usize = 6;
const CLIENTS: usize = 12;

/// The HTTP servers: a legacy one with sessions, and a modern one.
const WEB: [usize; 2] = [4, 5];

/// Returns the flags of each server.
fn flags_of(number: usize) -> &'static [&'static str] {
    match number {
        3 => &["--era", "modern"],
        4 => &["--sessions"],
        5 => &["--era", "modern", "--no-listen"],
        _ => &[],
    }
}

/// Kills one daemon after the other, until the time is over.
fn kill(fixture: &Fixture, rng: &mut Rng, first: Daemon) -> Vec<Fault> {
    let until = fixture.now() + seconds(60, 6);
    let (mut daemon, mut kills) = (first, Vec::new());
    while fixture.now() < until {
        pause(rng.millis_below(600));
        let begun_at = fixture.now();
        daemon.kill9();
        kills.push(Fault { target: Target::Daemon, begun_at, at: fixture.now() });
        if rng.one_in(2) {
            pause(rng.millis_below(200)); // For a while there is no daemon.
        }
        daemon = fixture.home.daemon();
    }
    kills
}

#[test]
fn calls_and_servers_survive_killed_daemons() {
    let mut rng = Rng::new();
    let mut fixture = Fixture::new();
    let all: Vec<usize> = (0..SERVERS).collect();
    for number in &all {
        let (http, place) =
            if WEB.contains(number) { http_flags() } else { (Vec::new(), String::new()) };
        let flags: Vec<&str> =
            http.iter().map(String::as_str).chain(flags_of(*number).iter().copied()).collect();
        // Modern health probes use the same method as the handshake. Without probes every such
        // request is a handshake.
        let more = format!("{place}health {{ probe \"off\" }}\n");
        fixture.serve(&format!("server{number}"), &flags, &more);
    }
    let daemon = fixture.home.daemon();
    let pids = fixture.ready(&all);
    let pattern = CallPattern { servers: all.clone(), call_ms: 30, at_once: 4 };
    let clients: Vec<(Client, CallPattern)> =
        (0..CLIENTS).map(|it| (Client::bridge(&fixture.home, it), pattern.clone())).collect();
    let greetings: Vec<usize> = all.iter().map(|it| greetings(&fixture, *it)).collect();
    assert!(greetings.iter().all(|it| *it > 0), "each has written that down: {greetings:?}");
    let plan = |rng: &mut Rng| kill(&fixture, rng, daemon);
    let (mut calls, kills) = fixture.storm(&clients, &mut rng, plan);
    calls.extend(fixture.call_each(&clients[0].0, &all));
    print_figure(&format!("{SERVERS} servers, {CLIENTS} clients, the daemon killed"));
    // A bridge retries a call once, but not if it was killed again or its tools are unknown.
    let rules = Rules { may_be_unknown: true, unordered: WEB.into(), ..Rules::default() };
    let count = kills.len();
    let tally = fixture.check(calls, kills, &rules);
    assert!(count > 3, "the daemon was hardly killed");
    assert!(tally.unknown > 0 && tally.done > tally.unknown, "{tally:?}");
    assert_eq!(fixture.ready(&all), pids, "the servers live on");
    let now: Vec<usize> = all.iter().map(|it| self::greetings(&fixture, *it)).collect();
    assert_eq!(now, greetings, "each was greeted once");
    for (pid, server) in pids.iter().zip(&all) {
        assert!(xy_testkit::is_alive(*pid), "server {server}");
    }
    fixture.finish(clients);
}

#[test]
fn killed_daemon_answers_calls_once_and_retries_reads() {
    let mut fixture = Fixture::new();
    let server = fixture.serve("one", &["--unbuffered"], "health { probe \"off\" }\n");
    let daemon = fixture.home.daemon();
    let pids = fixture.ready(&[server]);
    let greeted = greetings(&fixture, server);
    let client = fixture.home.mcp_connect(&["--no-start"]);
    client.initialize();
    client.tool_names();
    let read = |uri: &str| client.start_request("resources/read", json!({ "uri": uri }));
    let call = |tool: &str, number: u64| {
        client.start_call(&format!("one__{tool}"), json!({ "number": number, "ms": 0 }))
    };
    let open = "xy_server_calls_open{server=\"one\"}";
    fixture.home.wait_until("its last list is known", || {
        fixture.received_count(server, "resources/templates/list") == 1 && fixture.metric(open) == 0
    });
    // The server is stopped, so all these calls are in transit when the daemon dies.
    signal(pids[0], Signal::STOP);
    let reads: Vec<u64> = (0..3).map(|_| read("xy://one/test://static")).collect();
    let (record, look) = (call("record", 1), call("look", 2));
    fixture.home.wait_until("all of them are on their way", || fixture.metric(open) == 5);
    // The gateway writes batched messages before the next event, and each of these requests is one.
    for _ in 0..3 {
        client.request("ping", Value::Null);
        fixture.metric(open);
    }
    daemon.kill9();
    // The client learns at once that a call must not be repeated.
    let response = client.wait_answer(record);
    assert_eq!(response["error"]["code"], -32010, "{response}");
    fixture.home.daemon();
    signal(pids[0], Signal::CONT);
    for id in reads {
        let answer = client.wait_answer(id);
        assert!(answer["result"]["contents"].is_array(), "it only reads: {answer}");
    }
    let looked = client.wait_answer(look);
    assert!(looked["result"].is_object(), "its tool is read-only: {looked}");
    let later = client.wait_answer(call("record", 3));
    assert_eq!(later["result"]["content"][0]["text"], format!("3 {}", pids[0]), "{later}");

    assert_eq!(fixture.ready(&[server]), pids, "it never noticed");
    assert_eq!(greetings(&fixture, server), greeted, "nor was it greeted again");
    assert_eq!(fixture.received_count(server, "resources/read"), 6, "each was asked twice");
    assert_eq!(fixture.record_of("one"), [1, 3], "and nothing else was");
    assert_eq!(client.unclaimed_answers(), [""; 0], "each has one answer");
    client.close();
    fixture.home.finish();
}

/// Returns how often a server was greeted.
fn greetings(fixture: &Fixture, server: usize) -> usize {
    ["initialize", "server/discover"].iter().map(|it| fixture.received_count(server, it)).sum()
}
