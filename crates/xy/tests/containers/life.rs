//! What processes do, done by containers.

use serde_json::json;

use crate::stage::{Engine, client, echoes, reason};
use crate::support::{ask, home, pid_in, running, running_after, status};

crate::with_each_engine!(
    one_is_started_spoken_with_and_stopped,
    it_is_safe_unless_its_file_says_otherwise,
    one_that_dies_is_started_again,
    one_that_keeps_dying_is_given_up_and_a_restart_counts_anew,
    what_it_says_is_in_its_log,
    no_line_of_a_flood_is_lost,
    one_that_does_not_end_is_killed_after_its_grace,
    one_that_uses_too_much_memory_is_named_as_such,
    a_change_of_its_file_makes_a_new_one,
    clients_have_containers_of_their_own,
);

fn one_is_started_spoken_with_and_stopped(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    let said = client.call_text("one__env", json!({ "name": "XY_SERVER" }));
    assert!(said.contains("one"), "{said}");
    // Longer than any pipe, both ways.
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
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn it_is_safe_unless_its_file_says_otherwise(engine: &Engine) {
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

fn one_that_dies_is_started_again(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    let first = running(&home, "one");
    let client = client(&home);
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let again = running_after(&home, "one", 1);
    assert_ne!(pid_in(&again), first);
    assert_eq!(again["last_exit"]["signal"], 9, "{again:#}");
    echoes(&client, "one");
    let _ = client.start_call("one__crash", json!({ "code": 3 }));
    let again = running_after(&home, "one", 2);
    assert_eq!(again["last_exit"]["code"], 3, "{again:#}");
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn one_that_keeps_dying_is_given_up_and_a_restart_counts_anew(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-exit", "--code", "3", "--say", "last words"], "");
    // Podman takes seconds for each; how long is waited in between is shown without an engine.
    let attempts = if engine.kind == "podman" { 2 } else { 5 };
    let restart = format!(
        "restart {{ backoff-initial \"2ms\"; backoff-max \"32ms\"; jitter #false; \
         max-attempts {attempts}; max-retries-per-minute 0; }}\n"
    );
    home.write_config("servers/one.kdl", &format!("{kdl}{restart}"));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let gave_up = format!("gave up after {attempts}");
    assert!(failed["reason"].as_str().unwrap().contains(&gave_up), "{failed:#}");
    assert!(failed["reason"].as_str().unwrap().contains("exited with code 3"), "{failed:#}");
    assert!(failed["last_stderr"].to_string().contains("last words"), "{failed:#}");
    assert_eq!(failed["restart_count"], attempts);
    assert_eq!(failed["limits_used"]["in_a_row"], attempts, "{failed:#}");
    assert!(engine.containers(&home).is_empty());
    let _ = home.call("restart", json!({ "name": "one" }));
    home.wait_until("it has been given up again", || {
        let now = status(&home, "one");
        now["state"] == "failed"
            && now["restarts_total"] == 2 * attempts
            && now["restart_count"] == attempts
    });
    engine.finish(home);
}

fn what_it_says_is_in_its_log(engine: &Engine) {
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

fn no_line_of_a_flood_is_lost(engine: &Engine) {
    let home = home();
    home.server("one", &engine.kdl(&home, &["xy-test-spew", "--lines", "20000"], ""));
    home.daemon();
    home.wait_for_state("one", "stopped");
    let log = std::fs::read_to_string(home.log_file("one")).unwrap();
    // One that ends on its first question is started once more.
    let lives = if log.lines().count() > 20_000 { 2 } else { 1 };
    assert_eq!(log.lines().count(), lives * 20_000);
    assert!(log.lines().all(|line| line.starts_with("[err] line ")));
    engine.finish(home);
}

fn one_that_does_not_end_is_killed_after_its_grace(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-ignore-term"], "");
    home.server("one", &format!("{kdl}stop {{ grace \"500ms\"; }}\n"));
    home.daemon();
    running(&home, "one");
    ask(&home, "stop", json!({ "name": "one" }));
    let now = status(&home, "one");
    assert_eq!((&now["state"], &now["last_exit"]["signal"]), (&json!("stopped"), &json!(9)));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn one_that_uses_too_much_memory_is_named_as_such(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"; memory \"32MiB\"");
    home.write_config("servers/one.kdl", &format!("{kdl}restart {{ policy \"never\"; }}\n"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    let _ = client.start_call("one__big", json!({ "bytes": 200_000_000 }));
    home.wait_for_state("one", "failed");
    let why = reason(&home, "one");
    // This Podman does not always notice why.
    let is_told = why.contains("memory limit (32 MiB)");
    assert!(is_told || (engine.kind == "podman" && why.contains("SIGKILL")), "{why}");
    drop(client);
    engine.finish(home);
}

fn a_change_of_its_file_makes_a_new_one(engine: &Engine) {
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

fn clients_have_containers_of_their_own(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "isolation \"client\"\n");
    home.daemon();
    let (first, second) = (client(&home), client(&home));
    echoes(&first, "one");
    echoes(&second, "one");
    assert_eq!(engine.containers(&home).len(), 2);
    drop(first);
    home.wait_until("one of them is gone with its client", || engine.containers(&home).len() == 1);
    echoes(&second, "one");
    drop(second);
    engine.finish(home);
}

#[test]
fn docker_run_by_its_cli_leaves_no_container_even_if_it_has_to_be_killed() {
    let engine = Engine::docker();
    let home = home();
    let kdl = format!(
        "command \"docker\"\nargs \"run\" \"--rm\" \"-i\" \"--network\" \"none\" \"--label\" \"test={}\" \
         \"--entrypoint\" \"/bin/xy-test-ignore-term\" \"localhost/xy-test\"\n\
         env {{ DOCKER_HOST \"unix://{}\"; }}\nstop {{ grace \"500ms\"; }}\n",
        home.mark(),
        engine.socket.display()
    );
    home.server("one", &kdl);
    home.expect_left("home/.docker");
    home.daemon();
    running(&home, "one");
    home.wait_until("its container is there", || engine.containers(&home).len() == 1);
    let checked = home.xy(&["check"]);
    assert!(checked.stdout.contains("container {"), "{checked:?}");
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}
