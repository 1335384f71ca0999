//! Servers that misbehave, and what xy makes of it. `docs/design/faults.md` has the list.
//!
//! What is left of a server is found by a mark in environments and arguments, never by
//! xy's own records, and it is looked for in the instant in which xy says that it is gone.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

mod support;

#[path = "faults/leaders.rs"]
mod leaders;
#[path = "faults/page.rs"]
mod page;
#[path = "faults/shims.rs"]
mod shims;
#[path = "faults/starts.rs"]
mod starts;
#[path = "faults/trees.rs"]
mod trees;

use support::{parent_of, running};
use xy_testkit::{Home, Proc, marked_processes};

/// Restarts come only when somebody asks: until then one can look at what is left.
const NO_RESTART_SOON: &str = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";

/// A server file for the tree that `args` describe. Everything below it carries the
/// home's mark in an argument, too.
fn tree(home: &Home, args: &[&str], more: &str) -> String {
    let args = [args, &["--tag", home.mark()]].concat();
    format!("{}{more}", home.kdl_command("xy-test-tree", &args))
}

/// Waits until the server has been ready so often, and answers the leader it has now.
#[track_caller]
fn ready(home: &Home, name: &str, times: usize) -> u32 {
    let log = home.log_file(name);
    home.wait_until(&format!("`{name}` is ready for the {times}. time"), || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.ends_with("ready")).count() == times
    });
    running(home, name) // The log may be ahead of the daemon.
}

/// Everything that the leader started, however far down.
fn below(home: &Home, leader: u32) -> Vec<Proc> {
    marked_processes(&format!("{}-{leader}", home.mark()))
}

/// Makes sure that of all that runs in `home`, only `expected` do.
#[track_caller]
fn assert_only(home: &Home, expected: &[u32], when: &str) {
    /// One that is between two processes at the moment of a look is seen by another.
    const LOOKS: usize = 5;
    for _ in 0..LOOKS {
        let mut left = marked_processes(home.mark());
        left.retain(|process| !expected.contains(&process.pid));
        assert!(left.is_empty(), "{when}: {left:#?}");
    }
}
