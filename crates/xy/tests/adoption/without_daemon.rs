//! Servers without a daemon or without a shim: nothing is left of them.

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, is_alive, marked_processes};

use crate::support::{ask, home, running, signal, wait_for_line};
use crate::{parent_of, shell, sleeper, term_ignorer};

/// Returns a server with a child that is double-forked, in its own session, and ignores SIGTERM.
fn escaping_server() -> String {
    let deaf = "trap \"\" TERM HUP; echo out >&2; while :; do sleep 1; done";
    let script = format!("(setsid bash -c '{deaf}' &); while :; do sleep 1; done");
    format!("{}stop {{ grace \"200ms\" }}\n", shell(&script))
}

fn assert_nothing_left(home: &Home) {
    home.wait_until("nothing is left", || marked_processes(home.mark()).is_empty());
}

#[test]
fn servers_end_without_another_daemon() {
    let home = home();
    home.write_config("xy.kdl", "orphan-timeout \"300ms\"");
    home.server("stdio", &sleeper(&home));
    home.server("http", &format!("{}port 8421\n", sleeper(&home)));
    home.server("deaf", &term_ignorer(&home, "300ms"));
    home.server("escapes", &shell("(setsid sleep 300 &); while :; do sleep 1; done"));
    let daemon = home.daemon();
    for name in ["stdio", "http", "deaf", "escapes"] {
        running(&home, name);
    }
    daemon.kill9();
    assert_nothing_left(&home);
    let left: Vec<_> = std::fs::read_dir(home.root().join("state/xy/shims"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    home.daemon();
    running(&home, "stdio");
}

#[test]
fn changed_timeout_applies_to_running_servers() {
    let home = home();
    home.write_config("xy.kdl", "orphan-timeout \"1h\"");
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    running(&home, "one");
    home.write_config("xy.kdl", "orphan-timeout \"100ms\"");
    assert_eq!(ask(&home, "reload", json!({}))["updated"], json!(["one"]));
    daemon.kill9();
    assert_nothing_left(&home);
}

#[test]
fn orphans_of_killed_shims_end_with_next_daemon() {
    let home = home();
    home.server("one", &escaping_server());
    home.server("two", &sleeper(&home));
    let daemon = home.daemon();
    let pids = ["one", "two"].map(|name| running(&home, name));
    wait_for_line(&home, "one", "out");
    let before: Vec<u32> = marked_processes(home.mark()).iter().map(|it| it.pid).collect();
    daemon.kill9();
    for pid in pids {
        signal(parent_of(pid), Signal::KILL);
    }
    home.daemon();
    for name in ["one", "two"] {
        running(&home, name);
    }
    wait_for_line(&home, "one", "out");
    let old: Vec<_> = before.into_iter().filter(|&pid| is_alive(pid)).collect();
    assert!(old.is_empty(), "{old:?} outlived their shims");
}

#[test]
fn adopted_server_is_restarted_after_shim_is_killed() {
    let home = home();
    home.server("one", &format!("{}restart {{ backoff-initial \"10ms\" }}\n", escaping_server()));
    let daemon = home.daemon();
    let leader = running(&home, "one");
    wait_for_line(&home, "one", "out");
    daemon.kill9();
    let before: Vec<u32> = marked_processes(home.mark()).iter().map(|it| it.pid).collect();
    home.daemon();
    assert_eq!(running(&home, "one"), leader);
    signal(parent_of(leader), Signal::KILL);
    crate::support::running_after(&home, "one", 1);
    let old: Vec<_> = before.into_iter().filter(|&pid| is_alive(pid)).collect();
    assert!(old.is_empty(), "{old:?} outlived their shim");
}

#[test]
fn hanging_shim_is_killed_with_its_processes() {
    let home = home();
    home.server("one", &escaping_server());
    let daemon = home.daemon();
    let leader = running(&home, "one");
    wait_for_line(&home, "one", "out");
    let shim = parent_of(leader);
    daemon.kill9();
    let before: Vec<u32> = marked_processes(home.mark()).iter().map(|it| it.pid).collect();
    assert!(before.len() > 2, "shim, leader and one that escaped");
    signal(shim, Signal::STOP);
    home.daemon();
    assert_ne!(running(&home, "one"), leader);
    let old: Vec<_> = before.into_iter().filter(|&pid| is_alive(pid)).collect();
    assert!(old.is_empty(), "{old:?} outlived their shim");
}

#[test]
fn daemon_refuses_to_start_inside_own_server() {
    let home = home();
    let xy = env!("CARGO_BIN_EXE_xy");
    let script = format!(
        "{xy} daemon --replace; {xy} daemon --detach --replace; echo tried >&2; \
         while :; do sleep 1; done"
    );
    home.server("agent", &shell(&script));
    let daemon = home.daemon();
    wait_for_line(&home, "agent", "tried");
    let log = std::fs::read_to_string(home.log_file("agent")).unwrap();
    let told = "it was started inside its own server `agent`, and would end with that server";
    assert_eq!(log.matches(told).count(), 2, "{log}");
    assert!(daemon.is_running());
}

#[test]
fn failed_daemon_start_leaves_servers_running() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    daemon.kill9();
    // First another daemon holds the socket; then the desired state is unreadable.
    std::fs::remove_file(home.socket()).unwrap();
    let in_the_way = std::os::unix::net::UnixListener::bind(home.socket()).unwrap();
    assert!(!home.daemon_fails().status.success());
    drop(in_the_way);
    let wishes = home.root().join("state/xy/wishes.json");
    let _ = std::fs::remove_file(&wishes);
    std::fs::create_dir(&wishes).unwrap();
    assert!(!home.daemon_fails().status.success());
    std::fs::remove_dir(&wishes).unwrap();
    assert!(is_alive(before));
    home.daemon();
    assert_eq!(running(&home, "one"), before);
}
