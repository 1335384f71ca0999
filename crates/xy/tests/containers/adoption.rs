//! Killed daemons, and containers that live on.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, free_port};

use crate::engine_proxy::EngineProxy;
use crate::stage::{Engine, assert_echoes, client, reason};
use crate::support::{ask, home, running, running_after, status, wait_for_line};

crate::with_each_engine!(
    container_survives_killed_daemon_and_is_adopted,
    stderr_without_daemon_is_logged_once,
    stdout_without_daemon_is_logged_once,
    messages_without_daemon_arrive_once_and_whole,
    flood_without_daemon_arrives_once_and_whole,
    daemon_killed_during_large_answer_tears_nothing,
    stdio_container_that_exited_without_daemon_reports_its_exit,
    container_survives_two_killed_daemons,
    container_that_exited_without_daemon_reports_its_exit,
    only_unowned_container_is_removed,
    unowned_container_is_removed_at_runtime,
    replacement_keeps_container,
    container_stop_in_progress_is_finished_by_next_daemon,
    changed_container_files_are_applied_by_next_daemon,
    container_of_slow_engine_is_adopted_later,
);

fn container_survives_killed_daemon_and_is_adopted(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let before = running_after(&home, "one", 1);
    assert_echoes(&client, "one");
    let container = engine.container(&home);

    daemon.kill9();
    home.daemon();
    running(&home, "one"); // A slow engine delays the adoption.
    let now = status(&home, "one");
    assert_eq!((&now["state"], &now["pid"]), (&json!("running"), &before["pid"]), "{now:#}");
    assert_eq!(now["restart_count"], 1);
    assert_eq!(engine.container(&home), container);
    assert_eq!(now["container"]["id"], container, "{now:#}");
    for _ in 0..3 {
        assert_echoes(&client, "one");
    }
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

/// Returns the ticks in the log file, in order.
fn ticks(home: &Home) -> Vec<u64> {
    let log = std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
    log.lines().filter_map(|line| line.rsplit_once("tick ")?.1.parse().ok()).collect()
}

fn stderr_without_daemon_is_logged_once(engine: &Engine) {
    assert_logged_once(engine, &[]);
}

fn stdout_without_daemon_is_logged_once(engine: &Engine) {
    assert_logged_once(engine, &["--stdout"]);
}

#[track_caller]
fn assert_logged_once(engine: &Engine, more: &[&str]) {
    let home = home();
    // xy takes it for an HTTP server, so no engine closes its stdin.
    let command = [&["xy-test-sleep-server", "--every", "50"], more].concat();
    let kdl = engine.kdl(&home, &command, "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\n"));
    for _ in 0..3 {
        let daemon = home.daemon();
        let so_far = ticks(&home).len();
        home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
        daemon.kill9();
        // It ticks on, which only its engine receives.
        let heard = || engine.said(&engine.container(&home)).matches("tick ").count();
        let so_far = heard();
        home.wait_until("it ticks on", || heard() > so_far + 5);
    }
    home.daemon();
    // An orderly handover neither loses nor doubles lines either.
    for _ in 0..3 {
        let so_far = ticks(&home).len();
        home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
        home.daemon_with(&["--replace"]);
    }
    let so_far = ticks(&home).len();
    home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
    let all = ticks(&home);
    let expected: Vec<u64> = (1..=all.len() as u64).collect();
    assert_eq!(all, expected, "none is missing, and none is there twice");
    engine.finish(home);
}

fn messages_without_daemon_arrive_once_and_whole(engine: &Engine) {
    assert_arrives_once_and_whole(engine, 2);
}

/// The server writes while the next daemon starts. With Podman the flood exceeds all buffers
/// between them, so the server waits for the daemon.
fn flood_without_daemon_arrives_once_and_whole(engine: &Engine) {
    assert_arrives_once_and_whole(engine, 60_000);
}

