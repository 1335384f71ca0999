//! Daemons that are killed in the middle of calls: clients behind `xy connect` go on, and
//! servers never notice.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::Daemon;

use crate::blows::{Blow, Victim};
use crate::chance::Chance;
use crate::clients::Client;
use crate::ledger::Rules;
use crate::scene::{Habits, Scene, http_flags};
use crate::support::signal;
use crate::{pause, seconds, tell};

const SERVERS: usize = 6;
const CLIENTS: usize = 12;

/// Those that are called over HTTP: one with sessions, and one of the era without.
const WEB: [usize; 2] = [4, 5];

/// The flags of each of them.
fn flags_of(number: usize) -> &'static [&'static str] {
    match number {
        3 => &["--era", "modern"],
        4 => &["--sessions"],
        5 => &["--era", "modern", "--no-listen"],
        _ => &[],
    }
}

/// Kills one daemon after the other, for so long.
fn kill(scene: &Scene, chance: &mut Chance, first: Daemon) -> Vec<Blow> {
    let until = scene.now() + seconds(60, 6);
    let (mut daemon, mut kills) = (first, Vec::new());
    while scene.now() < until {
        pause(chance.millis_below(600));
        let begun_at = scene.now();
        daemon.kill9();
        kills.push(Blow { victim: Victim::Daemon, begun_at, at: scene.now() });
        if chance.one_in(2) {
            pause(chance.millis_below(200)); // Nobody is there for a while.
        }
        daemon = scene.home.daemon();
    }
    kills
}

#[test]
fn a_daemon_killed_in_the_middle_of_calls_is_survived_and_no_server_notices() {
    let mut chance = Chance::new();
    let mut scene = Scene::new();
    let all: Vec<usize> = (0..SERVERS).collect();
    for number in &all {
        let (http, place) =
            if WEB.contains(number) { http_flags() } else { (Vec::new(), String::new()) };
        let flags: Vec<&str> =
            http.iter().map(String::as_str).chain(flags_of(*number).iter().copied()).collect();
        // In the newer era a probe asks what a greeting does: without, all that is heard is one.
        let more = format!("{place}health {{ probe \"off\" }}\n");
        scene.serve(&format!("server{number}"), &flags, &more);
    }
    let daemon = scene.home.daemon();
    let pids = scene.ready(&all);
    let habits = Habits { servers: all.clone(), call_ms: 30, at_once: 4 };
    let clients: Vec<(Client, Habits)> =
        (0..CLIENTS).map(|it| (Client::bridge(&scene.home, it), habits.clone())).collect();
    let greetings: Vec<usize> = all.iter().map(|it| greetings(&scene, *it)).collect();
    assert!(greetings.iter().all(|it| *it > 0), "each has written that down: {greetings:?}");
    let weather = |chance: &mut Chance| kill(&scene, chance, daemon);
    let (mut calls, kills) = scene.storm(&clients, &mut chance, weather);
    calls.extend(scene.looks(&clients[0].0, &all));
    tell(&format!("{SERVERS} servers, {CLIENTS} clients, the daemon killed"));
    // The bridge repeats a call once, and not if it was killed again or its tools are not listed.
    let rules = Rules { may_be_unknown: true, unordered: WEB.into(), ..Rules::default() };
    let count = kills.len();
    let tally = scene.settle(calls, kills, &rules);
    assert!(count > 3, "the daemon was hardly killed");
    assert!(tally.unknown > 0 && tally.done > tally.unknown, "{tally:?}");
    assert_eq!(scene.ready(&all), pids, "the servers live on");
    let now: Vec<usize> = all.iter().map(|it| self::greetings(&scene, *it)).collect();
    assert_eq!(now, greetings, "each was greeted once");
    for (pid, server) in pids.iter().zip(&all) {
        assert!(xy_testkit::is_alive(*pid), "server {server}");
    }
    scene.finish(clients);
}

#[test]
fn what_is_open_when_a_daemon_is_killed_is_answered_once_and_what_only_reads_is_asked_again() {
    let mut scene = Scene::new();
    let server = scene.serve("one", &["--unbuffered"], "health { probe \"off\" }\n");
    let daemon = scene.home.daemon();
    let pids = scene.ready(&[server]);
    let greeted = greetings(&scene, server);
    let client = scene.home.mcp_connect(&["--no-start"]);
    client.initialize();
    client.tool_names();
    let read = |uri: &str| client.start_request("resources/read", json!({ "uri": uri }));
    let call = |tool: &str, number: u64| {
        client.start_call(&format!("one__{tool}"), json!({ "number": number, "ms": 0 }))
    };
    let open = "xy_server_calls_open{server=\"one\"}";
    scene.home.wait_until("its last list is known", || {
        scene.heard_of(server, "resources/templates/list") == 1 && scene.counted(open) == 0
    });
    // It is stopped, so all of this is on its way to it when the daemon dies.
    signal(pids[0], Signal::STOP);
    let reads: Vec<u64> = (0..3).map(|_| read("xy://one/test://static")).collect();
    let (record, look) = (call("record", 1), call("look", 2));
    scene.home.wait_until("all of them are on their way", || scene.counted(open) == 5);
    // What is gathered is written before the next thing is done, and each of these is one.
    for _ in 0..3 {
        client.request("ping", Value::Null);
        scene.counted(open);
    }
    daemon.kill9();
    // Of what must not be done twice the client is told at once.
    let told = client.wait_answer(record);
    assert_eq!(told["error"]["code"], -32010, "{told}");
    scene.home.daemon();
    signal(pids[0], Signal::CONT);
    for id in reads {
        let answer = client.wait_answer(id);
        assert!(answer["result"]["contents"].is_array(), "it only reads: {answer}");
    }
    let looked = client.wait_answer(look);
    assert!(looked["result"].is_object(), "its tool is read-only: {looked}");
    let later = client.wait_answer(call("record", 3));
    assert_eq!(later["result"]["content"][0]["text"], format!("3 {}", pids[0]), "{later}");

    assert_eq!(scene.ready(&[server]), pids, "it never noticed");
    assert_eq!(greetings(&scene, server), greeted, "nor was it greeted again");
    assert_eq!(scene.heard_of(server, "resources/read"), 6, "each was asked twice");
    assert_eq!(scene.record_of("one"), [1, 3], "and nothing else was");
    assert_eq!(client.unclaimed_answers(), [""; 0], "each has one answer");
    client.close();
    scene.home.finish();
}

/// How often a server has been greeted.
fn greetings(scene: &Scene, server: usize) -> usize {
    ["initialize", "server/discover"].iter().map(|it| scene.heard_of(server, it)).sum()
}
