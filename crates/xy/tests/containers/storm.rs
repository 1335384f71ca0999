//! Many rounds of whatever can happen to a container; nothing is left in the end.
//!
//! In each round one thing happens, to one of four servers. The things are a pack of cards that
//! is shuffled, so each kind comes; a thing that cannot be done at once (there is just no
//! container) is tried until it can.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use crate::stage::{Engine, OwnEngine, client, echoes};
use crate::support::{home, status};

const SERVERS: [&str; 4] = ["a", "b", "c", "d"];

/// So often a thing is tried: many times what it takes to start a container.
const MOST_TRIES: u32 = 1200;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// A volume that is nobody's for so many tries stays that: many times what it takes to remove one.
const STAYS_TRIES: u32 = 100;

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// Done at the engine, by somebody else.
    Kill,
    Remove,
    Pause,
    StopByEngine,
    /// Asked of xy.
    Stop,
    Restart,
    Start,
    KillDaemon,
    RestartEngine,
}

/// A pack of twenty, of which there are several.
const PACK: [(Thing, usize); 9] = [
    (Thing::Kill, 5),
    (Thing::Remove, 4),
    (Thing::Pause, 1),
    (Thing::StopByEngine, 2),
    (Thing::Stop, 2),
    (Thing::Restart, 2),
    (Thing::Start, 2),
    (Thing::KillDaemon, 1),
    (Thing::RestartEngine, 1),
];

/// How many packs: a hundred rounds, unless `XY_ROUNDS=few` is satisfied with twenty.
fn packs() -> usize {
    if std::env::var("XY_ROUNDS").is_ok_and(|it| it == "few") { 1 } else { 5 }
}

/// Numbers at random, which a failed test can be repeated with.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let seed = std::env::var("XY_SEED").ok().and_then(|it| it.parse().ok());
        Self(seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for end in (1..all.len()).rev() {
            all.swap(end, self.below(end + 1));
        }
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { Some(&all[self.below(all.len())]) }
    }
}

/// Everything of an engine that a container may leave beside itself.
fn belongings(engine: &Engine) -> BTreeSet<String> {
    let names = |found: &Value| -> Vec<String> {
        let all = found.as_array().into_iter().flatten();
        all.filter_map(|it| Some(it["Name"].as_str()?.to_owned())).collect()
    };
    let read = |path: &str| serde_json::from_str::<Value>(&engine.must("GET", path)).unwrap();
    let networks = names(&read("/networks")).into_iter().map(|it| format!("network {it}"));
    let volumes = names(&read("/volumes")["Volumes"]).into_iter().map(|it| format!("volume {it}"));
    networks.chain(volumes).collect()
}

/// Volumes that no container has.
fn stray_volumes(engine: &Engine, home: &Home) -> BTreeSet<String> {
    let all = belongings(engine);
    let all = all.into_iter().filter(|it| it.starts_with("volume "));
    let used: String = engine.containers(home).iter().map(|it| it["Mounts"].to_string()).collect();
    all.filter(|it| !used.contains(it.trim_start_matches("volume "))).collect()
}

struct Storm {
    engine: Engine,
    own: OwnEngine,
    home: Home,
    daemon: Daemon,
    chance: Chance,
    /// Volumes that had no container when an engine was back, and were no strays before it went:
    /// one that is ended while it makes or removes a container may keep half of that, and nobody
    /// can know whose it was.
    engines_own: BTreeSet<String>,
}

impl Storm {
    /// Does it; `false` if that is just not possible.
    fn happens(&mut self, thing: Thing) -> bool {
        let (engine, home) = (&self.engine, &self.home);
        let server = SERVERS[self.chance.below(SERVERS.len())];
        let asked = |what: &str| home.call(what, json!({ "name": server, "wait": false })).is_ok();
        match thing {
            Thing::Stop => asked("stop"),
            Thing::Restart => asked("restart"),
            Thing::Start => asked("start"),
            Thing::KillDaemon => {
                self.daemon.kill9();
                self.daemon = home.daemon();
                true
            }
            Thing::RestartEngine => {
                // What stays nobody's is our fault; a container that is just being removed goes
                // before its volume does.
                let mut before = stray_volumes(engine, home);
                for _ in 0..STAYS_TRIES {
                    if before.is_empty() {
                        break;
                    }
                    std::thread::park_timeout(TRY_AGAIN);
                    let now = stray_volumes(engine, home);
                    before.retain(|it| now.contains(it));
                }
                self.own.end(engine.kind, self.chance.below(2) == 0);
                self.own.up(engine.kind);
                let now = stray_volumes(engine, home);
                self.engines_own.extend(now.difference(&before).cloned());
                true
            }
            Thing::Kill | Thing::Remove | Thing::Pause | Thing::StopByEngine => {
                let all = engine.containers(home);
                let Some(id) = self.chance.one_of(&all).and_then(|it| it["Id"].as_str()) else {
                    asked("start"); // All of them were stopped.
                    return false;
                };
                let (method, path) = match thing {
                    Thing::Kill => ("POST", format!("/containers/{id}/kill")),
                    // With its volumes: whoever leaves these behind has them to himself.
                    Thing::Remove => ("DELETE", format!("/containers/{id}?force=1&v=1")),
                    Thing::Pause => ("POST", format!("/containers/{id}/pause")),
                    _ => ("POST", format!("/containers/{id}/stop?t=1")),
                };
                (200..300).contains(&engine.ask(method, &path, None).0)
            }
        }
    }
}

