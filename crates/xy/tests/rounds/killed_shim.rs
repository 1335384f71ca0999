//! Shims are killed, alone or with the daemon, and daemons are killed while they start a shim.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::process::{Pid, Signal};
use serde_json::json;
use xy_testkit::{Daemon, Home, is_alive};

use crate::client::Client;
use crate::processes::{ServerProcess, assert_runs_once, leaders, list_by_name, server_processes};
use crate::rng::Rng;
use crate::run_log;
use crate::support::home;
use crate::{pause, print_figure, rounds};

const SERVERS: usize = 8;

/// A script for every second server, in which a descendant leaves the leader's process group and
/// ignores signals.
const ESCAPES: &str = "(setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done' &); \
                       while :; do sleep 1; done";

#[test]
fn killed_shims_and_servers_are_restarted_once() {
    let mut rng = Rng::new();
    let home = home();
    home.expect_left("home/");
    let names: Vec<String> = (0..SERVERS).map(|number| format!("server-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        home.server(name, &kdl(&home, number));
    }
    let mut daemon = home.daemon();
    assert_all_run_once(&home, &names);
    let mut how_often = [0; 4];
    for _ in 0..rounds(60, 12) {
        let way = usize::try_from(rng.below(4)).unwrap();
        how_often[way] += 1;
        match way {
            0 => kill_shims(&mut rng, &home, &names),
            1 => kill_both(&mut rng, &home, &names, &daemon),
            2 => kill_in_a_start(&mut rng, &home, &names, &daemon),
            _ => kill_in_the_first_start(&mut rng, &home, &daemon),
        }
        if way != 0 {
            daemon = home.daemon();
        }
        assert_all_run_once(&home, &names);
        run_log::assert_no_overlap(&home);
    }
    print_figure(&format!("shims, both, in a start, in the first start: {how_often:?}"));
    assert!(daemon.terminate().success());
    assert_eq!(server_processes(&home), []);
    home.finish();
}

fn kdl(home: &Home, number: usize) -> String {
    let command = if number.is_multiple_of(2) {
        let run_log = run_log::folder(home);
        home.kdl_command(
            "xy-test-run-log",
            &["--run-log", run_log.to_str().unwrap(), "--every", "5"],
        )
    } else {
        format!("command \"bash\"\nargs \"-c\" #\"{ESCAPES}\"#\nstop {{ grace \"200ms\" }}\n")
    };
    let port = if number % 4 < 2 { String::new() } else { format!("port {}\n", 8500 + number) };
    let restart = "restart { policy \"always\"; backoff-initial \"20ms\"; backoff-max \"50ms\"; \
                   max-retries-per-minute 0; max-attempts 0 }\n";
    format!("{command}{port}{restart}")
}

/// Kills one or several shims under a running daemon.
fn kill_shims(rng: &mut Rng, home: &Home, names: &[String]) {
    let leaders = leaders(home);
    let shims: Vec<u32> = some(rng, names).iter().map(|name| leaders[name][0].parent).collect();
    for &shim in &shims {
        kill(shim);
    }
    home.wait_until("they are dead", || !shims.iter().any(|&shim| is_alive(shim)));
}

/// Kills shims and the daemon, in any order.
fn kill_both(rng: &mut Rng, home: &Home, names: &[String], daemon: &Daemon) {
    let leaders = leaders(home);
    let shims: Vec<u32> = some(rng, names).iter().map(|name| leaders[name][0].parent).collect();
    let first = rng.one_in(2);
    if first {
        daemon.kill9();
    }
    for shim in shims {
        kill(shim);
    }
    if !first {
        pause(rng.millis_below(5));
        daemon.kill9();
    }
}

/// Kills the daemon right after it was asked for restarts.
fn kill_in_a_start(rng: &mut Rng, home: &Home, names: &[String], daemon: &Daemon) {
    let selected = some(rng, names);
    std::thread::scope(|scope| {
        for name in selected {
            scope.spawn(move || {
                let mut client = Client::open(&home.socket())?;
                client.ask("restart", json!({ "name": name, "wait": false }))
            });
        }
        // A new life begins a moment after the end of the old one.
        pause(rng.millis_below(60));
        daemon.kill9();
    });
}

/// Stops all servers, has a daemon start them, and kills it before they print.
fn kill_in_the_first_start(rng: &mut Rng, home: &Home, daemon: &Daemon) {
    assert!(daemon.terminate().success());
    for _ in 0..3 {
        let short_lived = home.spawn_daemon(Path::new(env!("CARGO_BIN_EXE_xy")), &[]);
        pause(rng.millis_below(80));
        short_lived.kill9();
    }
}

/// Returns a random, non-empty selection.
fn some(rng: &mut Rng, names: &[String]) -> BTreeSet<String> {
    (0..=rng.below(3)).map(|_| rng.pick(names).clone()).collect()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// Waits until all servers run, and checks that each runs once and no other process is left.
#[track_caller]
fn assert_all_run_once(home: &Home, names: &[String]) {
    // A killed shim takes its leader with it; the daemon may not have noticed yet.
    let (list, leaders) = home.wait_until("all run under living shims", || {
        let (list, leaders) = (list_by_name(home), leaders(home));
        let runs = |name: &String| {
            let mut there = leaders.get(name).into_iter().flatten();
            list[name]["state"] == "running" && there.any(|it| list[name]["pid"] == it.pid)
        };
        names.iter().all(runs).then_some((list, leaders))
    });
    let life = |name| assert_runs_once(home, name, &leaders[name], &list[name]).life.as_str();
    let lives: BTreeMap<&str, &str> =
        names.iter().map(|name| (name.as_str(), life(name))).collect();
    let is_old = |it: &ServerProcess| it.life != lives[it.server.as_str()];
    let old: Vec<_> = server_processes(home).into_iter().filter(is_old).collect();
    assert!(old.is_empty(), "left of old lives: {old:#?}");
}
