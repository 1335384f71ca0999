//! Shims are killed, alone or with the daemon, and daemons that have just begun a shim.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::process::{Pid, Signal};
use serde_json::json;
use xy_testkit::{Daemon, Home, is_alive};

use crate::census::{Resident, is_there_once, leaders, listed, residents};
use crate::chance::Chance;
use crate::client::Client;
use crate::diary;
use crate::support::home;
use crate::{pause, rounds, tell};

const SERVERS: usize = 8;

/// Every second of them leaves the tree of its leader, and hears nothing.
const ESCAPES: &str = "(setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done' &); \
                       while :; do sleep 1; done";

#[test]
fn whoever_is_killed_nothing_is_left_of_old_lives_and_all_come_back_once() {
    let mut chance = Chance::new();
    let home = home();
    home.expect_left("home/");
    let names: Vec<String> = (0..SERVERS).map(|number| format!("server-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        home.server(name, &kdl(&home, number));
    }
    let mut daemon = home.daemon();
    all_are_there_once(&home, &names);
    let mut how_often = [0; 4];
    for _ in 0..rounds(60, 12) {
        let way = usize::try_from(chance.below(4)).unwrap();
        how_often[way] += 1;
        match way {
            0 => kill_shims(&mut chance, &home, &names),
            1 => kill_both(&mut chance, &home, &names, &daemon),
            2 => kill_in_a_start(&mut chance, &home, &names, &daemon),
            _ => kill_in_the_first_start(&mut chance, &home, &daemon),
        }
        if way != 0 {
            daemon = home.daemon();
        }
        all_are_there_once(&home, &names);
        diary::nobody_was_there_twice(&home);
    }
    tell(&format!("shims, both, in a start, in the first start: {how_often:?}"));
    assert!(daemon.terminate().success());
    assert_eq!(residents(&home), []);
    home.finish();
}

fn kdl(home: &Home, number: usize) -> String {
    let command = if number.is_multiple_of(2) {
        let diary = diary::folder(home);
        home.kdl_command("xy-test-diary", &["--diary", diary.to_str().unwrap(), "--every", "5"])
    } else {
        format!("command \"bash\"\nargs \"-c\" #\"{ESCAPES}\"#\nstop {{ grace \"200ms\" }}\n")
    };
    let port = if number % 4 < 2 { String::new() } else { format!("port {}\n", 8500 + number) };
    let restart = "restart { policy \"always\"; backoff-initial \"20ms\"; backoff-max \"50ms\"; \
                   max-retries-per-minute 0; max-attempts 0 }\n";
    format!("{command}{port}{restart}")
}

/// One or several shims, while the daemon looks on.
fn kill_shims(chance: &mut Chance, home: &Home, names: &[String]) {
    let leaders = leaders(home);
    let shims: Vec<u32> = some(chance, names).iter().map(|name| leaders[name][0].parent).collect();
    for &shim in &shims {
        kill(shim);
    }
    home.wait_until("they are dead", || !shims.iter().any(|&shim| is_alive(shim)));
}

/// Shims and the daemon, in any order.
fn kill_both(chance: &mut Chance, home: &Home, names: &[String], daemon: &Daemon) {
    let leaders = leaders(home);
    let shims: Vec<u32> = some(chance, names).iter().map(|name| leaders[name][0].parent).collect();
    let first = chance.one_in(2);
    if first {
        daemon.kill9();
    }
    for shim in shims {
        kill(shim);
    }
    if !first {
        pause(chance.millis_below(5));
        daemon.kill9();
    }
}

/// The daemon, in the instant in which it has been asked for new lives.
fn kill_in_a_start(chance: &mut Chance, home: &Home, names: &[String], daemon: &Daemon) {
    let asked = some(chance, names);
    std::thread::scope(|scope| {
        for name in asked {
            scope.spawn(move || {
                let mut client = Client::open(&home.socket())?;
                client.ask("restart", json!({ "name": name, "wait": false }))
            });
        }
        // A new life begins as soon as the old one has ended, which takes a moment.
        pause(chance.millis_below(60));
        daemon.kill9();
    });
}

/// All are down; a daemon begins all of them, and is killed before they have said a word.
fn kill_in_the_first_start(chance: &mut Chance, home: &Home, daemon: &Daemon) {
    assert!(daemon.terminate().success());
    for _ in 0..3 {
        let short_lived = home.spawn_daemon(Path::new(env!("CARGO_BIN_EXE_xy")), &[]);
        pause(chance.millis_below(80));
        short_lived.kill9();
    }
}

/// At least one of them.
fn some(chance: &mut Chance, names: &[String]) -> BTreeSet<String> {
    (0..=chance.below(3)).map(|_| chance.pick(names).clone()).collect()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// Waits until all run, and checks that each does once, and that nothing else does.
#[track_caller]
fn all_are_there_once(home: &Home, names: &[String]) {
    // A killed shim takes its leader with it; the daemon may not have noticed yet.
    let (list, leaders) = home.wait_until("all run under living shims", || {
        let (list, leaders) = (listed(home), leaders(home));
        let runs = |name: &String| {
            let mut there = leaders.get(name).into_iter().flatten();
            list[name]["state"] == "running" && there.any(|it| list[name]["pid"] == it.pid)
        };
        names.iter().all(runs).then_some((list, leaders))
    });
    let life = |name| is_there_once(home, name, &leaders[name], &list[name]).life.as_str();
    let lives: BTreeMap<&str, &str> =
        names.iter().map(|name| (name.as_str(), life(name))).collect();
    let is_old = |it: &Resident| it.life != lives[it.server.as_str()];
    let old: Vec<_> = residents(home).into_iter().filter(is_old).collect();
    assert!(old.is_empty(), "left of old lives: {old:#?}");
}
