//! The daemon: builds everything in order, serves, takes it down in reverse.
//!
//! The only crate that knows all the others. A handler finds, asks, waits and
//! translates; what decides something is in a pure module elsewhere.

pub mod check;
mod confine;
mod daemon;
pub mod direct;
mod files;
mod gateway;
mod handlers;
mod limits;
mod logging;
mod run;
mod server_file;
mod signs;
mod takeover;
mod view;

pub use logging::LogTo;
pub use run::{Options, run};
