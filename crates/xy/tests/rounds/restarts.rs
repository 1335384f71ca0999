//! A server that ends at once, ten thousand times: the daemon does not grow.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::census::listed;
use crate::support::{ask, home};
use crate::{is_full, pause, rounds, tell};

const SERVERS: u64 = 40;

/// So much more the daemon may hold at the end than after the first tenth. What a server
/// keeps is bounded (its last changes of state and its exits within a minute), and is full
/// or nearly so after the first tenth of a full run; what is left is the allocator's. A leak
/// of one kilobyte in each restart would be 9 MB.
const MOST_GROWTH_KB: u64 = 4_000;

#[test]
fn thousands_of_restarts_leave_the_daemon_as_it_was() {
    let home = home();
    let exits = home.kdl_command("xy-test-exit", &[]);
    let restart = "restart { policy \"always\"; backoff-initial \"0s\"; backoff-max \"0s\"; \
                   jitter #false; max-retries-per-minute 0; max-attempts 0 }\n";
    for number in 0..SERVERS {
        home.server(&format!("exits-{number:02}"), &format!("{exits}{restart}"));
    }
    let daemon = home.daemon();
    let total = rounds(10_000, 600);
    restarts_reach(&home, total / 10);
    ask(&home, "stop", json!({ "all": true }));
    let before = (resident_kb(daemon.pid), descriptors(&home, daemon.pid));
    ask(&home, "start", json!({ "all": true, "wait": false }));
    let reached = restarts_reach(&home, total);
    ask(&home, "stop", json!({ "all": true }));
    let after = (resident_kb(daemon.pid), descriptors(&home, daemon.pid));
    tell(&format!(
        "{reached} restarts: {} kB before, {} kB after; {} descriptors before and after",
        before.0, after.0, after.1
    ));
    assert_eq!(before.1, after.1, "descriptors");
    let growth = after.0.saturating_sub(before.0);
    assert!(growth <= MOST_GROWTH_KB, "{growth} kB more: {before:?}, then {after:?}");
    assert!(daemon.terminate().success());
    home.finish();
}

/// Waits for so many restarts of all servers together, as long as there are any.
fn restarts_reach(home: &Home, wanted: u64) -> u64 {
    let count = || -> u64 {
        listed(home).values().map(|entry| entry["restarts_total"].as_u64().unwrap()).sum()
    };
    let mut reached = count();
    while reached < wanted {
        // Each wait has its limit: there must always be more.
        reached = home.wait_until("there are more restarts", || {
            pause(Duration::from_millis(if is_full() { 200 } else { 20 }));
            Some(count()).filter(|&now| now > reached)
        });
    }
    let entries = listed(home);
    let given_up: Vec<&Value> = entries.values().filter(|it| it["state"] == "failed").collect();
    assert!(given_up.is_empty(), "{given_up:#?}");
    reached
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// How many descriptors are open once our own connections have been seen off.
fn descriptors(home: &Home, pid: u32) -> usize {
    let count = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut last = count();
    home.wait_until("the number of descriptors is steady", || {
        pause(Duration::from_millis(100));
        std::mem::replace(&mut last, count()) == last
    });
    count()
}
