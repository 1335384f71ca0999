//! The gateway with a real daemon, real servers and real clients, including faults of all of them.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "everything here is a test")]

#[path = "gateway/attribution.rs"]
mod attribution;
#[path = "gateway/bad_clients.rs"]
mod bad_clients;
#[path = "gateway/bad_servers.rs"]
mod bad_servers;
#[path = "gateway/both_eras.rs"]
mod both_eras;
#[path = "gateway/broken_servers.rs"]
mod broken_servers;
#[path = "gateway/chatter.rs"]
mod chatter;
#[path = "gateway/crashes.rs"]
mod crashes;
#[path = "gateway/debug_log.rs"]
mod debug_log;
#[path = "gateway/elicitation_owners.rs"]
mod elicitation_owners;
#[path = "gateway/eras.rs"]
mod eras;
#[path = "gateway/fidelity.rs"]
mod fidelity;
#[path = "gateway/fixtures.rs"]
mod fixtures;
#[path = "gateway/http_service.rs"]
mod http_service;
#[path = "gateway/input_rounds.rs"]
mod input_rounds;
#[path = "gateway/isolated.rs"]
mod isolated;
#[path = "gateway/legacy_sse.rs"]
mod legacy_sse;
#[path = "gateway/limits.rs"]
mod limits;
#[path = "gateway/lists.rs"]
mod lists;
#[path = "gateway/matrix.rs"]
mod matrix;
#[path = "gateway/modern_tasks.rs"]
mod modern_tasks;
#[path = "gateway/queue.rs"]
mod queue;
#[path = "gateway/queue_limits.rs"]
mod queue_limits;
#[path = "gateway/remote.rs"]
mod remote;
#[path = "gateway/restarts.rs"]
mod restarts;
#[path = "gateway/resume.rs"]
mod resume;
#[path = "rounds/rng.rs"]
mod rng;
#[path = "gateway/scopes.rs"]
mod scopes;
#[path = "gateway/server_requests.rs"]
mod server_requests;
#[path = "gateway/sessions.rs"]
mod sessions;
#[path = "gateway/subscriptions.rs"]
mod subscriptions;
mod support;
#[path = "gateway/tasks.rs"]
mod tasks;
#[path = "gateway/transparent.rs"]
mod transparent;
#[path = "gateway/verbatim.rs"]
mod verbatim;

/// Prints a figure. It is shown with `--no-capture`, or if the test fails.
#[expect(clippy::print_stderr, reason = "the figures of a failed run are for a person")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}
