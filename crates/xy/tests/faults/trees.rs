//! No process of a server outlives the server, however it was started.
//!
//! Each test covers all kinds of descendants, one server after the other.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use super::support::{self, ask, signal, status};
use super::{NO_RESTART_SOON, assert_only, descendants, parent_of, ready, tree};

/// Kinds of children, with the number of processes of each; the number of a hopper varies.
const KINDS: [(&str, Option<usize>); 6] = [
    ("same-group", Some(1)),
    ("session", Some(1)),
    ("daemon", Some(1)),
    ("hopper", None),
    ("storm", Some(64)),
    ("holds-output", Some(1)),
];

/// Their reactions to SIGTERM, and the marks that identify them.
const VARIANTS: [(&str, &[&str]); 3] =
    [("obeys", &[]), ("deaf", &["--deaf"]), ("nameless", &["--deaf", "--without-environment"])];

/// A short grace: processes that ignore SIGTERM make every test wait for its end.
const GRACE: &str = "stop { grace \"150ms\" }\n";

/// One kind of descendant, under a daemon.
struct Case<'a> {
    home: &'a Home,
    daemon: Daemon,
    name: String,
    count: Option<usize>,
}

/// Starts a tree of every kind with `args`, and ends it with `end`.
fn each(args: &[&str], end: impl Fn(&Case<'_>)) {
    let home = support::home();
    let mut daemon = home.daemon();
    for (kind, count) in KINDS {
        for (variant, more) in VARIANTS {
            if !daemon.is_running() {
                daemon = home.daemon();
            }
            let name = format!("{kind}-{variant}");
            let args = [&["--child", kind], more, args].concat();
            home.server(&name, &tree(&home, &args, &format!("{GRACE}{NO_RESTART_SOON}")));
            ask(&home, "reload", Value::Null);
            let case = Case { home: &home, daemon: daemon.clone(), name, count };
            end(&case);
            case.clear_away();
        }
    }
    home.finish();
}

impl Case<'_> {
    /// Waits until the whole tree exists for the first time, and returns its leader.
    #[track_caller]
    fn leader(&self) -> u32 {
        let leader = ready(self.home, &self.name, 1);
        self.assert_whole(leader);
        leader
    }

    #[track_caller]
    fn assert_whole(&self, leader: u32) {
        let name = &self.name;
        match self.count {
            Some(count) => assert_eq!(descendants(self.home, leader).len(), count, "{name}"),
            None => self.home.wait_until("it hops", || !descendants(self.home, leader).is_empty()),
        }
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_only(self.home, &[self.daemon.pid], &self.name);
    }

    /// Checks that one complete tree exists, and no process of `before` or of a third tree.
    #[track_caller]
    fn assert_one_successor(&self, before: u32) {
        let (home, name) = (self.home, &self.name);
        let leader = ready(home, name, 2);
        assert_ne!(leader, before, "{name}");
        self.assert_whole(leader);
        let own = format!("{}-{leader}", home.mark());
        let others: Vec<_> = xy_testkit::marked_processes(home.mark())
            .into_iter()
            .filter(|it| ![self.daemon.pid, leader, parent_of(leader)].contains(&it.pid))
            // A hopper's generations are short: some have no command line yet.
            .filter(|it| it.cmdline.contains(home.mark()) || it.cmdline.contains(name))
            .filter(|it| !it.cmdline.ends_with(&own))
            .collect();
        assert!(others.is_empty(), "{name}: {others:#?}");
    }

    fn ask(&self, method: &str) {
        ask(self.home, method, json!({ "name": self.name }));
    }

    fn clear_away(&self) {
        let file = self.home.root().join(format!("config/xy/servers/{}.kdl", self.name));
        if file.exists() {
            self.home.remove_server(&self.name);
        }
        if self.daemon.is_running() {
            ask(self.home, "reload", Value::Null);
        }
    }
}

#[test]
fn stop_leaves_no_process() {
    each(&[], |case| {
        case.leader();
        case.ask("stop");
        case.assert_nothing_left();
    });
}

#[test]
fn restart_leaves_only_the_successor() {
    each(&[], |case| {
        let before = case.leader();
        case.ask("restart");
        assert_eq!(descendants(case.home, before), [], "{}", case.name);
        case.assert_one_successor(before);
    });
}

#[test]
fn removal_leaves_no_process() {
    each(&[], |case| {
        case.leader();
        case.home.remove_server(&case.name);
        ask(case.home, "reload", Value::Null);
        case.assert_nothing_left();
    });
}

#[test]
fn daemon_end_leaves_no_process() {
    each(&[], |case| {
        case.leader();
        assert!(case.daemon.terminate().success(), "{}", case.name);
        assert_only(case.home, &[], &case.name);
    });
}

#[test]
fn unexpected_exit_leaves_no_process() {
    each(&["--then", "exit", "3"], |case| {
        let seen = case.home.wait_for_state(&case.name, "restarting");
        case.assert_nothing_left();
        assert_eq!(seen["last_exit"]["code"], 3, "{}", case.name);
    });
}

#[test]
fn killed_leader_leaves_one_successor() {
    each(&[], |case| {
        let before = case.leader();
        signal(before, Signal::KILL);
        let seen = case.home.wait_for_state(&case.name, "restarting");
        case.assert_nothing_left();
        assert_eq!(seen["last_exit"]["signal"], 9, "{}", case.name);
        case.ask("start");
        case.assert_one_successor(before);
    });
}

#[test]
fn killed_shim_leaves_one_successor() {
    each(&[], |case| {
        let before = case.leader();
        signal(parent_of(before), Signal::KILL);
        case.home.wait_for_state(&case.name, "restarting");
        case.assert_nothing_left();
        case.ask("start");
        case.assert_one_successor(before);
        assert_eq!(status(case.home, &case.name)["state"], "running");
    });
}
