//! Shims that hang or die, and processes that their end must not affect.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, is_alive};

use super::support::{ask, home, running, running_after, signal};
use super::{assert_only, descendants, parent_of, ready, tree};

const QUICK: &str = "stop { grace \"150ms\" }\nrestart { backoff-initial \"10ms\" }\n";

#[test]
fn stop_with_a_hanging_shim_is_forced() {
    let home = home();
    let args = ["--child", "session", "--deaf", "--without-environment"];
    home.server("one", &tree(&home, &args, QUICK));
    let daemon = home.daemon();
    signal(parent_of(ready(&home, "one", 1)), Signal::STOP);

    ask(&home, "stop", json!({ "name": "one" }));

    assert_only(&home, &[daemon.pid], "after the stop");
    home.finish();
}

#[test]
fn shims_killed_together_leave_nothing() {
    let home = home();
    let names = ["one", "two", "three"];
    let args = ["--child", "daemon", "--child", "session", "--deaf"];
    home.server("one", &tree(&home, &args, QUICK));
    let nameless = [&args[..], &["--without-environment"]].concat();
    home.server("two", &tree(&home, &nameless, QUICK));
    home.server("three", &tree(&home, &nameless, QUICK));
    home.server("spared", &tree(&home, &nameless, QUICK));
    home.daemon();
    let spared = ready(&home, "spared", 1);
    let spared_below = descendants(&home, spared);
    let before = names.map(|name| ready(&home, name, 1));

    for shim in before.map(parent_of) {
        signal(shim, Signal::KILL);
    }

    for (name, before) in names.into_iter().zip(before) {
        running_after(&home, name, 1);
        assert_eq!(descendants(&home, before), [], "{name}");
        assert_eq!(descendants(&home, ready(&home, name, 2)).len(), 2, "{name}");
    }
    assert_eq!(running(&home, "spared"), spared);
    assert_eq!(descendants(&home, spared), spared_below);
    home.finish();
}

/// The processes below a process when it became a daemon.
struct Earlier {
    /// A child in a session of its own.
    apart: u32,
    /// A child that ends when the gate opens.
    child: u32,
    /// The child of that child.
    grandchild: u32,
}

/// Starts a daemon that already has children.
fn daemon_with_children(home: &Home) -> (Earlier, std::process::Child) {
    let xy = home.command(&["daemon"]);
    let script = r#"
        setsid sleep 600 & echo $! >"$1/apart"
        sh -c 'sleep 600 & echo $! >"$1/grandchild"; read -r line <"$1/gate"' sh "$1" &
        echo $! >"$1/child"
        exec "$0" daemon"#;
    let folder = home.root().join("tmp");
    assert!(Command::new("mkfifo").arg(folder.join("gate")).status().unwrap().success());
    let mut daemon = Command::new("sh");
    daemon.args(["-c", script]).arg(xy.get_program()).arg(&folder);
    daemon.env_clear().envs(xy.get_envs().filter_map(|(name, value)| Some((name, value?))));
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = daemon.spawn().unwrap();
    let [apart, child, grandchild] = ["apart", "child", "grandchild"].map(|name| {
        home.wait_until(name, || fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok())
    });
    (Earlier { apart, child, grandchild }, daemon)
}

#[test]
fn earlier_child_of_the_daemon_is_not_an_orphan() {
    let home = home();
    home.expect_left("tmp/");
    home.server("one", &tree(&home, &["--child", "session", "--without-environment"], QUICK));
    let (Earlier { apart, child, grandchild }, mut daemon) = daemon_with_children(&home);
    home.wait_until("it is served", || home.socket().exists());

    kill_shim(&home, 1);
    assert!([apart, child, grandchild].into_iter().all(is_alive));

    // The daemon becomes the parent of the grandchild, whose process id it has never seen.
    fs::write(home.root().join("tmp/gate"), "go\n").unwrap();
    home.wait_until("the child has ended", || !is_alive(child));
    assert_eq!(parent_of(grandchild), daemon.id());
    kill_shim(&home, 2);
    assert!([apart, grandchild].into_iter().all(is_alive));

    signal(apart, Signal::KILL);
    signal(grandchild, Signal::KILL);
    signal(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    home.finish();
}

/// Kills the shim of a life of `one`, and waits for the next life.
fn kill_shim(home: &Home, life: u32) {
    let leader = ready(home, "one", life as usize);
    signal(parent_of(leader), Signal::KILL);
    running_after(home, "one", life);
    assert_eq!(descendants(home, leader), []);
}
