//! Disturbances between xy and a healthy engine, and by other users of the engine.

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::engine_proxy::EngineProxy;
use crate::stage::{Engine, assert_echoes, client, reason};
use crate::support::{home, running, running_after, status};

crate::with_each_engine!(
    removed_container_is_reported_as_removed,
    twenty_concurrent_starts_create_one_container,
);

const RESTART: &str = "restart { backoff-initial \"10ms\"; }\nstop { grace \"1s\"; }\n";

/// Returns all reasons reported for state changes of a server.
fn told(home: &Home) -> String {
    status(home, "one")["transitions"].to_string()
}

#[test]
fn docker_stream_cut_while_quiet_is_reattached() {
    let (engine, home) = (Engine::docker(), home());
    let (engine_proxy, seen) = EngineProxy::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let container = engine.container(&home);
    // By then every write has certainly arrived.
    let uptime = || status(&home, "one")["uptime_secs"].as_u64().unwrap_or_default();
    let so_far = uptime();
    home.wait_until("it has been quiet for a while", || uptime() >= so_far + 4);
    assert_eq!(engine_proxy.cut("/attach"), 1);
    home.wait_until("it is attached again", || engine_proxy.asked("/attach") == 2);
    assert_echoes(&client, "one");
    assert_eq!((running(&home, "one"), engine.container(&home)), (first, container));
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

#[test]
fn docker_stream_cut_during_call_restarts_server() {
    let (engine, home) = (Engine::docker(), home());
    let (engine_proxy, seen) = EngineProxy::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let container = engine.container(&home);
    let lost = client.start_call("one__mutating", json!({ "message": "x", "ms": 600_000 }));
    assert_echoes(&client, "one"); // The write has certainly arrived.
    assert_eq!(engine_proxy.cut("/attach"), 1);
    let answer = client.wait_answer(lost);
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    running_after(&home, "one", 1);
    let told = told(&home);
    assert!(told.contains("broke while messages were in flight"), "{told}");
    assert_ne!(engine.container(&home), container);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// Podman then closes the stdin of the container, which exits cleanly.
#[test]
fn podman_stream_cut_restarts_server() {
    let (engine, home) = (Engine::podman(), home());
    let (engine_proxy, seen) = EngineProxy::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    for restarts in 1..=3 {
        assert_echoes(&client, "one");
        let container = engine.container(&home);
        assert_eq!(engine_proxy.cut("/attach"), 1);
        running_after(&home, "one", restarts);
        let told = told(&home);
        assert!(told.contains("its engine was restarted or closed the stream"), "{told}");
        home.wait_until("there is another, and that alone", || {
            let all = engine.containers(&home);
            all.len() == 1 && all[0]["Id"] != container.as_str()
        });
    }
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// A clean exit need not come from a cut.
#[test]
fn podman_clean_exit_is_reported_as_own() {
    let (engine, home) = (Engine::podman(), home());
    for round in 0..3 {
        let name = format!("one-{round}");
        let kdl = engine.kdl(&home, &["xy-test-exit", "--code", "0", "--after", "1000"], "");
        let rules = "ready { probe \"process\"; }\nrestart { policy \"on-failure\"; }\n";
        home.write_config(&format!("servers/{name}.kdl"), &format!("{kdl}{rules}"));
    }
    home.daemon();
    for round in 0..3 {
        let name = format!("one-{round}");
        home.wait_for_state(&name, "stopped");
        let now = status(&home, &name);
        assert_eq!(now["last_exit"]["code"], 0, "{now:#}");
        assert!(!now["transitions"].to_string().contains("cut it off"), "{now:#}");
    }
    engine.finish(home);
}

fn removed_container_is_reported_as_removed(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let container = engine.container(&home);
    engine_proxy.hold_back(true);
    engine.must("DELETE", &format!("/containers/{container}?force=1"));
    engine_proxy.hold_back(false);
    running_after(&home, "one", 1);
    let told = told(&home);
    assert!(told.contains("another program has removed its container"), "{told}");
    assert_ne!(engine.container(&home), container);
    engine.finish(home);
}

fn twenty_concurrent_starts_create_one_container(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    seen.mcp_server(&home, "one", &[], "start \"lazy\"\n");
    home.daemon();
    let is_lazy = status(&home, "one");
    assert_eq!(
        (&is_lazy["state"], engine_proxy.asked("/containers/create")),
        (&json!("asleep"), 0),
        "{is_lazy:#}"
    );
    let clients: Vec<_> = (0..10).map(|_| client(&home)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| assert_echoes(client, "one"));
            scope.spawn(|| home.call("start", json!({ "name": "one" })).unwrap());
        }
    });
    assert_eq!(engine_proxy.asked("/containers/create"), 1);
    engine.container(&home);
    let now = status(&home, "one");
    assert_eq!((&now["restarts_total"], &now["state"]), (&json!(0), &json!("running")), "{now:#}");
    // A stopping server is started once more, however many clients ask.
    std::thread::scope(|scope| {
        scope.spawn(|| home.call("stop", json!({ "name": "one" })));
        for client in &clients {
            scope.spawn(|| -> Value { client.call("one__echo", json!({ "message": "x" })) });
            scope.spawn(|| home.call("restart", json!({ "name": "one" })));
        }
    });
    let _ = home.call("start", json!({ "name": "one" })); // The stop may have come last.
    running(&home, "one");
    assert_eq!(engine.containers(&home).len(), 1, "{}", reason(&home, "one"));
    drop(clients);
    engine.finish(home);
}
