//! Tools that block the server, with `--dull`: it reads no message while one of them runs.
//!
//! - `spin` keeps a core busy, `stall` waits, `mutter` waits and writes to stderr
//! - `deadlock` answers, and then two threads wait for each other: the server reads nothing more
//!   and ignores SIGTERM
//!
//! This module also answers health checks over HTTP: with `--well-after N`, the first `N` GETs
//! get 503 and all later ones 200.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::standin::{self, Output};

use crate::request::Call;
use crate::server::Server;

const TOOLS: [&str; 4] = ["spin", "stall", "mutter", "deadlock"];

/// The locks of `deadlock`: each of two threads holds one. An orderly exit needs both.
static LOCKS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

/// The interval at which `mutter` writes.
const MUTTER_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the definitions of the tools, if `--dull` is given.
pub(crate) fn tools(server: &Server) -> Vec<Value> {
    let tool = |name: &str| {
        let schema = json!({ "type": "object", "properties": { "ms": { "type": "number" } } });
        let description = "Hears nothing meanwhile";
        let annotations = json!({ "readOnlyHint": name == "stall" });
        json!({ "name": name, "description": description, "inputSchema": schema,
            "annotations": annotations })
    };
    if server.options.has("--dull") { TOOLS.map(tool).to_vec() } else { Vec::new() }
}

/// Executes a call of one of these tools. Returns false if the tool is another.
pub(crate) fn call(server: &Server, call: &Call) -> bool {
    if !server.options.has("--dull") || !TOOLS.contains(&call.tool.as_str()) {
        return false;
    }
    let time = Duration::from_millis(call.number("ms", 1000));
    Output::Stderr.say(&format!("begins to {}", call.tool));
    match call.tool.as_str() {
        "spin" => standin::keep_busy(time),
        "stall" => standin::linger(time),
        "deadlock" => {
            call.text("done");
            deadlock();
        }
        _ => {
            for _ in 0..time.as_millis() / MUTTER_INTERVAL.as_millis() {
                standin::linger(MUTTER_INTERVAL);
                Output::Stderr.say("mutters");
            }
        }
    }
    call.text("done");
    true
}

/// Waits for both locks, as an orderly exit does; never returns once deadlocked.
pub(crate) fn take_locks() {
    drop(LOCKS.each_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner)));
}

/// Takes the two locks in two threads in opposite orders. Never returns.
fn deadlock() {
    let [one, two] = &LOCKS;
    let both_have_one = Arc::new(Barrier::new(2));
    let takes = |first: &'static Mutex<()>, second: &'static Mutex<()>| {
        let both_have_one = Arc::clone(&both_have_one);
        move || {
            let _first = first.lock();
            both_have_one.wait();
            let _second = second.lock();
        }
    };
    let other = thread::spawn(takes(two, one));
    takes(one, two)();
    let _ = other.join(); // Never reached.
}

/// Returns the status of the answer to a GET, and counts it.
pub(crate) fn status(server: &Server) -> &'static str {
    static CHECKS: AtomicU64 = AtomicU64::new(0);
    let is_well = CHECKS.fetch_add(1, Ordering::Relaxed) >= server.options.well_after;
    if is_well { "200 OK" } else { "503 Service Unavailable" }
}
