//! The daemon is killed at random instants in the life of twenty servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use crate::census::{is_there_once, leaders, listed};
use crate::chance::Chance;
use crate::client::Client;
use crate::crew::{Kind, Server, check_logs, crew, enlist};
use crate::diary;
use crate::ear::{Ear, Exit, exits_in, exits_in_log};
use crate::support::{ask, home, status};
use crate::{pause, rounds, tell};

/// Something asked of a server about when the daemon is killed.
struct Wish {
    server: String,
    method: &'static str,
    waits: bool,
    after: Duration,
}

/// What is known of each server between two rounds.
struct Known {
    pid: BTreeMap<String, u32>,
    is_wanted: BTreeMap<String, bool>,
}

#[test]
fn whenever_the_daemon_is_killed_nobody_is_there_twice_or_lost_and_no_end_is_forgotten() {
    let mut chance = Chance::new();
    let home = home();
    let crew = crew();
    enlist(&home, &crew);
    let mortals: Vec<String> = names(&crew, Kind::Mortal);
    let ear = Ear::new(home.socket(), mortals.clone());
    let mut logged: BTreeSet<Exit> = BTreeSet::new();
    let mut daemon = home.daemon();
    let mut known = Known {
        pid: BTreeMap::new(),
        is_wanted: crew.iter().map(|server| (server.name.clone(), true)).collect(),
    };
    settle(&home, &crew, &mut known, &BTreeSet::new());
    let (mut kills, mut asked) = (0, 0);
    for round in 0..rounds(200, 16) {
        let wishes = wishes(&mut chance, &crew);
        asked += wishes.len();
        let touched: BTreeSet<String> = wishes.iter().map(|wish| wish.server.clone()).collect();
        let answers = kill_while_asking(&home, &daemon, wishes, chance.millis_below(250));
        logged.extend(exits_in_log(&daemon.stderr()));
        kills += 1;
        for (server, is_wanted) in answers {
            match is_wanted {
                Some(is_wanted) => known.is_wanted.insert(server, is_wanted),
                None => known.is_wanted.remove(&server), // Either is right.
            };
        }
        if chance.one_in(2) {
            pause(chance.millis_below(300));
        }
        while chance.one_in(4) {
            // This one is killed while it starts.
            let short_lived = home.spawn_daemon(Path::new(env!("CARGO_BIN_EXE_xy")), &[]);
            pause(chance.millis_below(60));
            short_lived.kill9();
            logged.extend(exits_in_log(&short_lived.stderr()));
            kills += 1;
        }
        daemon = home.daemon();
        settle(&home, &crew, &mut known, &touched);
        diary::nobody_was_there_twice(&home);
        if round % 20 == 19 {
            tell(&format!("round {}", round + 1));
        }
    }
    ask(&home, "stop", json!({ "all": true }));
    let mut told = ear.heard();
    for name in &mortals {
        told.extend(exits_in(&status(&home, name)));
    }
    drop(ear);
    logged.extend(exits_in_log(&daemon.stderr()));
    assert!(daemon.terminate().success(), "{}", daemon.stderr());
    exits_are_known(&home, &mortals, &told, &logged);
    diary::nobody_was_there_twice(&home);
    let tally = check_logs(&home, &crew);
    tell(&format!("{kills} kills, {asked} requests beside them: {tally:?}"));
    assert!(tally.rotated > 0, "no log was rotated: {tally:?}");
    home.finish();
}

fn names(crew: &[Server], kind: Kind) -> Vec<String> {
    let some = crew.iter().filter(|server| server.kind == kind);
    some.map(|server| server.name.clone()).collect()
}

/// What is asked about when the daemon is killed: one thing each of up to three servers.
fn wishes(chance: &mut Chance, crew: &[Server]) -> Vec<Wish> {
    let mut wishes: Vec<Wish> = Vec::new();
    let asked = names(crew, Kind::Asked);
    for _ in 0..chance.below(4) {
        let server = chance.pick(&asked).clone();
        if wishes.iter().all(|wish| wish.server != server) {
            wishes.push(Wish {
                server,
                method: chance.pick::<&str>(&["start", "stop", "restart", "restart"]),
                waits: chance.one_in(2),
                after: chance.millis_below(250),
            });
        }
    }
    wishes
}

