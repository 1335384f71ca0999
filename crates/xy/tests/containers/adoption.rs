//! Daemons that are killed, and containers that live on.

use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, free_port};

use crate::between::Between;
use crate::stage::{Engine, client, echoes, reason};
use crate::support::{ask, home, running, running_after, says, status};

crate::with_each_engine!(
    a_container_outlives_a_killed_daemon_and_the_next_one_goes_on_with_it,
    what_it_says_meanwhile_is_heard_once,
    what_it_says_on_stdout_meanwhile_is_heard_once,
    what_is_said_to_clients_meanwhile_is_heard_once_and_whole,
    a_flood_that_nobody_heard_is_heard_once_and_whole,
    one_whose_daemon_is_killed_in_the_middle_of_a_large_answer_goes_on,
    one_over_stdio_that_ended_meanwhile_is_judged_by_its_end,
    one_that_outlives_two_daemons_in_a_row_is_the_same,
    one_that_ended_meanwhile_is_judged_by_its_end,
    one_that_nobody_owns_is_removed_and_no_other,
    one_that_nobody_owns_is_removed_while_the_daemon_runs,
    a_daemon_can_be_replaced,
    a_stop_of_a_container_that_was_begun_is_finished_by_the_next_daemon,
    what_changed_in_files_of_containers_meanwhile_is_applied_by_the_next_daemon,
    one_whose_engine_is_slow_to_answer_is_taken_over_later,
);

fn a_container_outlives_a_killed_daemon_and_the_next_one_goes_on_with_it(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    engine.must("POST", &format!("/containers/{}/kill", engine.container(&home)));
    let before = running_after(&home, "one", 1);
    echoes(&client, "one");
    let container = engine.container(&home);

    daemon.kill9();
    home.daemon();
    running(&home, "one"); // A slow engine has it taken over later.
    let now = status(&home, "one");
    assert_eq!((&now["state"], &now["pid"]), (&json!("running"), &before["pid"]), "{now:#}");
    assert_eq!(now["restart_count"], 1);
    assert_eq!(engine.container(&home), container);
    assert_eq!(now["container"]["id"], container, "{now:#}");
    for _ in 0..3 {
        echoes(&client, "one");
    }
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    drop(client);
    engine.finish(home);
}

/// The ticks in a log, in the order they are in.
fn ticks(home: &Home) -> Vec<u64> {
    let log = std::fs::read_to_string(home.log_file("one")).unwrap_or_default();
    log.lines().filter_map(|line| line.rsplit_once("tick ")?.1.parse().ok()).collect()
}

fn what_it_says_meanwhile_is_heard_once(engine: &Engine) {
    is_logged_once(engine, &[]);
}

fn what_it_says_on_stdout_meanwhile_is_heard_once(engine: &Engine) {
    is_logged_once(engine, &["--stdout"]);
}

#[track_caller]
fn is_logged_once(engine: &Engine, more: &[&str]) {
    let home = home();
    // By HTTP, as far as xy knows, so that no engine closes its stdin.
    let command = [&["xy-test-sleep-server", "--every", "50"], more].concat();
    let kdl = engine.kdl(&home, &command, "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\n"));
    for _ in 0..3 {
        let daemon = home.daemon();
        let so_far = ticks(&home).len();
        home.wait_until("it ticks", || ticks(&home).len() > so_far + 5);
        daemon.kill9();
        // It ticks on, and only its engine hears it.
        let heard = || engine.said(&engine.container(&home)).matches("tick ").count();
        let so_far = heard();
        home.wait_until("it ticks on", || heard() > so_far + 5);
    }
    home.daemon();
    // An orderly hand-over loses and doubles nothing either.
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

fn what_is_said_to_clients_meanwhile_is_heard_once_and_whole(engine: &Engine) {
    is_heard_once_and_whole(engine, 2);
}

/// It goes on while the next daemon comes. With Podman it is more than all that is between it and
/// a daemon can hold, so it waits for that.
fn a_flood_that_nobody_heard_is_heard_once_and_whole(engine: &Engine) {
    is_heard_once_and_whole(engine, 60_000);
}

