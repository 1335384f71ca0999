//! Servers that are killed at random instants under many clients.

use std::time::Duration;

use rustix::process::Signal;

use crate::chance::Chance;
use crate::clients::Client;
use crate::ledger::Rules;
use crate::scene::{Habits, Scene, http_flags};
use crate::weather::{Mercy, Weather, strike};
use crate::{seconds, tell};

const SERVERS: usize = 10;
const CLIENTS: usize = 50;

/// Those that are called over HTTP: one that runs somewhere else, and two of ours.
const FAR: usize = 7;
const WEB: [usize; 2] = [8, 9];

/// Ten servers: of both eras, that read ahead and that do not, by pipes, over HTTP and by a URL.
#[track_caller]
fn servers(scene: &mut Scene) {
    for number in 0..SERVERS {
        if number == FAR {
            scene.serve_far(&format!("server{number}"));
            continue;
        }
        let own: &[&str] = match number {
            3 => &["--unbuffered"],
            4 => &["--era", "both"],
            5 => &["--era", "modern"],
            6 => &["--era", "modern", "--unbuffered"],
            // Over HTTP it has no streams, and so nothing to listen to.
            9 => &["--era", "modern", "--no-listen"],
            _ => &[],
        };
        let (http, more) =
            if WEB.contains(&number) { http_flags() } else { (Vec::new(), String::new()) };
        let flags: Vec<&str> = http.iter().map(String::as_str).chain(own.iter().copied()).collect();
        scene.serve(&format!("server{number}"), &flags, &more);
    }
}

/// A whole storm of kills, and its settlement.
fn storm(mercy: Mercy, time: Duration) {
    let mut chance = Chance::new();
    let mut scene = Scene::new();
    servers(&mut scene);
    let all: Vec<usize> = (0..SERVERS).collect();
    scene.home.daemon();
    scene.ready(&all);
    let habits = Habits { servers: all.clone(), call_ms: 30, at_once: 4 };
    let clients: Vec<(Client, Habits)> =
        (0..CLIENTS).map(|it| (Client::number(&scene.home, it), habits.clone())).collect();
    let weather = Weather { servers: all.clone(), signal: Signal::KILL, mercy, time };
    let (mut calls, blows) =
        scene.storm(&clients, &mut chance, |chance| strike(&scene, chance, &weather));
    calls.extend(scene.looks(&clients[0].0, &all));
    tell(&format!("{SERVERS} servers, {CLIENTS} clients, {time:?}, mercy: {mercy:?}"));
    let is_struck = |server: &usize| blows.iter().any(|blow| blow.is_at(*server));
    let unstruck: Vec<usize> = all.iter().copied().filter(|it| !is_struck(it)).collect();
    let [waited, resumed] = ["xy_server_calls_parked_total", "xy_server_calls_again_total"]
        .map(|name| scene.counted(name));
    let unordered = [FAR].into_iter().chain(WEB).collect();
    let tally = scene.settle(calls, blows, &Rules { unordered, ..Rules::default() });
    assert_eq!(unstruck, [0; 0], "not all were killed");
    assert!(tally.unknown > 0, "nothing was interrupted: {tally:?}");
    assert!(waited > 0 && resumed > 0, "{waited} calls waited, {resumed} were sent again");
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