/// Half of a line is written before the daemon is killed. The rest, and that many lines of garbage,
/// follow while there is no daemon.
#[track_caller]
fn assert_arrives_once_and_whole(engine: &Engine, lines: usize) {
    let home = home();
    let folder = home.root().join("harness/input-log");
    std::fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/input-log\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--input-log", "/input-log/lines"], &volume);
    home.write_config("servers/one.kdl", &format!("{kdl}health {{ probe \"off\"; }}\n"));
    let daemon = home.daemon();
    running(&home, "one");
    // Without this option it would start a daemon.
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let heard = || std::fs::read_to_string(folder.join("heard")).unwrap_or_default();
    // xy's own requests would wait for the rest of the line, with everything behind them.
    home.wait_until("it has been asked for all its lists", || {
        let lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
        lists.iter().all(|it| heard().contains(it))
    });
    assert_echoes(&client, "one");
    let container = engine.container(&home);
    // Killing the daemon takes a while on a busy machine.
    let torn = client.start_call("one__half_line", json!({ "ms": 25_000 }));
    home.wait_until("nothing more comes before the rest of that line", || {
        let call = client.start_call("one__slow_echo", json!({ "message": "x", "ms": 0 }));
        client.answer_within(call, Duration::from_secs(1)).is_none()
    });
    let after = client.start_call("one__garbage", json!({ "lines": lines }));
    home.wait_until("both calls are with it", || {
        heard().contains("half_line") && heard().contains("garbage")
    });
    daemon.kill9();
    home.wait_until("it says more than a line", || engine.said(&container).contains("garbage 1\n"));
    home.daemon();
    running(&home, "one");
    for call in [torn, after] {
        let answer = client.wait_answer(call);
        assert_eq!(answer["error"]["code"], -32010, "the outcome is unknown: {answer}");
    }
    assert_echoes(&client, "one");
    assert_eq!(engine.container(&home), container);
    let log = || {
        let log = std::fs::read(home.log_file("one")).unwrap();
        String::from_utf8_lossy(&log).into_owned()
    };
    let last = format!("[out] garbage {}\n", lines - 1);
    home.wait_until("the unparsed output is in the log", || log().contains(&last));
    let log = log();
    let garbage = log.lines().filter_map(|line| line.split_once("[out] garbage ")?.1.parse().ok());
    let garbage: Vec<usize> = garbage.collect();
    assert!(garbage == (0..lines).collect::<Vec<_>>(), "none is missing, and none is there twice");
    assert!(!log.contains("halves"), "no part of a message is logged: {log}");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    let unclaimed = client.unclaimed_answers();
    assert_eq!(unclaimed.len(), 1, "only the echo without a caller: {unclaimed:?}");
    drop(client);
    engine.finish(home);
}

/// Kills the server `one` while there is no daemon, and asserts that the exit is reported.
#[track_caller]
fn assert_exit_is_reported(engine: &Engine, home: Home) {
    let daemon = home.daemon();
    running(&home, "one");
    daemon.kill9();
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    assert_eq!(failed["last_exit"]["signal"], 9, "{failed:#}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn container_that_exited_without_daemon_reports_its_exit(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-sleep-server"], "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\nrestart {{ policy \"never\"; }}\n"));
    assert_exit_is_reported(engine, home);
}

fn stdio_container_that_exited_without_daemon_reports_its_exit(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { policy \"never\"; }\n");
    assert_exit_is_reported(engine, home);
}

