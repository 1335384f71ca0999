//! Shims that hang or die, and whom their end must not touch.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, is_alive};

use super::support::{ask, home, running, running_after, signal};
use super::{assert_only, below, parent_of, ready, tree};

const QUICK: &str = "stop { grace \"150ms\" }\nrestart { backoff-initial \"10ms\" }\n";

#[test]
fn a_stop_whose_shim_hangs_is_forced_and_leaves_nothing() {
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
fn shims_that_die_together_leave_nothing_and_others_are_not_touched() {
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
    let spared_below = below(&home, spared);
    let before = names.map(|name| ready(&home, name, 1));

    for shim in before.map(parent_of) {
        signal(shim, Signal::KILL);
    }

    for (name, before) in names.into_iter().zip(before) {
        running_after(&home, name, 1);
        assert_eq!(below(&home, before), [], "{name}");
        assert_eq!(below(&home, ready(&home, name, 2)).len(), 2, "{name}");
    }
    assert_eq!(running(&home, "spared"), spared);
    assert_eq!(below(&home, spared), spared_below);
    home.finish();
}

/// A daemon that has a child already when it begins, and that child one of its own; answers
/// the two, and the daemon.
fn daemon_with_children(home: &Home) -> ([u32; 2], std::process::Child) {
    let xy = home.command(&["daemon"]);
    // The child's own child is left to whoever is a subreaper above it.
    let script = r#"sh -c 'sleep 600 & echo $! >"$1"; read -r line <"$2"' sh "$1" "$2" &
        echo $! >"$3"; exec "$0" daemon"#;
    let [inner, gate, outer] =
        ["inner", "gate", "outer"].map(|name| home.root().join("tmp").join(name));
    let made = Command::new("mkfifo").arg(&gate).status().unwrap();
    assert!(made.success());
    let mut daemon = Command::new("sh");
    daemon.args(["-c", script]).arg(xy.get_program()).args([&inner, &gate, &outer]);
    daemon.env_clear().envs(xy.get_envs().filter_map(|(name, value)| Some((name, value?))));
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = daemon.spawn().unwrap();
    let pids = [inner, outer].map(|file| {
        home.wait_until("its children are there", || {
            std::fs::read_to_string(&file).ok()?.trim().parse().ok()
        })
    });
    (pids, daemon)
}

#[test]
fn what_the_daemon_had_below_it_before_is_not_taken_for_an_orphan() {
    let home = home();
    home.expect_left("tmp/");
    home.server("one", &tree(&home, &["--child", "session", "--without-environment"], QUICK));
    let ([inner, outer], mut daemon) = daemon_with_children(&home);
    home.wait_until("it is served", || home.socket().exists());

    kill_shim(&home, 1);
    assert!(is_alive(inner) && is_alive(outer));

    // Now the daemon has what its child has left, and cannot know it by its number.
    std::fs::write(home.root().join("tmp/gate"), "go\n").unwrap();
    home.wait_until("the child has ended", || !is_alive(outer));
    assert_eq!(parent_of(inner), daemon.id());
    kill_shim(&home, 2);
    assert!(is_alive(inner));

    signal(inner, Signal::KILL);
    signal(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    home.finish();
}

/// Kills the shim of the so-manieth life of `one` and waits for the next life.
fn kill_shim(home: &Home, life: u32) {
    let leader = ready(home, "one", life as usize);
    signal(parent_of(leader), Signal::KILL);
    running_after(home, "one", life);
    assert_eq!(below(home, leader), []);
}
