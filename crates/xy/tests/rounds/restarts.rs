//! Ten thousand restarts of a server that exits immediately: the daemon's memory does not grow.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::processes::list_by_name;
use crate::support::{ask, home};
use crate::{is_full, pause, print_figure, rounds};

const SERVERS: u64 = 40;

/// Maximum growth from the first tenth of the restarts to the end. The data per server is bounded
/// (its last changes of state and its exits within a minute), and is nearly full after the first
/// tenth. The rest is the allocator's. A leak of one kilobyte per restart would be 9 MB.
const MAX_GROWTH_KB: u64 = 4_000;

#[test]
fn thousands_of_restarts_leak_nothing() {
    let home = home();
    let exits = home.kdl_command("xy-test-exit", &[]);
    let restart = "restart { policy \"always\"; backoff-initial \"0s\"; backoff-max \"0s\"; \
                   jitter #false; max-retries-per-minute 0; max-attempts 0 }\n";
    for number in 0..SERVERS {
        home.server(&format!("exits-{number:02}"), &format!("{exits}{restart}"));
    }
    let daemon = home.daemon();
    let total = rounds(10_000, 600);
    wait_for_restarts(&home, total / 10);
    ask(&home, "stop", json!({ "all": true }));
    let before = (resident_kb(daemon.pid), descriptors(&home, daemon.pid));
    ask(&home, "start", json!({ "all": true, "wait": false }));
    let reached = wait_for_restarts(&home, total);
    ask(&home, "stop", json!({ "all": true }));
    let after = (resident_kb(daemon.pid), descriptors(&home, daemon.pid));
    print_figure(&format!(
        "{reached} restarts: {} kB before, {} kB after; {} descriptors before and after",
        before.0, after.0, after.1
    ));
    assert_eq!(before.1, after.1, "descriptors");
    let growth = after.0.saturating_sub(before.0);
    assert!(growth <= MAX_GROWTH_KB, "{growth} kB more: {before:?}, then {after:?}");
    assert!(daemon.terminate().success());
    home.finish();
}

/// Waits for this many restarts of all servers together, as long as the number increases.
fn wait_for_restarts(home: &Home, wanted: u64) -> u64 {
    let count = || -> u64 {
        list_by_name(home).values().map(|entry| entry["restarts_total"].as_u64().unwrap()).sum()
    };
    let mut reached = count();
    while reached < wanted {
        // Each wait has its own timeout: the number must keep increasing.
        reached = home.wait_until("there are more restarts", || {
            pause(Duration::from_millis(if is_full() { 200 } else { 20 }));
            Some(count()).filter(|&now| now > reached)
        });
    }
    let entries = list_by_name(home);
    let given_up: Vec<&Value> = entries.values().filter(|it| it["state"] == "failed").collect();
    assert!(given_up.is_empty(), "{given_up:#?}");
    reached
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the number of open descriptors once the daemon has closed this test's connections.
fn descriptors(home: &Home, pid: u32) -> usize {
    let count = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut last = count();
    home.wait_until("the number of descriptors is steady", || {
        pause(Duration::from_millis(100));
        std::mem::replace(&mut last, count()) == last
    });
    count()
}
