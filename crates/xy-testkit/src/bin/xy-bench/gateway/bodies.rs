//! Measures whether clients with large bodies delay other clients.
//!
//! A local client makes small calls: first alone, then while two clients send bodies with many
//! keys, one after another.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::routes::{Route, Work};
use super::{at_most, home};
use crate::{millis, print_row};

/// The size of a body, just below the maximum message size.
const BODY_SIZE: usize = 30 << 20;

const SENDERS: usize = 2;

/// The number of calls, which take ten seconds.
const CALLS: u32 = 2_000;
const INTERVAL: Duration = Duration::from_millis(5);

pub(crate) fn measure(xy: &Path) {
    let home = home(xy, Work::ZERO);
    // A server that parsed the bodies too would need all cores, and distort the figures.
    home.mcp_server("heavy", &["--skim"]);
    home.call("reload", serde_json::json!({})).expect("the new server is loaded");
    home.wait_for_state("heavy", "running");
    let mut route = Route::connect(&home, "xy: connect -> stdio");
    route.driver.paced_p99(CALLS / 10, INTERVAL); // Only warms up.
    let alone = route.driver.paced_p99(CALLS, INTERVAL);
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let call = call();
    let beside = std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                let client = home.mcp_http("/mcp/s/heavy");
                client.initialize();
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.post(&call);
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while sent.load(Ordering::Relaxed) < SENDERS {
            route.driver.paced_p99(1, INTERVAL);
        }
        let beside = route.driver.paced_p99(CALLS, INTERVAL);
        stop.store(true, Ordering::Relaxed);
        beside
    });
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    print_row("local calls alone, p99", &millis(alone), None, "");
    let what = format!("local calls beside {SENDERS} clients with 30 MB bodies, p99");
    print_row(&what, &millis(beside), Some(ratio), &at_most(ratio, 10.0, "alone"));
    let sent = sent.load(Ordering::Relaxed);
    print_row("large bodies answered meanwhile", &sent.to_string(), None, "");
    drop(route);
    home.finish();
}

/// Returns a call whose arguments have very many keys.
fn call() -> String {
    let mut call = String::with_capacity(BODY_SIZE + 64);
    call.push_str(
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"message":"m""#,
    );
    for number in 0_usize.. {
        if call.len() >= BODY_SIZE {
            break;
        }
        let _ = write!(call, ",\"k{number}\":{number}"); // Writing to a `String` never fails.
    }
    call.push_str("}}}");
    call
}
