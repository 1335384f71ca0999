//! The life cycle of servers, in containers.

use serde_json::json;

use crate::engine_proxy::EngineProxy;
use crate::stage::{Engine, assert_echoes, client, reason};
use crate::support::{ask, home, millis_in, pid_in, running, running_after, status, wait_for_line};

crate::with_each_engine!(
    container_starts_answers_and_stops,
    container_is_confined_by_default,
    dead_container_is_restarted,
    crashing_container_fails_and_restart_resets_count,
    container_output_is_logged,
    flood_loses_no_line,
    silent_stdio_container_misses_ready_timeout,
    unresponsive_container_is_killed_after_grace,
    slow_container_gets_full_grace,
    out_of_memory_container_is_reported,
    manual_restart_resets_count,
    stop_during_back_off_is_final,
    shared_key_shares_container,
    idle_server_sleeps_without_container_and_wakes,
    least_recently_used_container_sleeps_over_limit,
    stop_between_create_and_start_leaves_nothing,
    changed_file_replaces_container,
    clients_have_separate_containers,
);

fn container_starts_answers_and_stops(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let said = client.call_text("one__env", json!({ "name": "XY_SERVER" }));
    assert!(said.contains("one"), "{said}");
    // Longer than any pipe, in both directions.
    let long = "x".repeat(300_000);
    let said = client.call_text("one__echo", json!({ "message": long }));
    assert!(said.contains(&long));
    let all = engine.containers(&home);
    assert_eq!(all.len(), 1);
    assert!(all[0]["Names"][0].as_str().unwrap().contains("xy-one-"), "{all:#?}");
    assert_eq!(all[0]["Labels"]["xy.instance"], "one");

    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!(status(&home, "one")["state"], "stopped");
    assert!(engine.containers(&home).is_empty());
    ask(&home, "start", json!({ "name": "one" }));
    running(&home, "one");
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn container_is_confined_by_default(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    home.daemon();
    running(&home, "one");
    let found = engine.must("GET", &format!("/containers/{}/json", engine.container(&home)));
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let host = &found["HostConfig"];
    assert_eq!(host["PidsLimit"], 512, "{host:#}");
    assert!(host["SecurityOpt"].to_string().contains("no-new-privileges"), "{host:#}");
    assert_eq!(host["Privileged"], false);
    let capabilities = if engine.kind == "podman" {
        found["EffectiveCaps"].as_array().map_or(0, Vec::len)
    } else {
        usize::from(host["CapDrop"] != json!(["ALL"]))
    };
    assert_eq!(capabilities, 0, "{found:#}");
    engine.finish(home);
}

fn dead_container_is_restarted(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let again = running_after(&home, "one", 1);
    assert_ne!(pid_in(&again), first);
    assert_eq!(again["last_exit"]["signal"], 9, "{again:#}");
    assert_echoes(&client, "one");
    let _ = client.start_call("one__crash", json!({ "code": 3 }));
    let again = running_after(&home, "one", 2);
    assert_eq!(again["last_exit"]["code"], 3, "{again:#}");
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn crashing_container_fails_and_restart_resets_count(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-exit", "--code", "3", "--say", "last words"], "");
    let attempts = 5;
    let restart = "restart { backoff-initial \"2ms\"; backoff-max \"32ms\"; jitter #false; \
                   max-attempts 5; max-retries-per-minute 0; }\n";
    let patient = "ready { within \"60s\"; }\n"; // An engine may take that long to end it.
    home.write_config("servers/one.kdl", &format!("{kdl}{restart}{patient}"));
    home.daemon();
    // Podman takes seconds for each.
    home.wait_until("half of it is done", || {
        status(&home, "one")["restart_count"].as_u64() >= Some(3)
    });
    let failed = home.wait_for_state("one", "failed");
    assert!(failed["reason"].as_str().unwrap().contains("gave up after 5"), "{failed:#}");
    let waited = millis_in("restarting", &failed);
    let at_least = [2, 4, 8, 16, 32];
    assert!(
        waited.len() == 5 && waited.iter().zip(at_least).all(|(it, least)| *it >= least),
        "{waited:?}"
    );
    assert!(failed["reason"].as_str().unwrap().contains("exited with code 3"), "{failed:#}");
    assert!(failed["last_stderr"].to_string().contains("last words"), "{failed:#}");
    assert_eq!(failed["restart_count"], attempts);
    assert_eq!(failed["limits_used"]["in_a_row"], attempts, "{failed:#}");
    assert!(engine.containers(&home).is_empty());
    let _ = home.call("restart", json!({ "name": "one" }));
    home.wait_until("half of it is done again", || {
        status(&home, "one")["restarts_total"].as_u64() >= Some(8)
    });
    home.wait_until("it has been given up again", || {
        let now = status(&home, "one");
        now["state"] == "failed"
            && now["restarts_total"] == 2 * attempts
            && now["restart_count"] == attempts
    });
    engine.finish(home);
}

fn container_output_is_logged(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &["--garbage-first"], "");
    let kdl = engine.kdl(&home, &["xy-test-exit", "--code", "0", "--say", "to stderr"], "");
    home.write_config("servers/two.kdl", &kdl);
    home.daemon();
    running(&home, "one");
    home.wait_for_state("two", "stopped");
    let log = std::fs::read_to_string(home.log_file("two")).unwrap();
    assert!(log.lines().any(|line| line == "[err] to stderr"), "{log}");
    home.wait_until("what is no message is in the log", || {
        let log = std::fs::read(home.log_file("one")).unwrap_or_default();
        String::from_utf8_lossy(&log).contains("[out] ")
    });
    ask(&home, "stop", json!({ "name": "one" }));
    let log = std::fs::read(home.log_file("one")).unwrap();
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains("[err] stopping"), "its last words are there: {log}");
    let shown = home.xy(&["logs", "two"]);
    assert!(shown.stdout.contains("to stderr"), "{shown:?}");
    engine.finish(home);
}

