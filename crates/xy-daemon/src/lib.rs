//! The daemon: builds everything in order, serves, takes it down in reverse.
//!
//! The only crate that knows all the others. A handler finds, asks, waits and
//! translates; what decides something is in a pure module elsewhere.

mod askers;
mod bad_files;
pub mod check;
mod confine;
mod daemon;
pub mod diagnostics;
pub mod direct;
mod earlier;
mod files;
mod gateway;
mod handlers;
mod last_good;
mod limits;
mod logging;
mod machine;
pub mod on_disk;
mod own_instance;
mod run;
mod self_test;
mod server_file;
mod signs;
mod sockets;
mod takeover;
mod tokens;
mod view;

pub use bad_files::Strictness;
pub use logging::LogTo;
pub use run::{Options, run};
