//! Servers that are in trouble without being killed, or look so: one hangs, one is slow, one
//! ignores pings, one dies at every start.

use std::fs;

use rustix::process::Signal;

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

const CLIENTS: usize = 20;

/// The servers of this scene, by their numbers.
struct Cast {
    /// They are stopped in the middle of whatever they do: one by pipes, one over HTTP.
    hanging: [usize; 2],
    /// It works a second on each call, and hears nothing else meanwhile.
    slow: usize,
    ignores_pings: usize,
    /// From the beginning of the storm it dies at every start.
    doomed: usize,
}

impl Cast {
    #[track_caller]
    fn enter(scene: &mut Scene) -> Self {
        let (flags, more) = http_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let doom = scene.home.root().join("harness/doom");
        let hanging = [
            scene.serve("hanging", &[], WATCHED),
            scene.serve("hanging-web", &flags, &format!("{WATCHED}{more}")),
        ];
        Self {
            hanging,
            slow: scene.serve("slow", &["--work-us", "1000000"], SUSPECTED),
            ignores_pings: scene.serve("deaf", &["--ignore-ping"], SUSPECTED),
            doomed: scene.serve_as("doomed", &["--die-if", doom.to_str().unwrap()], MORTAL),
        }
    }

    /// Nobody strikes these, so nobody may restart them.
    fn healthy(&self) -> [usize; 2] {
        [self.slow, self.ignores_pings]
    }

    /// Some clients are patient and call the slow one, all others the rest.
    fn clients(&self, scene: &Scene) -> Vec<(Client, Habits)> {
        let rest = [&self.hanging[..], &[self.ignores_pings, self.doomed]].concat();
        let hasty = Habits { servers: rest, call_ms: 30, at_once: 4 };
        let patient = Habits { servers: vec![self.slow], call_ms: 1, at_once: 1 };
        let habits = |number| if number < 2 { patient.clone() } else { hasty.clone() };
        (0..CLIENTS).map(|it| (Client::number(&scene.home, it), habits(it))).collect()
    }
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
    // One that never answered a probe is left in peace, so it has to have answered one.
    for server in cast.hanging {
        let name = &scene.names[server];
        scene
            .home
            .wait_until("a probe is answered", || status(&scene.home, name)["health"] == "healthy");
    }
    let clients = cast.clients(&scene);
    let weather = Weather {
        servers: cast.hanging.to_vec(),
        signal: Signal::STOP,
        mercy: Mercy::Some,
        time: seconds(60, 10),
    };
    let (mut calls, blows) = scene.storm(&clients, &mut chance, |chance| {
        fs::write(scene.home.root().join("harness/doom"), "").unwrap();
        signal(running(&scene.home, "doomed"), Signal::KILL);
        let blows = strike(&scene, chance, &weather);
        scene.home.wait_for_state("doomed", "failed");
        blows
    });
    let up = [&cast.hanging[..], &cast.healthy()].concat();
    calls.extend(scene.looks(&clients[0].0, &up));
    tell(&format!("{CLIENTS} clients, servers that hang, are slow, ignore pings, are doomed"));
    for server in cast.hanging {
        assert!(blows.iter().any(|blow| blow.is_at(server)), "{blows:?}");
    }
    let unordered = [cast.hanging[1]].into();
    let rules = Rules { doomed: [cast.doomed].into(), unordered, ..Rules::default() };
    let tally = scene.settle(calls, blows, &rules);
    assert!(tally.refused > 0, "nobody was told that `doomed` is given up: {tally:?}");
    assert_eq!(scene.ready(&cast.healthy()), before, "they are healthy");
    for server in cast.healthy() {
        let status = status(&scene.home, &scene.names[server]);
        assert_eq!(status["restarts_total"], 0, "{status:#}");
    }
    let last = clients[0].0.call("doomed", Kind::Record, 1, 0);
    let last = clients[0].0.answer(last, 1);
    assert!(matches!(last, Some(Outcome::Refused(_))), "{last:?}");
    scene.finish(clients);
}
