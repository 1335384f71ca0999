//! Daemons that are killed in the middle of calls: clients behind `xy connect` go on, and
//! servers never notice.

use xy_testkit::Daemon;

use crate::chance::Chance;
use crate::clients::Client;
use crate::ledger::{Blow, Rules, Victim};
use crate::scene::{Habits, Scene};
use crate::{pause, seconds, tell};

const SERVERS: usize = 4;
const CLIENTS: usize = 12;

/// Kills one daemon after the other, for so long.
fn kill(scene: &Scene, chance: &mut Chance, first: Daemon) -> Vec<Blow> {
    let until = scene.now() + seconds(60, 6);
    let (mut daemon, mut kills) = (first, Vec::new());
    while scene.now() < until {
        pause(chance.millis_below(600));
        daemon.kill9();
        kills.push(Blow { victim: Victim::Daemon, at: scene.now() });
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
        let flags: &[&str] = if *number == 3 { &["--era", "modern"] } else { &[] };
        scene.serve(&format!("server{number}"), flags, "");
    }
    let daemon = scene.home.daemon();
    let pids = scene.ready(&all);
    let habits = Habits { servers: all.clone(), call_ms: 30, at_once: 4 };
    let clients: Vec<(Client, Habits)> =
        (0..CLIENTS).map(|it| (Client::bridge(&scene.home, it), habits.clone())).collect();
    let greetings: Vec<usize> = all.iter().map(|it| greetings(&scene, *it)).collect();
    let weather = |chance: &mut Chance| kill(&scene, chance, daemon);
    let (mut calls, kills) = scene.storm(&clients, &mut chance, weather);
    calls.extend(scene.looks(&clients[0].0, &all));
    tell(&format!("{SERVERS} servers, {CLIENTS} clients, the daemon killed"));
    // Whoever carries calls to the daemon does not know which of them may be done twice.
    let rules = Rules { may_be_unknown: true, ..Rules::default() };
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

/// How often a server has been greeted.
fn greetings(scene: &Scene, server: usize) -> usize {
    ["initialize", "server/discover"].iter().map(|it| scene.heard_of(server, it)).sum()
}