/// Half of a line is said before the daemon is killed; the rest, and so many lines that are no
/// messages, while there is none.
#[track_caller]
fn is_heard_once_and_whole(engine: &Engine, lines: usize) {
    let home = home();
    let folder = home.root().join("harness/diary");
    std::fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/diary\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--diary", "/diary/heard"], &volume);
    home.write_config("servers/one.kdl", &format!("{kdl}health {{ probe \"off\"; }}\n"));
    let daemon = home.daemon();
    running(&home, "one");
    // It would start a daemon, if it had to wait for one.
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let heard = || std::fs::read_to_string(folder.join("heard")).unwrap_or_default();
    // A question of xy's own would wait for the rest of the line, and what comes behind it too.
    home.wait_until("it has been asked for all its lists", || {
        let lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
        lists.iter().all(|it| heard().contains(it))
    });
    echoes(&client, "one");
    let container = engine.container(&home);
    // On a busy machine it takes a while until the daemon is killed.
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
        assert_eq!(answer["error"]["code"], -32010, "nobody can know what came of it: {answer}");
    }
    echoes(&client, "one");
    assert_eq!(engine.container(&home), container);
    let log = || {
        let log = std::fs::read(home.log_file("one")).unwrap();
        String::from_utf8_lossy(&log).into_owned()
    };
    let last = format!("[out] garbage {}\n", lines - 1);
    home.wait_until("what is no message is in the log", || log().contains(&last));
    let log = log();
    let garbage = log.lines().filter_map(|line| line.split_once("[out] garbage ")?.1.parse().ok());
    let garbage: Vec<usize> = garbage.collect();
    assert!(garbage == (0..lines).collect::<Vec<_>>(), "none is missing, and none is there twice");
    assert!(!log.contains("halves"), "no part of a message is taken for something else: {log}");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    let unclaimed = client.unclaimed_answers();
    assert_eq!(unclaimed.len(), 1, "only the echo nobody waited for: {unclaimed:?}");
    drop(client);
    engine.finish(home);
}

