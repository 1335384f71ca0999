//! The stream holders of containers, and that none outlives its container.

use std::fs;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::Home;

use crate::stage::{Engine, assert_echoes, client, container_processes};
use crate::support::{ask, home, running, signal, status};

/// Returns the stream holders of this home.
fn stream_holders(home: &Home) -> Vec<u32> {
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

/// Returns the number of their sockets.
fn sockets(home: &Home) -> usize {
    let folder = fs::read_dir(home.root().join("state/xy/containers")).unwrap().flatten();
    folder.filter(|it| it.path().extension().is_some_and(|it| it == "sock")).count()
}

#[track_caller]
fn only_holder(home: &Home) -> u32 {
    let all = stream_holders(home);
    assert_eq!((all.len(), sockets(home)), (1, 1), "{all:?}");
    all[0]
}

#[track_caller]
fn assert_no_holder_left(home: &Home) {
    home.wait_until("nobody holds a stream", || {
        stream_holders(home).is_empty() && sockets(home) == 0
    });
}

crate::with_each_engine!(
    stream_holder_lives_as_long_as_container,
    lost_stream_holder_is_replaced,
    stream_holder_ends_when_container_is_removed_without_daemon,
);

fn stream_holder_lives_as_long_as_container(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { backoff-initial \"10ms\"; }\n");
    home.daemon();
    let first = running(&home, "one");
    let holder = only_holder(&home);
    ask(&home, "restart", json!({ "name": "one" }));
    home.wait_until("there is another", || running(&home, "one") != first);
    assert_ne!(only_holder(&home), holder);
    let container = engine.container(&home);
    engine.must("DELETE", &format!("/containers/{container}?force=1"));
    home.wait_until("there is a third", || {
        let now = status(&home, "one");
        now["state"] == "running" && now["container"]["id"] != container.as_str()
    });
    home.wait_until("the second is not held any more", || stream_holders(&home).len() == 1);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_eq!((stream_holders(&home).len(), sockets(&home)), (0, 0));
    engine.finish(home);
}

fn lost_stream_holder_is_replaced(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    let uptime = || status(&home, "one")["uptime_secs"].as_u64().unwrap_or_default();
    home.wait_until("it has run for a while", || uptime() >= 2);
    let holder = only_holder(&home);
    signal(holder, Signal::KILL);
    home.wait_until("there is another", || stream_holders(&home).iter().any(|it| *it != holder));
    assert_echoes(&client, "one");
    daemon.kill9();
    home.daemon();
    assert_eq!(running(&home, "one"), first, "it is the same container");
    assert_echoes(&client, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    drop(client);
    engine.finish(home);
}

/// Docker keeps the stdin open, so the next daemon attaches anew.
#[test]
fn docker_container_without_stream_holder_is_adopted() {
    let (engine, home) = (Engine::docker(), home());
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&["--no-start"]);
    client.initialize();
    assert_echoes(&client, "one");
    daemon.kill9();
    signal(only_holder(&home), Signal::KILL);
    home.daemon();
    assert_eq!(running(&home, "one"), first, "it is the same container");
    assert_echoes(&client, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    ask(&home, "stop", json!({ "name": "one" }));
    assert_no_holder_left(&home);
    drop(client);
    engine.finish(home);
}

/// The holder is killed while there is no daemon. The container has exited by then, or has not
/// noticed yet.
#[test]
fn podman_container_without_stream_holder_is_restarted() {
    for has_noticed in [true, false] {
        let (engine, home) = (Engine::podman(), home());
        engine.mcp_server(&home, "one", &[], "stop { grace \"1s\"; }\n");
        let daemon = home.daemon();
        let first = running(&home, "one");
        let client = client(&home);
        assert_echoes(&client, "one");
        drop(client);
        let container = engine.container(&home);
        if !has_noticed {
            signal(*container_processes(first).last().unwrap(), Signal::STOP);
        }
        daemon.kill9();
        signal(only_holder(&home), Signal::KILL);
        if has_noticed {
            home.wait_until("it has ended", || engine.containers(&home)[0]["State"] == "exited");
        }
        home.daemon();
        home.wait_until("there is another", || {
            let now = status(&home, "one");
            now["state"] == "running" && now["container"]["id"] != container.as_str()
        });
        let client = self::client(&home);
        assert_echoes(&client, "one");
        assert_eq!(status(&home, "one")["restarts_total"], 0, "that is not counted");
        assert_eq!(engine.containers(&home).len(), 1);
        only_holder(&home);
        drop(client);
        engine.finish(home);
    }
}

fn stream_holder_ends_when_container_is_removed_without_daemon(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    only_holder(&home);
    daemon.kill9();
    engine.must("DELETE", &format!("/containers/{}?force=1", engine.container(&home)));
    assert_no_holder_left(&home);
    home.daemon();
    running(&home, "one");
    assert_eq!(status(&home, "one")["restarts_total"], 0);
    only_holder(&home);
    engine.finish(home);
}

/// Podman cuts its containers off when it ends, and they exit cleanly.
#[test]
fn podman_restart_without_daemon_restarts_containers() {
    let (engine, own) = Engine::of_its_own("podman");
    let home = home();
    engine.mcp_server(&home, "one", &[], "restart { policy \"on-failure\"; }\n");
    let daemon = home.daemon();
    running(&home, "one");
    let container = engine.container(&home);
    daemon.kill9();
    own.end("podman", true);
    home.wait_until("nobody holds a stream", || stream_holders(&home).is_empty());
    own.up("podman");
    home.wait_until("it has ended", || engine.containers(&home)[0]["State"] == "exited");
    home.daemon();
    running(&home, "one");
    assert_ne!(engine.container(&home), container);
    assert_eq!(status(&home, "one")["restarts_total"], 0, "that is not counted");
    only_holder(&home);
    engine.finish(home);
}

/// The daemon was killed before it could record the container.
#[test]
fn podman_stream_holder_of_unknown_container_is_ended() {
    let (engine, home) = (Engine::podman(), home());
    engine.mcp_server(&home, "one", &[], "");
    let daemon = home.daemon();
    running(&home, "one");
    let (holder, container) = (only_holder(&home), engine.container(&home));
    daemon.kill9();
    fs::remove_file(home.root().join("state/xy/containers/one.json")).unwrap();
    home.daemon();
    running(&home, "one");
    home.wait_until("there is another, and that alone", || {
        let all = engine.containers(&home);
        all.len() == 1 && all[0]["Id"] != container.as_str()
    });
    assert_ne!(only_holder(&home), holder);
    engine.finish(home);
}

/// The output is not read, so the engine waits and cannot even tell how the container exited.
#[test]
fn podman_kills_container_with_full_stream_and_leaves_nothing() {
    let (engine, home) = (Engine::podman(), home());
    let rules = "health { probe \"off\"; }\nrestart { policy \"never\"; }\n";
    let folder = home.root().join("harness/input-log");
    fs::create_dir_all(&folder).unwrap();
    let volume = format!("network \"none\"; volumes \"{}:/input-log\"", folder.display());
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--input-log", "/input-log/lines"], &volume);
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
    // The engine reports a failure, but the kill has worked.
    let _ = engine.ask("POST", &format!("/containers/{container}/kill"), None);
    home.daemon();
    home.wait_for_state("one", "failed");
    assert!(engine.containers(&home).is_empty());
    assert_no_holder_left(&home);
    engine.finish(home);
}