fn storm(kind: &'static str) {
    let (engine, own) = Engine::of_its_own(kind);
    let mut chance = Chance::new();
    let seed = chance.0;
    let home = home();
    let before = belongings(&engine);
    // One with a volume of its own, which nobody gave a name.
    let image = engine.image_with(&home, &["VOLUME /data"]);
    // Whoever is stopped by its engine ends cleanly, and is to run again all the same.
    let more = "restart { policy \"always\"; backoff-initial \"10ms\"; backoff-max \"500ms\"; max-attempts 0; max-retries-per-minute 0; }\nstop { grace \"1s\"; }\n";
    for name in SERVERS {
        let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"");
        let kdl = kdl.replace("localhost/xy-test", &image);
        home.write_config(&format!("servers/{name}.kdl"), &format!("{kdl}{more}"));
    }
    let daemon = home.daemon();
    home.wait_until("they run", || {
        SERVERS.iter().all(|it| status(&home, it)["state"] == "running")
    });
    let volumes = belongings(&engine).len() - before.len();
    assert_eq!(volumes, SERVERS.len(), "each has a volume");

    let pack = PACK.iter().flat_map(|(thing, count)| vec![*thing; count * packs()]);
    let mut rounds: Vec<Thing> = pack.collect();
    chance.shuffle(&mut rounds);
    let mut happened = BTreeMap::<Thing, usize>::new();
    let mut storm = Storm { engine, own, home, daemon, chance, engines_own: BTreeSet::new() };
    for (round, thing) in rounds.into_iter().enumerate() {
        let told = format!("round {round} ({thing:?}), seed {seed}");
        let mut tries = 0;
        while !storm.happens(thing) {
            tries += 1;
            assert!(tries < MOST_TRIES, "{told}: it could not be done");
            std::thread::park_timeout(TRY_AGAIN);
        }
        *happened.entry(thing).or_default() += 1;
        let count = storm.engine.containers(&storm.home).len();
        assert!(count <= SERVERS.len(), "{told}: {count} containers");
    }
    let planned: BTreeMap<Thing, usize> =
        PACK.iter().map(|(thing, count)| (*thing, count * packs())).collect();
    assert_eq!(happened, planned);

    let Storm { engine, home, own: _own, engines_own, .. } = storm;
    for name in SERVERS {
        let _ = home.call("start", json!({ "name": name }));
        home.wait_until(&format!("`{name}` runs after it all, seed {seed}"), || {
            status(&home, name)["state"] == "running"
        });
    }
    // One that was paused last is seen as such at the next look.
    home.wait_until(&format!("all of them run at their engine, seed {seed}"), || {
        let all = engine.containers(&home);
        all.len() == SERVERS.len() && all.iter().all(|it| it["State"] == "running")
    });
    let client = client(&home);
    for name in SERVERS {
        echoes(&client, name);
    }
    drop(client);
    for name in SERVERS {
        home.call("stop", json!({ "name": name })).unwrap();
    }
    let left = || belongings(&engine).difference(&engines_own).cloned().collect::<BTreeSet<_>>();
    // While there is a home: what its daemon said is told if this fails.
    home.wait_until(&format!("only {before:?} are left, seed {seed}"), || left() == before);
    engine.finish(home);
    assert_eq!(left(), before, "networks and volumes are as before, seed {seed}");
}

#[test]
fn docker_in_a_storm_leaves_nothing() {
    storm("docker");
}

#[test]
fn podman_in_a_storm_leaves_nothing() {
    storm("podman");
}