/// The server `one` is killed while there is no daemon, and told as such.
#[track_caller]
fn is_judged_by_its_end(engine: &Engine, home: Home) {
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

fn one_that_ended_meanwhile_is_judged_by_its_end(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-sleep-server"], "");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.server("one", &format!("{kdl}port {port}\nrestart {{ policy \"never\"; }}\n"));
    is_judged_by_its_end(engine, home);
}

fn one_over_stdio_that_ended_meanwhile_is_judged_by_its_end(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { policy \"never\"; }\n");
    is_judged_by_its_end(engine, home);
}

fn one_that_outlives_two_daemons_in_a_row_is_the_same(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let mut daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    echoes(&client, "one");
    let container = engine.container(&home);
    for _ in 0..3 {
        daemon.kill9();
        home.daemon().kill9();
        daemon = home.daemon();
        assert_eq!((running(&home, "one"), engine.container(&home)), (first, container.clone()));
        echoes(&client, "one");
    }
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// What of it the daemon had heard comes from the engine's log, and the rest is still in the
/// stream.
fn one_whose_daemon_is_killed_in_the_middle_of_a_large_answer_goes_on(engine: &Engine) {
    let home = home();
    let folder = home.root().join("harness/diary");
    std::fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/diary\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--diary", "/diary/heard"], &volume);
    home.write_config("servers/one.kdl", &kdl);
    let mut daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let heard = || std::fs::read_to_string(folder.join("heard")).unwrap_or_default();
    for round in 1..=3 {
        echoes(&client, "one");
        client.start_call("one__big", json!({ "bytes": 1_000_000 }));
        home.wait_until("it has heard that", || heard().matches("big").count() >= round);
        daemon.kill9();
        daemon = home.daemon();
        assert_eq!(running(&home, "one"), first, "it is the same container");
    }
    echoes(&client, "one");
    let log = std::fs::read(home.log_file("one")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    assert!(!log.contains("xxxx"), "no part of a message is taken for something else");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// Makes a container beside those of xy.
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

/// Makes one that carries our labels and belongs to no server, and three of others that are
/// like it.
#[track_caller]
fn make_unowned(engine: &Engine, home: &Home) {
    let id = engine.container(home);
    let ours = engine.inspect(&id)["Config"]["Labels"]["xy.home"].clone();
    make(engine, home, "left", json!({ "xy.home": ours, "xy.instance": "left" }));
    make(engine, home, "foreign", json!({ "xy.home": "another", "xy.instance": "left" }));
    make(engine, home, "namesake", json!({ "xy.instance": "left", "xy.life": "x" }));
    make(engine, home, "plain", json!({}));
}

/// The names of all containers that the test knows of.
fn names(engine: &Engine, home: &Home) -> Vec<String> {
    let all = engine.containers(home);
    let name = |it: &Value| it["Names"][0].as_str().unwrap().trim_start_matches('/').to_owned();
    let mut all: Vec<String> = all.iter().map(name).collect();
    all.sort();
    all
}

#[track_caller]
fn only_that_is_gone(engine: &Engine, home: &Home, own: &str) {
    let others = ["foreign", "namesake", "plain"].map(|it| format!("{it}-{}", home.mark()));
    let left: Vec<String> = others.iter().cloned().chain([own.to_owned()]).collect();
    assert_eq!(names(engine, home), left);
    for name in others {
        engine.must("DELETE", &format!("/containers/{name}?force=1"));
    }
}

fn one_that_nobody_owns_is_removed_and_no_other(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    let own = names(engine, &home).remove(0);
    // As if it had been killed before it could write anything down.
    daemon.kill9();
    make_unowned(engine, &home);
    home.daemon();
    let pid = running(&home, "one");
    home.wait_until("what nobody owns is gone", || engine.containers(&home).len() == 4);
    only_that_is_gone(engine, &home, &own);
    assert_eq!(running(&home, "one"), pid);
    engine.finish(home);
}

/// That is looked for every minute, so this takes one.
fn one_that_nobody_owns_is_removed_while_the_daemon_runs(engine: &Engine) {
    let home = home();
    let (between, seen) = Between::of(engine, &home);
    seen.mcp_server(&home, "one", &[], "");
    home.daemon();
    let pid = running(&home, "one");
    let looks = || between.asked("/containers/json?");
    home.wait_until("it has looked once, as the daemon began", || looks() >= 1);
    let own = names(engine, &home).remove(0);
    make_unowned(engine, &home);
    assert_eq!(engine.containers(&home).len(), 5);
    let mut tries = 0;
    while engine.containers(&home).len() == 5 {
        tries += 1;
        assert!(tries < 240, "what nobody owns is still there");
        std::thread::park_timeout(Duration::from_millis(500));
    }
    assert_eq!(looks(), 2, "that was another look");
    only_that_is_gone(engine, &home, &own);
    assert_eq!(
        (running(&home, "one"), status(&home, "one")["restarts_total"].clone()),
        (pid, json!(0))
    );
    engine.finish(home);
}

fn a_daemon_can_be_replaced(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let before = running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    home.daemon_with(&["--replace"]);
    home.wait_until("the first is gone", || !daemon.is_running());
    let now = running(&home, "one");
    assert_eq!(now, before, "it is the same container");
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

/// A server that no engine ends with its daemon: by HTTP, as far as xy knows.
fn lasting(engine: &Engine, home: &Home, command: &[&str], more: &str) -> String {
    let kdl = engine.kdl(home, command, more);
    format!("{kdl}port {}\n", free_port())
}

fn a_stop_of_a_container_that_was_begun_is_finished_by_the_next_daemon(engine: &Engine) {
    let home = home();
    let kdl = lasting(engine, &home, &["xy-test-ignore-term"], "");
    home.server("one", &format!("{kdl}stop {{ grace \"4s\"; }}\n"));
    let daemon = home.daemon();
    running(&home, "one");
    says(&home, "one", "ready"); // Before that it would end as anybody does.
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

fn what_changed_in_files_of_containers_meanwhile_is_applied_by_the_next_daemon(engine: &Engine) {
    let home = home();
    let names = ["same", "rules", "process", "gone"];
    let files = names.map(|_| lasting(engine, &home, &["xy-test-sleep-server"], ""));
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

fn one_whose_engine_is_slow_to_answer_is_taken_over_later(engine: &Engine) {
    let home = home();
    let (between, seen) = Between::of(engine, &home);
    home.server("one", &lasting(&seen, &home, &["xy-test-sleep-server"], ""));
    let daemon = home.daemon();
    let before = running(&home, "one");
    let container = engine.container(&home);
    daemon.kill9();
    between.hold_back(true);
    home.daemon();
    let waits = status(&home, "one");
    assert_eq!((&waits["state"], &waits["pid"]), (&json!("starting"), &json!(null)), "{waits:#}");
    between.hold_back(false);
    assert_eq!(running(&home, "one"), before, "it was not started anew");
    assert_eq!(engine.container(&home), container);
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    ask(&home, "stop", json!({ "name": "one" }));
    assert!(engine.containers(&home).is_empty());
    engine.finish(home);
}

/// A server is stopped while its engine is away, its daemon ends and its file is deleted: only
/// what an earlier daemon has written down says where there is something to be removed.
#[track_caller]
fn is_removed_later(kind: &'static str) {
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
fn docker_that_was_away_at_a_stop_is_tidied_up_by_a_later_daemon() {
    is_removed_later("docker");
}

#[test]
fn podman_that_was_away_at_a_stop_is_tidied_up_by_a_later_daemon() {
    is_removed_later("podman");
}

/// Its containers live on while it is away.
#[test]
fn docker_that_is_away_when_a_daemon_comes_has_one_container_when_it_is_back() {
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
    echoes(&client(&home), "one");
    engine.finish(home);
}
