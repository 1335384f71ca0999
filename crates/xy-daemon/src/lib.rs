//! The daemon: builds every part in order, serves requests, and shuts the parts down in reverse
//! order.
//!
//! This is the only crate that depends on all the others. It connects the supervisor, the gateway
//! and the control socket. A handler finds a server, sends requests, waits, and translates the
//! result. Decisions are made by pure modules elsewhere.

mod audit;
mod bad_files;
pub mod check;
mod containment;
mod daemon;
mod daemon_info;
pub mod diagnostics;
pub mod direct;
mod files;
mod gateway;
mod handlers;
mod hold_error;
mod last_good;
mod limits;
mod logging;
mod machine;
pub mod on_disk;
mod run;
mod self_test;
mod server_file;
mod server_status;
mod single_flight;
mod socket_links;
mod sockets;
mod start_error;
mod takeover;
mod temporary_instance;
mod tokens;
mod transition_history;

pub use bad_files::Strictness;
pub use logging::LogTo;
pub use run::{Options, run};
