//! Who holds the stream of a container while no daemon does; and that nobody does any longer than
//! there is one.

use std::fs;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::Home;

use crate::stage::{Engine, client, echoes, inside};
use crate::support::{ask, home, running, signal, status};

/// The processes that hold streams of this home.
fn grips(home: &Home) -> Vec<u32> {
    let root = home.root().display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|it| it.file_name().to_str()?.parse().ok());
    let is_one = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.starts_with("xy\0grip\0") && words.contains(&root)
    };
    pids.filter(is_one).collect()
}

/// The sockets that they listen at.
fn sockets(home: &Home) -> usize {
    let folder = fs::read_dir(home.root().join("state/xy/containers")).unwrap().flatten();
    folder.filter(|it| it.path().extension().is_some_and(|it| it == "sock")).count()
}

#[track_caller]
fn only_grip(home: &Home) -> u32 {
    let all = grips(home);
    assert_eq!((all.len(), sockets(home)), (1, 1), "{all:?}");
    all[0]
}

#[track_caller]
fn nobody_is_left(home: &Home) {
    home.wait_until("nobody holds a stream", || grips(home).is_empty() && sockets(home) == 0);
}

crate::with_each_engine!(
    somebody_holds_a_stream_for_as_long_as_there_is_a_container,
    nobody_left_to_hold_a_stream_is_followed_by_another_while_there_is_a_daemon,
    nobody_holds_the_stream_of_a_container_that_is_removed_while_there_is_no_daemon,
);

fn somebody_holds_a_stream_for_as_long_as_there_is_a_container(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    let first = running(&home, "one");
    let grip = only_grip(&home);
    ask(&home, "restart", json!({ "name": "one" }));
    home.wait_until("there is another", || running(&home, "one") != first);
    assert_ne!(only_grip(&home), grip);
    let container = engine.container(&home);
    engine.must("DELETE", &format!("/containers/{container}?force=1"));
    home.wait_until("there is a third", || {
        let now = status(&home, "one");
        now["state"] == "running" && now["container"]["id"] != container.as_str()
    });
    home.wait_until("the second is not held any more", || grips(&home).len() == 1);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!((grips(&home).len(), sockets(&home)), (0, 0));
    engine.finish(home);
}

