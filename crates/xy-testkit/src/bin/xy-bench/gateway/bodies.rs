//! Measures whether clients that send large bodies keep others waiting: a local client makes
//! small calls, alone and then while two clients send bodies with many keys, one after another.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::ways::{Way, Work};
use super::{at_most, home};
use crate::{millis, row};

/// As large as a message may be, but for what is around it.
const BODY: usize = 30 << 20;

const SENDERS: usize = 2;

/// Ten seconds of calls.
const CALLS: u32 = 2_000;
const EVERY: Duration = Duration::from_millis(5);

pub(crate) fn measure(xy: &Path) {
    let home = home(xy, Work::ZERO);
    // A server that parses them too would need all cores, and that would be measured.
    home.mcp_server("heavy", &["--skim"]);
    home.call("reload", serde_json::json!({})).expect("the new server is read");
    home.wait_for_state("heavy", "running");
    let mut way = Way::connect(&home, "xy: connect -> stdio");
    way.driver.paced(CALLS / 10, EVERY); // Only warms up.
    let alone = way.driver.paced(CALLS, EVERY);
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
            way.driver.paced(1, EVERY);
        }
        let beside = way.driver.paced(CALLS, EVERY);
        stop.store(true, Ordering::Relaxed);
        beside
    });
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    row("local calls alone, p99", &millis(alone), None, "");
    let what = format!("the same beside {SENDERS} clients with 30 MB bodies");
    row(&what, &millis(beside), Some(ratio), &at_most(ratio, 10.0, "alone"));
    let sent = sent.load(Ordering::Relaxed);
    row("bodies that were answered meanwhile", &sent.to_string(), None, "");
    drop(way);
    home.finish();
}

/// A call whose arguments have very many keys.
fn call() -> String {
    let mut call = String::with_capacity(BODY + 64);
    call.push_str(
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"message":"m""#,
    );
    for number in 0_usize.. {
        if call.len() >= BODY {
            break;
        }
        let _ = write!(call, ",\"k{number}\":{number}"); // A `String` takes whatever it is given.
    }
    call.push_str("}}}");
    call
}
