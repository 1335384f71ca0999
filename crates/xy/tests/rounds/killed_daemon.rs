//! The daemon is killed at random moments in the life of twenty servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use crate::client::Client;
use crate::exit_recorder::{Exit, ExitRecorder, exits_in, exits_in_log};
use crate::fleet::{Kind, Server, check_logs, fleet, write_files};
use crate::processes::{assert_runs_once, leaders, list_by_name};
use crate::rng::Rng;
use crate::run_log;
use crate::support::{ask, home, status};
use crate::{pause, print_figure, rounds};

/// A request for a server around the moment at which the daemon is killed.
struct Request {
    server: String,
    method: &'static str,
    waits: bool,
    after: Duration,
}

/// The known facts about each server between two rounds.
struct KnownState {
    pid: BTreeMap<String, u32>,
    is_wanted: BTreeMap<String, bool>,
}

#[test]
fn killed_daemon_duplicates_and_loses_no_server() {
    let mut rng = Rng::new();
    let home = home();
    let fleet = fleet();
    write_files(&home, &fleet);
    let mortals: Vec<String> = names(&fleet, Kind::Mortal);
    let exit_recorder = ExitRecorder::new(home.socket(), mortals.clone());
    let mut logged: BTreeSet<Exit> = BTreeSet::new();
    let mut daemon = home.daemon();
    let mut known = KnownState {
        pid: BTreeMap::new(),
        is_wanted: fleet.iter().map(|server| (server.name.clone(), true)).collect(),
    };
    settle(&home, &fleet, &mut known, &BTreeSet::new());
    let (mut kills, mut request_count) = (0, 0);
    for round in 0..rounds(200, 16) {
        let requests = requests(&mut rng, &fleet);
        request_count += requests.len();
        let touched: BTreeSet<String> =
            requests.iter().map(|request| request.server.clone()).collect();
        let answers = kill_during_requests(&home, &daemon, requests, rng.millis_below(250));
        logged.extend(exits_in_log(&daemon.stderr()));
        kills += 1;
        for (server, is_wanted) in answers {
            match is_wanted {
                Some(is_wanted) => known.is_wanted.insert(server, is_wanted),
                None => known.is_wanted.remove(&server), // Either outcome is correct.
            };
        }
        if rng.one_in(2) {
            pause(rng.millis_below(300));
        }
        while rng.one_in(4) {
            // This daemon is killed while it starts.
            let short_lived = home.spawn_daemon(Path::new(env!("CARGO_BIN_EXE_xy")), &[]);
            pause(rng.millis_below(60));
            short_lived.kill9();
            logged.extend(exits_in_log(&short_lived.stderr()));
            kills += 1;
        }
        daemon = home.daemon();
        settle(&home, &fleet, &mut known, &touched);
        run_log::assert_no_overlap(&home);
        if round % 20 == 19 {
            print_figure(&format!("round {}", round + 1));
        }
    }
    ask(&home, "stop", json!({ "all": true }));
    let mut told = exit_recorder.exits();
    for name in &mortals {
        told.extend(exits_in(&status(&home, name)));
    }
    drop(exit_recorder);
    logged.extend(exits_in_log(&daemon.stderr()));
    assert!(daemon.terminate().success(), "{}", daemon.stderr());
    assert_exits_reported(&home, &mortals, &told, &logged);
    run_log::assert_no_overlap(&home);
    let tally = check_logs(&home, &fleet);
    print_figure(&format!("{kills} kills, {request_count} requests beside them: {tally:?}"));
    assert!(tally.rotated > 0, "no log was rotated: {tally:?}");
    home.finish();
}

fn names(fleet: &[Server], kind: Kind) -> Vec<String> {
    let some = fleet.iter().filter(|server| server.kind == kind);
    some.map(|server| server.name.clone()).collect()
}

/// Returns random requests: one each for up to three servers.
fn requests(rng: &mut Rng, fleet: &[Server]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    let controlled = names(fleet, Kind::Controlled);
    for _ in 0..rng.below(4) {
        let server = rng.pick(&controlled).clone();
        if requests.iter().all(|request| request.server != server) {
            requests.push(Request {
                server,
                method: rng.pick::<&str>(&["start", "stop", "restart", "restart"]),
                waits: rng.one_in(2),
                after: rng.millis_below(250),
            });
        }
    }
    requests
}