fn nobody_left_to_hold_a_stream_is_followed_by_another_while_there_is_a_daemon(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let uptime = || status(&home, "one")["uptime_secs"].as_u64().unwrap_or_default();
    home.wait_until("it has run for a while", || uptime() >= 2);
    let grip = only_grip(&home);
    signal(grip, Signal::KILL);
    home.wait_until("there is another", || grips(&home).iter().any(|it| *it != grip));
    echoes(&client, "one");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "one"), first, "it is the same container");
    echoes(&client, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// Docker keeps its stdin open, so it is attached to anew.
#[test]
fn docker_with_one_whose_stream_nobody_held_goes_on_with_it() {
    let (engine, home) = (Engine::docker(), home());
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    echoes(&client, "one");
    daemon.kill9();
    signal(only_grip(&home), Signal::KILL);
    home.daemon();
    assert_eq!(running(&home, "one"), first, "it is the same container");
    echoes(&client, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    ask(&home, "stop", json!({ "name": "one" }));
    nobody_is_left(&home);
    drop(client);
    engine.finish(home);
}

/// Whoever held its stream is killed while there is no daemon: it has ended then, or has not
/// noticed yet.
#[test]
fn podman_with_one_whose_stream_nobody_held_starts_it_anew() {
    for has_noticed in [true, false] {
        let (engine, home) = (Engine::podman(), home());
        engine.mcp_server(&home, "one", &[], "stop { grace \"1s\"; }\n");
        let daemon = home.daemon();
        let first = running(&home, "one");
        let client = client(&home);
        echoes(&client, "one");
        drop(client);
        let container = engine.container(&home);
        if !has_noticed {
            signal(*inside(first).last().unwrap(), Signal::STOP);
        }
        daemon.kill9();
        signal(only_grip(&home), Signal::KILL);
        if has_noticed {
            home.wait_until("it has ended", || engine.containers(&home)[0]["State"] == "exited");
        }
        home.daemon();
        home.wait_until("there is another", || {
            let now = status(&home, "one");
            now["state"] == "running" && now["container"]["id"] != container.as_str()
        });
        let client = self::client(&home);
        echoes(&client, "one");
        assert_eq!(status(&home, "one")["restarts_total"], 0, "that is not counted");
        assert_eq!(engine.containers(&home).len(), 1);
        only_grip(&home);
        drop(client);
        engine.finish(home);
    }
}

fn nobody_holds_the_stream_of_a_container_that_is_removed_while_there_is_no_daemon(
    engine: &Engine,
) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    only_grip(&home);
    daemon.kill9();
    engine.must("DELETE", &format!("/containers/{}?force=1", engine.container(&home)));
    nobody_is_left(&home);
    home.daemon();
    running(&home, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    only_grip(&home);
    engine.finish(home);
}

/// It cuts its containers off when it goes, which end cleanly then.
#[test]
fn podman_restarted_while_there_is_no_daemon_has_them_started_anew() {
    let (engine, own) = Engine::of_its_own("podman");
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { policy \"on-failure\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let container = engine.container(&home);
    daemon.kill9();
    own.end("podman", true);
    home.wait_until("nobody holds a stream", || grips(&home).is_empty());
    own.up("podman");
    home.wait_until("it has ended", || engine.containers(&home)[0]["State"] == "exited");
    home.daemon();
    running(&home, "one");
    assert_ne!(engine.container(&home), container);
    assert_eq!(status(&home, "one")["restarts_total"], 0, "that is not counted");
    only_grip(&home);
    engine.finish(home);
}

/// A daemon that is killed before it has written down what it began.
#[test]
fn podman_with_a_stream_of_a_container_that_nobody_knows_lets_go_of_it() {
    let (engine, home) = (Engine::podman(), home());
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    let (grip, container) = (only_grip(&home), engine.container(&home));
    daemon.kill9();
    fs::remove_file(home.root().join("state/xy/containers/one.json")).unwrap();
    home.daemon();
    running(&home, "one");
    home.wait_until("there is another, and that alone", || {
        let all = engine.containers(&home);
        all.len() == 1 && all[0]["Id"] != container.as_str()
    });
    assert_ne!(only_grip(&home), grip);
    engine.finish(home);
}

/// Nobody reads what it says, so its engine waits, and cannot even tell how it ended.
#[test]
fn podman_that_kills_one_whose_stream_is_full_leaves_nothing() {
    let (engine, home) = (Engine::podman(), home());
    let rules = "health { probe \"off\"; }\nrestart { policy \"never\"; }\n";
    let folder = home.root().join("harness/diary");
    fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/diary\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--diary", "/diary/heard"], &volume);
    home.write_config("servers/one.kdl", &format!("{kdl}{rules}"));
    let daemon = home.daemon();
    running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let container = engine.container(&home);
    client.start_call("one__half_line", json!({ "ms": 5000 }));
    client.start_call("one__garbage", json!({ "lines": 100_000 }));
    let heard = || fs::read_to_string(folder.join("heard")).unwrap_or_default();
    home.wait_until("both calls are with it", || {
        heard().contains("half_line") && heard().contains("garbage")
    });
    daemon.kill9();
    drop(client);
    let said = || engine.said(&container);
    home.wait_until("it says more than anybody holds", || said().contains("garbage 999"));
    let mut so_far = 0;
    home.wait_until("it cannot say any more", || {
        let now = said().len();
        std::mem::replace(&mut so_far, now) == now
    });
    // Its engine says that it could not, but it has.
    let _ = engine.ask("POST", &format!("/containers/{container}/kill"), None);
    home.daemon();
    home.wait_for_state("one", "failed");
    assert!(engine.containers(&home).is_empty());
    nobody_is_left(&home);
    engine.finish(home);
}
