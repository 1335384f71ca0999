//! Servers that are in trouble without being killed, or look so: one hangs, one is slow, one
//! ignores pings, one dies at every start.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::blows::{Blow, Victim};
use crate::chance::Chance;
use crate::clients::Client;
use crate::ledger::{Kind, Outcome, Rules};
use crate::scene::{Habits, Scene, http_flags};
use crate::support::{running, signal, status};
use crate::weather::{Mercy, Weather, strike};
use crate::{seconds, tell};

/// Those that hang are found out soon, and do not hear TERM.
const WATCHED: &str = "health { interval \"200ms\"; timeout \"500ms\"; failures 3 }\n\
    stop { grace \"300ms\" }\n";

/// So short that one that is slow, or does not answer, would be taken for one that hangs.
const SUSPECTED: &str = "health { interval \"100ms\"; timeout \"200ms\"; failures 3 }\n";

/// Given up after three attempts.
const MORTAL: &str =
    "restart { backoff-initial \"50ms\"; backoff-max \"100ms\"; max-attempts 3 }\n";

/// What that is in numbers.
const ATTEMPTS: u64 = 3;

const CLIENTS: usize = 50;

/// Clients that call the slow one: each of its calls takes a second of a whole processor.
const PATIENT: usize = 2;

/// The ten servers of this scene, by their numbers.
struct Cast {
    /// They are stopped in the middle of whatever they do: by pipes, and over HTTP.
    hanging: Vec<usize>,
    /// It works a second on each call, and hears nothing else meanwhile.
    slow: usize,
    ignores_pings: usize,
    /// From the beginning of the storm it dies at every start.
    doomed: usize,
    /// Nothing is wrong with these.
    steady: [usize; 2],
    /// Those of all of them that are called over HTTP.
    web: BTreeSet<usize>,
}

impl Cast {
    #[track_caller]
    fn enter(scene: &mut Scene) -> Self {
        let doom = scene.home.root().join("harness/doom");
        let mut hanging = vec![
            scene.serve("hanging", &[], WATCHED),
            scene.serve("hanging-unread", &["--unbuffered"], WATCHED),
            scene.serve("hanging-modern", &["--era", "modern"], WATCHED),
        ];
        let far_off = [
            serve_web(scene, "hanging-web", &[], WATCHED),
            serve_web(scene, "hanging-web-modern", &["--era", "modern", "--no-listen"], WATCHED),
        ];
        hanging.extend(far_off);
        let steady =
            [scene.serve("steady", &[], SUSPECTED), serve_web(scene, "steady-web", &[], "")];
        Self {
            hanging,
            slow: scene.serve("slow", &["--work-us", "1000000"], SUSPECTED),
            ignores_pings: scene.serve("deaf", &["--ignore-ping"], SUSPECTED),
            doomed: scene.serve_as("doomed", &["--die-if", doom.to_str().unwrap()], MORTAL),
            steady,
            web: far_off.into_iter().chain([steady[1]]).collect(),
        }
    }

    /// Nobody strikes these, so nobody may restart them.
    fn healthy(&self) -> [usize; 4] {
        [self.slow, self.ignores_pings, self.steady[0], self.steady[1]]
    }

    /// Some clients are patient and call the slow one, all others the rest.
    fn clients(&self, scene: &Scene) -> Vec<(Client, Habits)> {
        let rest = [&self.hanging[..], &self.steady, &[self.ignores_pings, self.doomed]].concat();
        let hasty = Habits { servers: rest, call_ms: 30, at_once: 4 };
        let patient = Habits { servers: vec![self.slow], call_ms: 1, at_once: 1 };
        let habits = |number| if number < PATIENT { patient.clone() } else { hasty.clone() };
        (0..CLIENTS).map(|it| (Client::number(&scene.home, it), habits(it))).collect()
    }
}

/// Adds one that is called over HTTP.
#[track_caller]
fn serve_web(scene: &mut Scene, name: &str, flags: &[&str], more: &str) -> usize {
    let (http, place) = http_flags();
    let flags: Vec<&str> = http.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    scene.serve(name, &flags, &format!("{more}{place}"))
}

/// What the daemon wrote down of one server, from its first death on.
#[track_caller]
fn journal_since_its_death(scene: &Scene, name: &str) -> Vec<Value> {
    let file = scene.home.root().join("state/xy/events.jsonl");
    let read = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_it: Vec<Value> = lines.filter(|it| it["server"] == name).collect();
        of_it.last().is_some_and(|it| it["to"] == "failed").then_some(of_it)
    };
    let all = scene.home.wait_until("its end is written down", read);
    all.into_iter().skip_while(|it| it["from"] != "running").collect()
}