/// Sends the requests, and kills the daemon meanwhile. Returns the desired state of each server, or
/// `None` where no answer arrived.
fn kill_during_requests(
    home: &Home,
    daemon: &Daemon,
    requests: Vec<Request>,
    after: Duration,
) -> Vec<(String, Option<bool>)> {
    std::thread::scope(|scope| {
        let senders: Vec<_> = requests
            .into_iter()
            .map(|request| {
                scope.spawn(move || (request.server.clone(), send_request(home, &request)))
            })
            .collect();
        pause(after);
        daemon.kill9();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    })
}

/// Sends a request, and returns the desired state if the daemon lived long enough to answer.
fn send_request(home: &Home, request: &Request) -> Option<bool> {
    pause(request.after);
    let params = json!({ "name": request.server, "wait": request.waits });
    let answer = Client::open(&home.socket())?.ask(request.method, params)?;
    let answer = answer.unwrap_or_else(|error| panic!("`{}`: {error:#}", request.method));
    assert_eq!(answer.get("failed"), None, "{answer:#}");
    Some(request.method != "stop")
}

/// Waits until all servers have their desired state, and checks their processes. Servers outside of
/// `touched` must have the same processes as before.
fn settle(home: &Home, fleet: &[Server], known: &mut KnownState, touched: &BTreeSet<String>) {
    let is_settled = |entry: &Value, is_wanted: Option<&bool>| match is_wanted {
        Some(true) => entry["state"] == "running",
        Some(false) => entry["state"] == "stopped",
        None => {
            let is_wanted = entry["wanted"] == "up";
            entry["state"] == if is_wanted { "running" } else { "stopped" }
        }
    };
    let mut unsettled: BTreeSet<&str> = fleet.iter().map(|server| server.name.as_str()).collect();
    home.wait_until("all servers have their desired state", || {
        let list = list_by_name(home);
        // Mortal servers come and go: the test must see each running once.
        unsettled.retain(|name| !is_settled(&list[*name], known.is_wanted.get(*name)));
        unsettled.is_empty()
    });
    let (leaders, list) = (leaders(home), list_by_name(home));
    for server in fleet {
        let (name, entry) = (&server.name, &list[&server.name]);
        let there = leaders.get(name).map_or(&[][..], Vec::as_slice);
        let is_wanted = entry["wanted"] == "up";
        assert_eq!(
            *known.is_wanted.entry(name.clone()).or_insert(is_wanted),
            is_wanted,
            "{entry:#}"
        );
        if server.kind == Kind::Mortal {
            assert!(there.len() <= 1, "`{name}` runs twice: {there:#?}");
            continue;
        }
        if !is_wanted {
            assert_eq!(there, [], "`{name}` is not wanted");
            known.pid.remove(name);
            continue;
        }
        let pid = assert_runs_once(home, name, there, entry).pid;
        let before = known.pid.insert(name.clone(), pid);
        if !touched.contains(name) {
            assert!(before.is_none_or(|before| before == pid), "`{name}` is another: {entry:#}");
        }
        assert!(!server.is_undisturbed() || !touched.contains(name));
    }
}

/// Checks that the code of each life that exited by itself was reported.
fn assert_exits_reported(
    home: &Home,
    mortals: &[String],
    told: &BTreeSet<Exit>,
    logged: &BTreeSet<Exit>,
) {
    let mut ended: BTreeSet<Exit> = BTreeSet::new();
    for name in mortals {
        let life_records = run_log::life_records(home, name);
        ended.extend(life_records.iter().filter_map(|record| Some((name.clone(), record.code?))));
        // All other lives end by the final stop only.
        let unended = life_records.iter().filter(|record| record.code.is_none()).count();
        assert!(unended <= 1, "`{name}`: {life_records:#?}");
    }
    let unknown: Vec<_> =
        ended.iter().filter(|it| !told.contains(it) && !logged.contains(it)).collect();
    let only_logged = ended.iter().filter(|it| !told.contains(it)).count() - unknown.len();
    print_figure(&format!("{} exits: {only_logged} were only in a daemon's log", ended.len()));
    assert!(ended.len() >= 2 * mortals.len(), "too few exits: {ended:?}");
    assert!(unknown.is_empty(), "not reported: {unknown:?} of {} exits", ended.len());
    let zero_or_ended = |it: &&Exit| it.1 == 0 || ended.contains(it);
    let invented: Vec<_> = told.iter().chain(logged).filter(|it| !zero_or_ended(it)).collect();
    assert!(invented.is_empty(), "no server exited so: {invented:?}");
}
