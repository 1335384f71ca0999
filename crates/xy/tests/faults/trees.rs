//! Whatever a server has started, and however: nothing of it outlives its life.
//!
//! Every test here goes through all kinds of descendants, one server after the other.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Daemon, Home};

use super::support::{self, ask, signal, status};
use super::{NO_RESTART_SOON, assert_only, below, parent_of, ready, tree};

/// Kinds of children, and how many processes each is; the number of a hopper changes.
const KINDS: [(&str, Option<usize>); 6] = [
    ("same-group", Some(1)),
    ("session", Some(1)),
    ("daemon", Some(1)),
    ("hopper", None),
    ("storm", Some(64)),
    ("holds-output", Some(1)),
];

/// What they do when they are asked to end, and what can be known of them.
const MANNERS: [(&str, &[&str]); 3] =
    [("obeys", &[]), ("deaf", &["--deaf"]), ("nameless", &["--deaf", "--without-environment"])];

/// Short: whoever is deaf makes every test wait for it.
const GRACE: &str = "stop { grace \"150ms\" }\n";

/// One kind of descendant, under a daemon.
struct Case<'a> {
    home: &'a Home,
    daemon: Daemon,
    name: String,
    count: Option<usize>,
}

/// Starts a tree of every kind with `args` and lets `end` end it.
fn each(args: &[&str], end: impl Fn(&Case<'_>)) {
    let home = support::home();
    let mut daemon = home.daemon();
    for (kind, count) in KINDS {
        for (manner, more) in MANNERS {
            if !daemon.is_running() {
                daemon = home.daemon();
            }
            let name = format!("{kind}-{manner}");
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
    /// Waits until the whole tree is there for the first time, and answers its leader.
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
            Some(count) => assert_eq!(below(self.home, leader).len(), count, "{name}"),
            None => self.home.wait_until("it hops", || !below(self.home, leader).is_empty()),
        }
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_only(self.home, &[self.daemon.pid], &self.name);
    }

    /// One tree is there, complete, and nothing else: neither of `before` nor of a third.
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
            // A hopper's generations come and go while we look: some show nothing.
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
fn after_a_stop_nothing_is_left() {
    each(&[], |case| {
        case.leader();
        case.ask("stop");
        case.assert_nothing_left();
    });
}

#[test]
fn after_a_restart_only_the_successor_is_there() {
    each(&[], |case| {
        let before = case.leader();
        case.ask("restart");
        assert_eq!(below(case.home, before), [], "{}", case.name);
        case.assert_one_successor(before);
    });
}

#[test]
fn after_a_removal_nothing_is_left() {
    each(&[], |case| {
        case.leader();
        case.home.remove_server(&case.name);
        ask(case.home, "reload", Value::Null);
        case.assert_nothing_left();
    });
}

#[test]
fn after_the_end_of_the_daemon_nothing_is_left() {
    each(&[], |case| {
        case.leader();
        assert!(case.daemon.terminate().success(), "{}", case.name);
        assert_only(case.home, &[], &case.name);
    });
}

#[test]
fn after_an_exit_nobody_asked_for_nothing_is_left() {
    each(&["--then", "exit", "3"], |case| {
        let seen = case.home.wait_for_state(&case.name, "restarting");
        case.assert_nothing_left();
        assert_eq!(seen["last_exit"]["code"], 3, "{}", case.name);
    });
}

#[test]
fn after_the_death_of_the_leader_nothing_is_left_and_one_successor_comes() {
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
fn after_the_death_of_the_shim_nothing_is_left_and_one_successor_comes() {
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
