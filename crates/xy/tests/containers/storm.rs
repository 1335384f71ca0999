//! Many rounds of random disturbances of containers; nothing is left in the end.
//!
//! In each round one disturbance hits one of four servers. Disturbances are drawn from a shuffled
//! pack of cards, so each kind occurs. One that is not possible at once, such as without a
//! container, is retried until it is.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use crate::stage::{Engine, OwnEngine, assert_echoes, client};
use crate::support::{home, status};

const SERVERS: [&str; 4] = ["a", "b", "c", "d"];

/// Maximum number of attempts: many times the start of a container.
const MAX_TRIES: u32 = 1200;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Number of checks after which a stray volume counts as lasting: many times the removal of one.
const LASTING_TRIES: u32 = 100;

/// The disturbances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// Done at the engine by another user.
    Kill,
    Remove,
    Pause,
    StopByEngine,
    /// Requested of xy.
    Stop,
    Restart,
    Start,
    KillDaemon,
    RestartEngine,
}

/// A pack of twenty cards.
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

/// Returns the number of packs: enough for a hundred rounds, or for twenty with `XY_ROUNDS=few`.
fn packs() -> usize {
    if std::env::var("XY_ROUNDS").is_ok_and(|it| it == "few") { 1 } else { 5 }
}

/// Random numbers whose seed reproduces a failed test.
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

/// Returns everything at an engine that a container may leave behind.
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

/// Returns the volumes that no container uses.
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
    /// Volumes that were stray when an engine was back but not before. An engine that is killed
    /// while it creates or removes a container may leave half of that.
    engines_own: BTreeSet<String>,
}

impl Storm {
    /// Applies a disturbance; returns false if that is not possible now.
    fn apply(&mut self, thing: Thing) -> bool {
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
                // A lasting stray volume is xy's fault; a container in removal disappears before
                // its volume does.
                let mut before = stray_volumes(engine, home);
                for _ in 0..LASTING_TRIES {
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
                    // With its volumes, as xy would remove them.
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
    // An image with an anonymous volume.
    let image = engine.image_with(&home, &["VOLUME /data"]);
    // A server stopped by its engine exits cleanly, and has to run again all the same.
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
        while !storm.apply(thing) {
            tries += 1;
            assert!(tries < MAX_TRIES, "{told}: it could not be done");
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
    // A container that was paused last is detected at the next check.
    home.wait_until(&format!("all of them run at their engine, seed {seed}"), || {
        let all = engine.containers(&home);
        all.len() == SERVERS.len() && all.iter().all(|it| it["State"] == "running")
    });
    let client = client(&home);
    for name in SERVERS {
        assert_echoes(&client, name);
    }
    drop(client);
    for name in SERVERS {
        home.call("stop", json!({ "name": name })).unwrap();
    }
    let left = || belongings(&engine).difference(&engines_own).cloned().collect::<BTreeSet<_>>();
    // Before the home ends: if this fails, the output of its daemon is shown.
    home.wait_until(&format!("only {before:?} are left, seed {seed}"), || left() == before);
    engine.finish(home);
    assert_eq!(left(), before, "networks and volumes are as before, seed {seed}");
}

#[test]
fn docker_storm_leaves_nothing() {
    storm("docker");
}

#[test]
fn podman_storm_leaves_nothing() {
    storm("podman");
}
