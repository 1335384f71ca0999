//! The gateway as clients and servers meet it: the real daemon, real servers, real clients,
//! and whatever any of them does wrong.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "gateway/asking.rs"]
mod asking;
#[path = "gateway/attribution.rs"]
mod attribution;
#[path = "gateway/bad_clients.rs"]
mod bad_clients;
#[path = "gateway/bad_servers.rs"]
mod bad_servers;
#[path = "gateway/both_eras.rs"]
mod both_eras;
#[path = "gateway/bounds.rs"]
mod bounds;
#[path = "gateway/bridge.rs"]
mod bridge;
#[path = "rounds/chance.rs"]
mod chance;
#[path = "gateway/chatter.rs"]
mod chatter;
#[path = "gateway/deaths.rs"]
mod deaths;
#[path = "gateway/debug_log.rs"]
mod debug_log;
#[path = "gateway/door.rs"]
mod door;
#[path = "gateway/eras.rs"]
mod eras;
#[path = "gateway/errands.rs"]
mod errands;
#[path = "gateway/fidelity.rs"]
mod fidelity;
#[path = "gateway/isolated.rs"]
mod isolated;
#[path = "gateway/lists.rs"]
mod lists;
#[path = "gateway/matrix.rs"]
mod matrix;
#[path = "gateway/mortal_servers.rs"]
mod mortal_servers;
#[path = "gateway/older.rs"]
mod older;
#[path = "gateway/owners.rs"]
mod owners;
#[path = "gateway/park.rs"]
mod park;
#[path = "gateway/park_bounds.rs"]
mod park_bounds;
#[path = "gateway/remote.rs"]
mod remote;
#[path = "gateway/resume.rs"]
mod resume;
#[path = "gateway/scopes.rs"]
mod scopes;
#[path = "gateway/sessions.rs"]
mod sessions;
#[path = "gateway/stage.rs"]
mod stage;
mod support;
#[path = "gateway/tasks.rs"]
mod tasks;
#[path = "gateway/torn.rs"]
mod torn;
#[path = "gateway/transparent.rs"]
mod transparent;
#[path = "gateway/verbatim.rs"]
mod verbatim;
#[path = "gateway/watching.rs"]
mod watching;

/// Tells a figure; it is shown with `--no-capture`, or when the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a failed run are for a person")]
fn tell(figure: &str) {
    eprintln!("{figure}");
}
