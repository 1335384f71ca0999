//! Servers that are killed at random instants under many clients.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use rustix::process::Signal;

use crate::chance::Chance;
use crate::clients::Client;
use crate::ledger::{Blow, Rules};
use crate::scene::{Habits, Scene};
use crate::support::{pid_in, signal};
use crate::{pause, seconds, tell};

const SERVERS: usize = 10;
const CLIENTS: usize = 50;

/// Whether a server may be struck while what its last death interrupted is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mercy {
    /// No call is struck twice.
    Some,
    /// Any instant will do, also while it starts.
    None,
}

/// What was done to a server last.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Well,
    /// This process of it was struck.
    Struck(u32),
    /// It is back, and these calls may have been interrupted.
    Recovering(BTreeSet<u64>),
}

/// Ten servers: of both eras, that read ahead and that do not, by pipes and over HTTP.
#[track_caller]
fn servers(scene: &mut Scene) {
    for number in 0..SERVERS {
        let port = free_port().to_string();
        let (flags, more): (&[&str], _) = match number {
            4 => (&["--unbuffered"], String::new()),
            5 => (&["--era", "both"], String::new()),
            6 => (&["--era", "modern"], String::new()),
            7 => (&["--era", "modern", "--unbuffered"], String::new()),
            8 => (&["--http", &port], http(&port)),
            9 => (&["--http", &port, "--era", "modern"], http(&port)),
            _ => (&[], String::new()),
        };
        scene.serve(&format!("server{number}"), flags, &more);
    }
}

fn http(port: &str) -> String {
    format!("transport \"http\"\nport {port}\npath \"/mcp\"\n")
}

/// A port that was free a moment ago.
#[track_caller]
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// Kills one server after the other, at random instants, for so long.
fn kill(scene: &Scene, chance: &mut Chance, mercy: Mercy, time: Duration) -> Vec<Blow> {
    let until = scene.now() + time;
    let mut conditions = vec![Condition::Well; scene.names.len()];
    let mut blows = Vec::new();
    while scene.now() < until {
        pause(chance.millis_below(60));
        let listed = scene.listed();
        for (server, condition) in conditions.iter_mut().enumerate() {
            let next = match &*condition {
                Condition::Struck(pid)
                    if listed[server]["state"] == "running" && listed[server]["pid"] != *pid =>
                {
                    Condition::Recovering(scene.open_at(server))
                }
                Condition::Recovering(open) if !scene.is_any_open(open) => Condition::Well,
                _ => continue,
            };
            *condition = next;
        }
        let may_be_struck = |server: &usize| match mercy {
            Mercy::Some => conditions[*server] == Condition::Well,
            Mercy::None => {
                let pid = listed[*server]["pid"].as_u64();
                let last = blows.iter().rev().find(|blow: &&Blow| blow.server == *server);
                pid.is_some_and(|pid| last.is_none_or(|last| u64::from(last.pid) != pid))
            }
        };
        let some: Vec<usize> = (0..listed.len()).filter(may_be_struck).collect();
        if !some.is_empty() {
            let server = *chance.pick(&some);
            let (pid, at) = (pid_in(&listed[server]), scene.now());
            signal(pid, Signal::KILL);
            conditions[server] = Condition::Struck(pid);
            blows.push(Blow { server, pid, at });
        }
    }
    blows
}

/// A whole storm of kills, and its settlement.
fn storm(mercy: Mercy, time: Duration) {
    let mut chance = Chance::new();
    let mut scene = Scene::new();
    servers(&mut scene);
    let all: Vec<usize> = (0..SERVERS).collect();
    scene.home.daemon();
    scene.ready(&all);
    let clients: Vec<Client> = (0..CLIENTS).map(|it| Client::number(&scene.home, it)).collect();
    let habits = Habits { call_ms: 30, at_once: 4 };
    let weather = |chance: &mut Chance| kill(&scene, chance, mercy, time);
    let (mut calls, blows) = scene.storm(&clients, &mut chance, habits, weather);
    calls.extend(scene.looks(&clients[0], &all));
    tell(&format!("{SERVERS} servers, {CLIENTS} clients, {time:?}, mercy: {mercy:?}"));
    let struck: BTreeSet<usize> = blows.iter().map(|blow| blow.server).collect();
    let tally = scene.settle(calls, blows, &Rules::default());
    assert_eq!(struck.len(), SERVERS, "not all were killed");
    assert!(tally.unknown > 0, "nothing was interrupted: {tally:?}");
    assert!(mercy == Mercy::None || tally.struck_twice == 0, "{tally:?}");
    scene.finish(clients);
}

#[test]
fn whenever_servers_are_killed_each_call_is_answered_once_and_nothing_is_done_twice() {
    storm(Mercy::Some, seconds(120, 10));
}

#[test]
fn servers_that_are_killed_again_at_once_lose_and_double_nothing_either() {
    storm(Mercy::None, seconds(60, 5));
}