/// Asks, and kills the daemon meanwhile. Answers whether each server that was asked is
/// wanted, unless nobody was told.
fn kill_while_asking(
    home: &Home,
    daemon: &Daemon,
    wishes: Vec<Wish>,
    after: Duration,
) -> Vec<(String, Option<bool>)> {
    std::thread::scope(|scope| {
        let askers: Vec<_> = wishes
            .into_iter()
            .map(|wish| scope.spawn(move || (wish.server.clone(), make(home, &wish))))
            .collect();
        pause(after);
        daemon.kill9();
        askers.into_iter().map(|asker| asker.join().unwrap()).collect()
    })
}

/// Whether a server is wanted now, if the daemon lived long enough to say so.
fn make(home: &Home, wish: &Wish) -> Option<bool> {
    pause(wish.after);
    let params = json!({ "name": wish.server, "wait": wish.waits });
    let answer = Client::open(&home.socket())?.ask(wish.method, params)?;
    let answer = answer.unwrap_or_else(|error| panic!("`{}`: {error:#}", wish.method));
    assert_eq!(answer.get("failed"), None, "{answer:#}");
    Some(wish.method != "stop")
}

/// Waits until everybody is as wanted, and checks who is there. Those that nothing has
/// happened to must be the same as before.
fn settle(home: &Home, crew: &[Server], known: &mut Known, touched: &BTreeSet<String>) {
    let is_settled = |entry: &Value, is_wanted: Option<&bool>| match is_wanted {
        Some(true) => entry["state"] == "running",
        Some(false) => entry["state"] == "stopped",
        None => {
            let is_wanted = entry["wanted"] == "up";
            entry["state"] == if is_wanted { "running" } else { "stopped" }
        }
    };
    let mut unsettled: BTreeSet<&str> = crew.iter().map(|server| server.name.as_str()).collect();
    home.wait_until("all are as they are wanted", || {
        let list = listed(home);
        // Mortals come and go: each has to be seen up once.
        unsettled.retain(|name| !is_settled(&list[*name], known.is_wanted.get(*name)));
        unsettled.is_empty()
    });
    let (leaders, list) = (leaders(home), listed(home));
    for server in crew {
        let (name, entry) = (&server.name, &list[&server.name]);
        let there = leaders.get(name).map_or(&[][..], Vec::as_slice);
        let is_wanted = entry["wanted"] == "up";
        assert_eq!(
            *known.is_wanted.entry(name.clone()).or_insert(is_wanted),
            is_wanted,
            "{entry:#}"
        );
        if server.kind == Kind::Mortal {
            assert!(there.len() <= 1, "`{name}` is there twice: {there:#?}");
            continue;
        }
        if !is_wanted {
            assert_eq!(there, [], "`{name}` is not wanted");
            known.pid.remove(name);
            continue;
        }
        let pid = is_there_once(home, name, there, entry).pid;
        let before = known.pid.insert(name.clone(), pid);
        if !touched.contains(name) {
            assert!(before.is_none_or(|before| before == pid), "`{name}` is another: {entry:#}");
        }
        assert!(!server.is_left_alone() || !touched.contains(name));
    }
}

/// Checks that of each life that ended by itself, somebody was told with which code.
fn exits_are_known(
    home: &Home,
    mortals: &[String],
    told: &BTreeSet<Exit>,
    logged: &BTreeSet<Exit>,
) {
    let mut ended: BTreeSet<Exit> = BTreeSet::new();
    for name in mortals {
        let pages = diary::pages(home, name);
        ended.extend(pages.iter().filter_map(|page| Some((name.clone(), page.code?))));
        // Nothing else ends them but the stop at the end.
        let unended = pages.iter().filter(|page| page.code.is_none()).count();
        assert!(unended <= 1, "`{name}`: {pages:#?}");
    }
    let unknown: Vec<_> =
        ended.iter().filter(|it| !told.contains(it) && !logged.contains(it)).collect();
    let only_logged = ended.iter().filter(|it| !told.contains(it)).count() - unknown.len();
    tell(&format!("{} exits: {only_logged} were only in a daemon's log", ended.len()));
    assert!(ended.len() >= 2 * mortals.len(), "hardly anybody ended: {ended:?}");
    assert!(unknown.is_empty(), "nobody was told of {unknown:?} of {} exits", ended.len());
    let zero_or_ended = |it: &&Exit| it.1 == 0 || ended.contains(it);
    let invented: Vec<_> = told.iter().chain(logged).filter(|it| !zero_or_ended(it)).collect();
    assert!(invented.is_empty(), "nobody ended so: {invented:?}");
}