fn container_survives_two_killed_daemons(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let mut daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    assert_echoes(&client, "one");
    let container = engine.container(&home);
    for _ in 0..3 {
        daemon.kill9();
        home.daemon().kill9();
        daemon = home.daemon();
        assert_eq!((running(&home, "one"), engine.container(&home)), (first, container.clone()));
        assert_echoes(&client, "one");
    }
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// The part of the answer that the daemon had received comes from the engine's log, the rest from
/// the stream.
fn daemon_killed_during_large_answer_tears_nothing(engine: &Engine) {
    let home = home();
    let folder = home.root().join("harness/input-log");
    std::fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/input-log\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--input-log", "/input-log/lines"], &volume);
    home.write_config("servers/one.kdl", &kdl);
    let mut daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let heard = || std::fs::read_to_string(folder.join("heard")).unwrap_or_default();
    for round in 1..=3 {
        assert_echoes(&client, "one");
        client.start_call("one__big", json!({ "bytes": 1_000_000 }));
        home.wait_until("it has heard that", || heard().matches("big").count() >= round);
        daemon.kill9();
        daemon = home.daemon();
        assert_eq!(running(&home, "one"), first, "it is the same container");
    }
    assert_echoes(&client, "one");
    let log = std::fs::read(home.log_file("one")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    assert!(!log.contains("xxxx"), "no part of a message is logged");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// Creates a container beside those of xy.
#[track_caller]
fn make(engine: &Engine, home: &Home, name: &str, labels: Value) {
    let mut body = json!({ "Image": "localhost/xy-test", "Entrypoint": ["/bin/xy-test-mcp"] });
    body["Labels"] = labels;
    body["Labels"]["test"] = home.mark().into();
    let name = format!("{name}-{}", home.mark());
    let (status, said) =
        engine.ask("POST", &format!("/containers/create?name={name}"), Some(&body));
    assert_eq!(status, 201, "{said}");
}

/// Creates a container with our labels that belongs to no server, and three similar foreign ones.
#[track_caller]
fn make_unowned(engine: &Engine, home: &Home) {
    let id = engine.container(home);
    let ours = engine.inspect(&id)["Config"]["Labels"]["xy.home"].clone();
    make(engine, home, "left", json!({ "xy.home": ours, "xy.instance": "left" }));
    make(engine, home, "foreign", json!({ "xy.home": "another", "xy.instance": "left" }));
    make(engine, home, "namesake", json!({ "xy.instance": "left", "xy.life": "x" }));
    make(engine, home, "plain", json!({}));
}

/// Returns the names of all containers that the test knows of.
fn names(engine: &Engine, home: &Home) -> Vec<String> {
    let all = engine.containers(home);
    let name = |it: &Value| it["Names"][0].as_str().unwrap().trim_start_matches('/').to_owned();
    let mut all: Vec<String> = all.iter().map(name).collect();
    all.sort();
    all
}

#[track_caller]
fn assert_only_unowned_is_gone(engine: &Engine, home: &Home, own: &str) {
    let others = ["foreign", "namesake", "plain"].map(|it| format!("{it}-{}", home.mark()));
    let left: Vec<String> = others.iter().cloned().chain([own.to_owned()]).collect();
    assert_eq!(names(engine, home), left);
    for name in others {
        engine.must("DELETE", &format!("/containers/{name}?force=1"));
    }
}

fn only_unowned_container_is_removed(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    let own = names(engine, &home).remove(0);
    // As if it had been killed before it could record anything.
    daemon.kill9();
    make_unowned(engine, &home);
    home.daemon();
    let pid = running(&home, "one");
    home.wait_until("unowned containers are removed", || engine.containers(&home).len() == 4);
    assert_only_unowned_is_gone(engine, &home, &own);
    assert_eq!(running(&home, "one"), pid);
    engine.finish(home);
}

/// Takes a minute, the interval of the search.
fn unowned_container_is_removed_at_runtime(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    seen.mcp_server(&home, "one", &[], "");
    home.daemon();
    let pid = running(&home, "one");
    let looks = || engine_proxy.asked("/containers/json?");
    home.wait_until("it has looked once, as the daemon began", || looks() >= 1);
    let own = names(engine, &home).remove(0);
    make_unowned(engine, &home);
    assert_eq!(engine.containers(&home).len(), 5);
    let mut tries = 0;
    while engine.containers(&home).len() == 5 {
        tries += 1;
        assert!(tries < 240, "unowned containers remain");
        std::thread::park_timeout(Duration::from_millis(500));
    }
    assert_eq!(looks(), 2, "that was another look");
    assert_only_unowned_is_gone(engine, &home, &own);
    assert_eq!(
        (running(&home, "one"), status(&home, "one")["restarts_total"].clone()),
        (pid, json!(0))
    );
    engine.finish(home);
}

fn replacement_keeps_container(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let before = running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    home.daemon_with(&["--replace"]);
    home.wait_until("the first is gone", || !daemon.is_running());
    let now = running(&home, "one");
    assert_eq!(now, before, "it is the same container");
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// Writes a server that no engine ends with its daemon: xy takes it for an HTTP server.
fn write_lasting(engine: &Engine, home: &Home, command: &[&str], more: &str) -> String {
    let kdl = engine.kdl(home, command, more);
    format!("{kdl}port {}\n", free_port())
}

fn container_stop_in_progress_is_finished_by_next_daemon(engine: &Engine) {
    let home = home();
    let kdl = write_lasting(engine, &home, &["xy-test-ignore-term"], "");
    home.server("one", &format!("{kdl}stop {{ grace \"4s\"; }}\n"));
    let daemon = home.daemon();
    running(&home, "one");
    wait_for_line(&home, "one", "ready"); // Earlier a signal would have its default effect.
    let container = engine.container(&home);
    ask(&home, "stop", json!({ "name": "one", "wait": false }));
    home.wait_for_state("one", "stopping");
    let note = home.root().join("state/xy/containers/one.json");
    home.wait_until("that is written down", || {
        std::fs::read_to_string(&note).is_ok_and(|it| it.contains("\"stopping\":true"))
    });
    daemon.kill9();
    assert_eq!(engine.container(&home), container, "it has its grace");
    home.daemon();
    let stopped = home.wait_for_state("one", "stopped");
    assert_eq!((&stopped["wanted"], &stopped["restarts_total"]), (&json!("down"), &json!(0)));
    assert_eq!(stopped["last_exit"]["signal"], 9, "{stopped:#}");
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

fn changed_container_files_are_applied_by_next_daemon(engine: &Engine) {
    let home = home();
    let names = ["same", "rules", "process", "gone"];
    let files = names.map(|_| write_lasting(engine, &home, &["xy-test-sleep-server"], ""));
    for (name, file) in names.iter().zip(&files) {
        home.server(name, file);
    }
    let daemon = home.daemon();
    let id = |name: &str| {
        running(&home, name);
        status(&home, name)["container"]["id"].clone()
    };
    let [same, rules, process, gone] = names.map(id);
    daemon.kill9();
    home.server("rules", &format!("{}stop {{ grace \"7s\"; }}\n", files[1]));
    home.server("process", &files[2].replace("container {", "container {\n env { A \"b\"; }"));
    home.remove_server("gone");
    home.daemon();
    assert_eq!((id("same"), id("rules")), (same, rules), "they go on");
    home.wait_until("there is another", || {
        let now = status(&home, "process");
        now["state"] == "running" && now["container"]["id"] != process
    });
    home.wait_until("what has no file is gone, and what was changed", || {
        let all = engine.containers(&home);
        all.len() == 3 && all.iter().all(|it| it["Id"] != gone && it["Id"] != process)
    });
    engine.finish(home);
}

fn container_of_slow_engine_is_adopted_later(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    home.server("one", &write_lasting(&seen, &home, &["xy-test-sleep-server"], ""));
    let daemon = home.daemon();
    let before = running(&home, "one");
    let container = engine.container(&home);
    daemon.kill9();
    engine_proxy.hold_back(true);
    home.daemon();
    let waits = status(&home, "one");
    assert_eq!((&waits["state"], &waits["pid"]), (&json!("starting"), &json!(null)), "{waits:#}");
    engine_proxy.hold_back(false);
    assert_eq!(running(&home, "one"), before, "it was not started anew");
    assert_eq!(engine.container(&home), container);
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

/// Stops a server while its engine is away, ends the daemon and deletes the file. Only the record
/// of the earlier daemon then says where a container has to be removed.
#[track_caller]
fn assert_removed_later(kind: &'static str) {
    let (engine, own) = Engine::of_its_own(kind);
    let home = home();
    engine.mcp_server(&home, "one", &[], "stop { grace \"1s\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let container = engine.container(&home);
    own.end(kind, true);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(daemon.terminate().success());
    home.remove_server("one");
    own.up(kind);
    assert_eq!(engine.container(&home), container, "it was left");
    home.daemon();
    home.wait_until("nothing is left of it", || engine.containers(&home).is_empty());
    engine.finish(home);
}

#[test]
fn docker_absent_at_stop_is_cleaned_up_later() {
    assert_removed_later("docker");
}

#[test]
fn podman_absent_at_stop_is_cleaned_up_later() {
    assert_removed_later("podman");
}

/// The containers live on while the engine is away.
#[test]
fn docker_absent_at_adoption_has_one_container_afterwards() {
    let (engine, own) = Engine::with_options("docker", "--live-restore");
    let home = home();
    let rules =
        "restart { backoff-initial \"200ms\"; max-attempts 0; max-retries-per-minute 0; }\n";
    engine.mcp_server(&home, "one", &[], rules);
    let daemon = home.daemon();
    running(&home, "one");
    own.end("docker", true);
    daemon.kill9();
    home.daemon();
    home.wait_until("it is told", || reason(&home, "one").contains("no container engine listens"));
    own.up("docker");
    running(&home, "one");
    engine.container(&home);
    assert_echoes(&client(&home), "one");
    engine.finish(home);
}
