//! Many rounds of whatever can happen to a container; nothing is left in the end.

use std::hash::{BuildHasher, Hasher, RandomState};

use serde_json::json;

use crate::stage::{Engine, client, echoes};
use crate::support::{home, running, status};

/// How many rounds: `XY_ROUNDS=full` has a hundred.
fn rounds() -> usize {
    if std::env::var("XY_ROUNDS").is_ok_and(|it| it == "full") { 100 } else { 20 }
}

/// Numbers at random, which a failed test can be repeated with.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let seed = std::env::var("XY_SEED").ok().and_then(|it| it.parse().ok());
        Self(seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn storm(kind: &'static str) {
    let (engine, own) = Engine::of_its_own(kind);
    let mut chance = Chance::new();
    let seed = chance.0;
    let home = home();
    let restart = "restart { backoff-initial \"10ms\"; backoff-max \"500ms\"; max-attempts 0; max-retries-per-minute 0; }\nstop { grace \"1s\"; }\n";
    for name in ["a", "b"] {
        engine.mcp_server(&home, name, &[], restart);
    }
    let mut daemon = home.daemon();
    running(&home, "a");
    for round in 0..rounds() {
        let all = engine.containers(&home);
        let one = all.first().and_then(|it| it["Id"].as_str()).unwrap_or("none").to_owned();
        let name = if chance.below(2) == 0 { "a" } else { "b" };
        let what = chance.below(20);
        match what {
            0..=3 => _ = engine.ask("POST", &format!("/containers/{one}/kill"), None),
            4..=6 => _ = engine.ask("DELETE", &format!("/containers/{one}?force=1"), None),
            7..=8 => _ = engine.ask("POST", &format!("/containers/{one}/pause"), None),
            9..=10 => _ = engine.ask("POST", &format!("/containers/{one}/stop?t=1"), None),
            11..=12 => _ = home.call("stop", json!({ "name": name })),
            13..=15 => _ = home.call("restart", json!({ "name": name })),
            16..=17 => {
                daemon.kill9();
                daemon = home.daemon();
            }
            18 => {
                own.end(kind, chance.below(2) == 0);
                own.up(kind);
            }
            _ => _ = home.call("start", json!({ "name": name })),
        }
        let count = engine.containers(&home).len();
        assert!(count <= 2, "round {round} ({what}), seed {seed}: {count} containers");
    }
    for name in ["a", "b"] {
        let _ = home.call("start", json!({ "name": name }));
        home.wait_until(&format!("`{name}` runs after it all, seed {seed}"), || {
            status(&home, name)["state"] == "running"
        });
    }
    let client = client(&home);
    echoes(&client, "a");
    echoes(&client, "b");
    drop(client);
    let networks = engine.must("GET", "/networks");
    let volumes = engine.must("GET", "/volumes");
    assert!(!networks.contains("xy-") && !volumes.contains("xy-"), "{networks} {volumes}");
    engine.finish(home);
}

#[test]
fn docker_in_a_storm_leaves_nothing() {
    storm("docker");
}

#[test]
fn podman_in_a_storm_leaves_nothing() {
    storm("podman");
}
