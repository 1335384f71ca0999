//! Misbehaving servers, and xy's reaction. `docs/design/faults.md` has the list.
//!
//! The tests find leftover processes by a mark in environments and arguments, never by xy's own
//! records. They look at the moment at which xy reports that a server is gone.
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

/// Restarts happen on request only, so that the test can look for leftover processes.
const NO_RESTART_SOON: &str = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";

/// Returns a server file for the tree that `args` describe. Its processes carry the home's mark in
/// an argument too.
fn tree(home: &Home, args: &[&str], more: &str) -> String {
    let args = [args, &["--tag", home.mark()]].concat();
    format!("{}{more}", home.kdl_command("xy-test-tree", &args))
}

/// Waits until the server has been ready this many times, and returns its current leader.
#[track_caller]
fn ready(home: &Home, name: &str, times: usize) -> u32 {
    let log = home.log_file(name);
    home.wait_until(&format!("`{name}` is ready for the {times}. time"), || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.ends_with("ready")).count() == times
    });
    running(home, name) // The log may be ahead of the daemon.
}

/// Returns all descendants of the leader.
fn descendants(home: &Home, leader: u32) -> Vec<Proc> {
    marked_processes(&format!("{}-{leader}", home.mark()))
}

/// Checks that only the processes in `expected` run in `home`.
#[track_caller]
fn assert_only(home: &Home, expected: &[u32], when: &str) {
    /// Number of scans. A process that forks during one scan is seen in another.
    const SCANS: usize = 5;
    for _ in 0..SCANS {
        let mut left = marked_processes(home.mark());
        left.retain(|process| !expected.contains(&process.pid));
        assert!(left.is_empty(), "{when}: {left:#?}");
    }
}
