//! A server that does one thing at a time, with `--dull`: while it does, it hears nothing.
//!
//! - `spin` keeps a core busy, `stall` waits, `mutter` waits and writes to its stderr
//! - `deadlock` answers, and then two threads wait for each other: nothing is read any more, and
//!   not even TERM ends it
//!
//! And what it says to those who want to know how it is: `--ignore-ping`, and over HTTP
//! `--well-after N`, the number of GETs that are answered with 503 before the first with 200.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::standin::{self, Output};

use crate::answer::Call;
use crate::server::Server;

const TOOLS: [&str; 4] = ["spin", "stall", "mutter", "deadlock"];

/// Both are needed for anything; who is deadlocked has one of them in each of two threads.
static LOCKS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

/// How often it mutters.
const MUTTERS: Duration = Duration::from_millis(20);

/// The tools as clients are told of them.
pub(crate) fn tools(server: &Server) -> Vec<Value> {
    let tool = |name: &str| {
        let schema = json!({ "type": "object", "properties": { "ms": { "type": "number" } } });
        let description = "Hears nothing meanwhile";
        let annotations = json!({ "readOnlyHint": name == "stall" });
        json!({ "name": name, "description": description, "inputSchema": schema,
            "annotations": annotations })
    };
    if server.plan.has("--dull") { TOOLS.map(tool).to_vec() } else { Vec::new() }
}

/// Does what a call asks for, if it is one of these; whether it is.
pub(crate) fn call(server: &Server, call: &Call) -> bool {
    if !server.plan.has("--dull") || !TOOLS.contains(&call.tool.as_str()) {
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
            for _ in 0..time.as_millis() / MUTTERS.as_millis() {
                standin::linger(MUTTERS);
                Output::Stderr.say("mutters");
            }
        }
    }
    call.text("done");
    true
}

/// Whoever would end this process orderly needs all of it.
pub(crate) fn wait_for_locks() {
    drop(LOCKS.each_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner)));
}

/// Two threads take two locks, each in another order. Never returns.
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
    let _ = other.join(); // It comes to this as little as we do.
}

/// The status of the answer to a GET.
pub(crate) fn status(server: &Server) -> &'static str {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let is_well = ASKED.fetch_add(1, Ordering::Relaxed) >= server.plan.well_after;
    if is_well { "200 OK" } else { "503 Service Unavailable" }
}