/// Nothing but its attempts and the waits between them, which its file bounds, may stand between
/// its first death and the word that it is given up.
#[track_caller]
fn was_given_up_in_bounded_time(journal: &[Value]) {
    let is = |it: &&Value, from: &str, to: &str| {
        it["kind"] == "changed" && it["from"] == from && it["to"] == to
    };
    let count = |from, to| journal.iter().filter(|it| is(it, from, to)).count() as u64;
    let starts: Vec<u64> = journal
        .iter()
        .filter(|it| is(it, "restarting", "starting"))
        .map(|it| it["restart_count"].as_u64().unwrap())
        .collect();
    assert_eq!(starts, (1..=ATTEMPTS).collect::<Vec<_>>(), "{journal:#?}");
    assert_eq!(count("running", "restarting"), 1, "{journal:#?}");
    assert_eq!(count("starting", "restarting"), ATTEMPTS - 1, "{journal:#?}");
    assert_eq!(count("starting", "failed"), 1, "{journal:#?}");
    let last: Vec<&Value> = journal.iter().filter(|it| it["kind"] == "last_attempt").collect();
    assert_eq!((last.len(), &last[0]["restart_count"]), (1, &ATTEMPTS.into()), "{journal:#?}");
    assert_eq!(journal.len() as u64, 2 * ATTEMPTS + 2, "and nothing else: {journal:#?}");
}

#[test]
fn what_hangs_is_restarted_what_is_slow_or_deaf_is_not_and_what_is_doomed_is_given_up() {
    let mut chance = Chance::new();
    let mut scene = Scene::new();
    // What waits for the doomed one must not be answered by the end of its patience.
    scene.home.write_config("xy.kdl", "park { queue \"10m\" }\n");
    let cast = Cast::enter(&mut scene);
    scene.home.daemon();
    let all: Vec<usize> = (0..scene.names.len()).collect();
    scene.ready(&all);
    let before = scene.ready(&cast.healthy());
    let clients = cast.clients(&scene);
    let weather = Weather {
        servers: cast.hanging.clone(),
        signal: Signal::STOP,
        mercy: Mercy::Some,
        time: seconds(60, 10),
    };
    let (mut calls, blows) = scene.storm(&clients, &mut chance, |chance| {
        fs::write(scene.home.root().join("harness/doom"), "").unwrap();
        let pid = running(&scene.home, "doomed");
        let doom = Blow::at_server(cast.doomed, pid, scene.now());
        signal(pid, Signal::KILL);
        let mut blows = strike(&scene, chance, &weather);
        scene.home.wait_for_state("doomed", "failed");
        blows.push(doom);
        blows
    });
    // One that hangs is continued for its end, and may then answer a last call itself.
    for blow in &blows {
        let Victim::Server { server, pid } = blow.victim else { continue };
        if server == cast.doomed {
            continue; // It has none.
        }
        scene.home.wait_until("a successor is there", || scene.ready(&[server]) != [pid]);
    }
    let up = [&cast.hanging[..], &cast.healthy()].concat();
    calls.extend(scene.looks(&clients[0].0, &up));
    let count = all.len();
    tell(&format!(
        "{count} servers that hang, are slow, ignore pings, are doomed or well; {CLIENTS} clients"
    ));
    for server in &cast.hanging {
        assert!(blows.iter().any(|blow| blow.is_at(*server)), "{server}: {blows:?}");
    }
    let rules = Rules {
        doomed: [cast.doomed].into(),
        hanging: cast.hanging.iter().copied().collect(),
        unordered: cast.web.clone(),
        ..Rules::default()
    };
    let [waited, resumed] = ["xy_server_calls_parked_total", "xy_server_calls_again_total"]
        .map(|name| scene.counted(name));
    let tally = scene.settle(calls, blows, &rules);
    // Servers stand still for as long as it takes to find that out, under calls that only read.
    assert!(waited > 0 && resumed > 0, "{waited} calls waited, {resumed} were sent again");
    assert!(tally.refused > 0, "nobody was told that `doomed` is given up: {tally:?}");
    was_given_up_in_bounded_time(&journal_since_its_death(&scene, "doomed"));
    assert_eq!(scene.ready(&cast.healthy()), before, "they are healthy");
    for server in cast.healthy() {
        let status = status(&scene.home, &scene.names[server]);
        assert_eq!(status["restarts_total"], 0, "{status:#}");
    }
    let last = clients[0].0.call("doomed", Kind::Record, 1, 0);
    let last = clients[0].0.answer(last, 1);
    let Some(Outcome::Refused(why)) = last else { panic!("{last:?}") };
    assert!(why.contains("gave up after 3 restarts in a row"), "{why}");
    scene.finish(clients);
}