fn flood_loses_no_line(engine: &Engine) {
    let home = home();
    home.server("one", &engine.kdl(&home, &["xy-test-spew", "--lines", "20000"], ""));
    home.daemon();
    home.wait_for_state("one", "stopped");
    let log = std::fs::read_to_string(home.log_file("one")).unwrap();
    // A server that exits on its first request is started once more.
    let lives = if log.lines().count() > 20_000 { 2 } else { 1 };
    assert_eq!(log.lines().count(), lives * 20_000);
    assert!(log.lines().all(|line| line.starts_with("[err] line ")));
    engine.finish(home);
}

/// A server that runs and writes nothing.
fn silent_stdio_container_misses_ready_timeout(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-sleep-server"], "network \"none\"");
    let rules = "ready { within \"2s\"; }\nrestart { policy \"never\"; }\nstop { grace \"1s\"; }\n";
    home.write_config("servers/one.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    assert_eq!(failed["reason"], "not ready within 2s", "{failed:#}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn unresponsive_container_is_killed_after_grace(engine: &Engine) {
    assert_killed_after(engine, 500);
}

/// The daemon inspects the container during the grace; Podman then reports that it does not run.
fn slow_container_gets_full_grace(engine: &Engine) {
    assert_killed_after(engine, 12_000);
}

#[track_caller]
fn assert_killed_after(engine: &Engine, grace_ms: u64) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-ignore-term"], "");
    home.server("one", &format!("{kdl}stop {{ grace \"{grace_ms}ms\"; }}\n"));
    home.daemon();
    running(&home, "one");
    wait_for_line(&home, "one", "ready"); // Earlier a signal would have its default effect.
    ask(&home, "stop", json!({ "name": "one" }));
    let now = status(&home, "one");
    assert_eq!((&now["state"], &now["last_exit"]["signal"]), (&json!("stopped"), &json!(9)));
    let stopping = millis_in("stopping", &now)[0];
    assert!(stopping + 50 >= grace_ms, "it had only {stopping} ms");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn out_of_memory_container_is_reported(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"; memory \"32MiB\"");
    home.write_config("servers/one.kdl", &format!("{kdl}restart {{ policy \"never\"; }}\n"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    let _ = client.start_call("one__big", json!({ "bytes": 200_000_000 }));
    home.wait_for_state("one", "failed");
    let why = reason(&home, "one");
    assert!(why.contains("memory limit (32 MiB)"), "{why}");
    assert_eq!(status(&home, "one")["last_exit"]["oom"], "limit");
    drop(client);
    engine.finish(home);
}

fn manual_restart_resets_count(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    running(&home, "one");
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    running_after(&home, "one", 1);
    let before = engine.container(&home);
    ask(&home, "restart", json!({ "name": "one" }));
    let now = running_after(&home, "one", 0);
    assert_ne!(engine.container(&home), before, "there is another, and that alone");
    assert_eq!(now["container"]["id"], engine.container(&home));
    assert_eq!(now["last_exit"]["expected"], true, "{now:#}");
    assert_eq!(now["limits_used"]["in_a_row"], 0, "{now:#}");
    assert_eq!(now["restarts_total"], 1, "only the death was a failure: {now:#}");
    assert_echoes(&client(&home), "one");
    engine.finish(home);
}

fn stop_during_back_off_is_final(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-exit", "--code", "1"], "");
    let rules = "restart { backoff-initial \"1h\"; backoff-max \"1h\"; }\n";
    home.server("one", &format!("{kdl}{rules}"));
    home.daemon();
    let waiting = home.wait_for_state("one", "restarting");
    assert_eq!(waiting["next"]["what"], "restart");
    assert!(engine.containers(&home).is_empty(), "nothing is left of its last life");
    ask(&home, "stop", json!({ "name": "one" }));
    let down = status(&home, "one");
    assert_eq!((&down["state"], &down["next"]), (&json!("stopped"), &json!(null)), "{down:#}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn shared_key_shares_container(engine: &Engine) {
    let home = home();
    for name in ["a", "b"] {
        engine.mcp_server(&home, name, &[], "share-key \"k\"\n");
    }
    home.daemon();
    let pid = running(&home, "a");
    assert_eq!(running(&home, "b"), pid);
    let container = engine.container(&home);
    assert_eq!(status(&home, "b")["shares"], "a");
    let client = client(&home);
    assert_echoes(&client, "a");
    assert_echoes(&client, "b");
    ask(&home, "stop", json!({ "name": "a" }));
    assert_eq!(engine.container(&home), container, "the other name has it");
    assert_echoes(&client, "b");
    ask(&home, "stop", json!({ "name": "b" }));
    home.wait_until("nobody wants it", || engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

fn idle_server_sleeps_without_container_and_wakes(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "start \"lazy\"\nidle-stop \"5s\"\n");
    home.daemon();
    home.wait_for_state("one", "asleep");
    let client = client(&home);
    for _ in 0..2 {
        assert!(engine.containers(&home).is_empty());
        assert_echoes(&client, "one");
        engine.container(&home);
        home.wait_for_state("one", "asleep");
    }
    assert!(engine.containers(&home).is_empty());
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

fn least_recently_used_container_sleeps_over_limit(engine: &Engine) {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\" }\ninstances { most 1 }\n");
    for name in ["a", "b"] {
        engine.mcp_server(&home, name, &[], "start \"lazy\"\nidle-stop \"10m\"\n");
    }
    home.daemon();
    let client = client(&home);
    let container_of = |name: &str| {
        let all = engine.containers(&home);
        assert!(all.len() <= 1, "{all:#?}");
        all.first().is_some_and(|it| it["Labels"]["xy.instance"] == name)
    };
    let is_answered = |name: &str| {
        let answer = client.call(&format!("{name}__echo"), json!({ "message": "x" }));
        assert!(answer["error"].is_null() || answer["error"]["code"] == -32008, "{answer}");
        answer["error"].is_null()
    };
    for (name, asleep) in [("a", "b"), ("b", "a"), ("a", "b")] {
        // The other may still be asked for its lists.
        home.wait_until("there is room", || is_answered(name));
        assert!(container_of(name));
        home.wait_for_state(asleep, "asleep");
    }
    // Its place is in use: the requests of one client stay in order.
    let call = client.start_call("a__never", json!({}));
    let answer = client.call("b__echo", json!({ "message": "x" }));
    assert_eq!(answer["error"]["code"], -32008, "{answer}");
    assert!(container_of("a"));
    client.cancel(&json!(call));
    home.wait_until("there is room again", || is_answered("b"));
    assert!(container_of("b"));
    drop(client);
    engine.finish(home);
}

/// The engine has created the container, but xy receives the response only after the stop request.
fn stop_between_create_and_start_leaves_nothing(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    seen.mcp_server(&home, "one", &[], "");
    engine_proxy.hold_answers(Some("/containers/create"));
    home.daemon();
    home.wait_until("it is made", || engine.containers(&home).len() == 1);
    ask(&home, "stop", json!({ "name": "one", "wait": false }));
    assert_eq!(status(&home, "one")["state"], "stopping");
    engine_proxy.hold_answers(Some("/attach"));
    home.wait_until("xy goes on with it", || engine_proxy.asked("/attach") == 1);
    engine_proxy.hold_answers(None);
    home.wait_for_state("one", "stopped");
    assert_eq!((engine.containers(&home), engine_proxy.asked("/start")), (Vec::new(), 0));
    let kept = home.root().join("state/xy/containers");
    let names = std::fs::read_dir(kept).unwrap().flatten().map(|it| it.file_name());
    let left: Vec<_> = names.filter(|it| it.to_string_lossy().starts_with("one")).collect();
    assert!(left.is_empty(), "{left:?}");
    ask(&home, "start", json!({ "name": "one" }));
    running(&home, "one");
    engine.finish(home);
}

fn changed_file_replaces_container(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    home.daemon();
    running(&home, "one");
    let first = engine.container(&home);
    engine.mcp_server(&home, "one", &[], "stop { grace \"5s\"; }\n");
    ask(&home, "reload", json!({}));
    assert_eq!(engine.container(&home), first, "other rules need no new life");
    engine.mcp_server(&home, "one", &["--v2"], "");
    ask(&home, "reload", json!({}));
    running(&home, "one");
    assert_ne!(engine.container(&home), first);
    home.remove_server("one");
    ask(&home, "reload", json!({}));
    home.wait_until("nothing is left of it", || engine.containers(&home).is_empty());
    engine.finish(home);
}

fn clients_have_separate_containers(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "isolation \"client\"\n");
    home.daemon();
    let (first, second) = (client(&home), client(&home));
    assert_echoes(&first, "one");
    assert_echoes(&second, "one");
    assert_eq!(engine.containers(&home).len(), 2);
    drop(first);
    home.wait_until("one of them is gone with its client", || engine.containers(&home).len() == 1);
    assert_echoes(&second, "one");
    drop(second);
    engine.finish(home);
}
