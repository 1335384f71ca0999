//! What comes between xy and an engine that is well, and what somebody else does at it.

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::between::Between;
use crate::stage::{Engine, client, echoes, reason};
use crate::support::{home, running, running_after, status};

crate::with_each_engine!(
    one_removed_while_nobody_looked_is_named_as_such,
    twenty_who_want_it_at_once_make_one_container,
);

const RESTART: &str = "restart { backoff-initial \"10ms\"; }\nstop { grace \"1s\"; }\n";

/// All that was told of why a server changed its state.
fn told(home: &Home) -> String {
    status(home, "one")["transitions"].to_string()
}

#[test]
fn a_stream_with_docker_that_is_cut_in_a_quiet_moment_is_taken_up_again() {
    let (engine, home) = (Engine::docker(), home());
    let (between, seen) = Between::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    let container = engine.container(&home);
    // What was said must have arrived by then.
    let uptime = || status(&home, "one")["uptime_secs"].as_u64().unwrap_or_default();
    let so_far = uptime();
    home.wait_until("it has been quiet for a while", || uptime() >= so_far + 4);
    assert_eq!(between.cut("/attach"), 1);
    home.wait_until("it is attached again", || between.asked("/attach") == 2);
    echoes(&client, "one");
    assert_eq!((running(&home, "one"), engine.container(&home)), (first, container));
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

#[test]
fn a_stream_with_docker_that_is_cut_in_the_middle_of_a_call_is_told_and_it_starts_anew() {
    let (engine, home) = (Engine::docker(), home());
    let (between, seen) = Between::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    let container = engine.container(&home);
    let lost = client.start_call("one__mutating", json!({ "message": "x", "ms": 600_000 }));
    echoes(&client, "one"); // It has come to it, as far as anybody can know.
    assert_eq!(between.cut("/attach"), 1);
    let answer = client.wait_answer(lost);
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    running_after(&home, "one", 1);
    let told = told(&home);
    assert!(told.contains("was cut in the middle of a conversation"), "{told}");
    assert_ne!(engine.container(&home), container);
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// Podman closes the stdin of one that it has nobody for, which ends cleanly then.
#[test]
fn a_stream_with_podman_that_is_cut_is_told_and_it_starts_anew() {
    let (engine, home) = (Engine::podman(), home());
    let (between, seen) = Between::of(&engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    for restarts in 1..=3 {
        echoes(&client, "one");
        let container = engine.container(&home);
        assert_eq!(between.cut("/attach"), 1);
        running_after(&home, "one", restarts);
        let told = told(&home);
        assert!(told.contains("its engine was restarted, or cut it off"), "{told}");
        home.wait_until("there is another, and that alone", || {
            let all = engine.containers(&home);
            all.len() == 1 && all[0]["Id"] != container.as_str()
        });
    }
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// It need not have been cut off to end cleanly.
#[test]
fn a_clean_end_in_podman_that_was_its_own_is_told_as_such() {
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

fn one_removed_while_nobody_looked_is_named_as_such(engine: &Engine) {
    let home = home();
    let (between, seen) = Between::of(engine, &home);
    seen.mcp_server(&home, "one", &[], RESTART);
    home.daemon();
    running(&home, "one");
    let container = engine.container(&home);
    between.hold_back(true);
    engine.must("DELETE", &format!("/containers/{container}?force=1"));
    between.hold_back(false);
    running_after(&home, "one", 1);
    let told = told(&home);
    assert!(told.contains("somebody else has removed its container"), "{told}");
    assert_ne!(engine.container(&home), container);
    engine.finish(home);
}

fn twenty_who_want_it_at_once_make_one_container(engine: &Engine) {
    let home = home();
    let (between, seen) = Between::of(engine, &home);
    seen.mcp_server(&home, "one", &[], "start \"lazy\"\n");
    home.daemon();
    let is_lazy = status(&home, "one");
    assert_eq!(
        (&is_lazy["state"], between.asked("/containers/create")),
        (&json!("asleep"), 0),
        "{is_lazy:#}"
    );
    let clients: Vec<_> = (0..10).map(|_| client(&home)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| echoes(client, "one"));
            scope.spawn(|| home.call("start", json!({ "name": "one" })).unwrap());
        }
    });
    assert_eq!(between.asked("/containers/create"), 1);
    engine.container(&home);
    let now = status(&home, "one");
    assert_eq!((&now["restarts_total"], &now["state"]), (&json!(0), &json!("running")), "{now:#}");
    // One that is being stopped is started once more, however many want that.
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
