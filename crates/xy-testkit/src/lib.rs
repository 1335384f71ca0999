//! Test harness: runs a real daemon in a temporary home, with servers to supervise.
//!
//! The harness drives xy from outside, like a user and a client. It shares no code with xy, not
//! even the protocol types, so that its results are independent. All waits have a time limit. When
//! a [`Home`] is dropped, the test fails if it has left anything behind.
//!
//! ```ignore
//! #[test]
//! fn server_starts_with_the_daemon() {
//!     let home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy")));
//!     home.server("one", &home.kdl_command("xy-test-sleep-server", &[]));
//!     home.daemon();
//!     home.wait_for_state("one", "running");
//!     home.finish();
//! }
//! ```
//!
//! Functions panic with a clear message instead of returning errors that every test must handle.

mod clock;
mod compatibility;
mod daemon;
mod home;
pub mod json;
mod kdl;
mod leaks;
mod logs;
mod mcp;
mod process;
mod recording;
pub mod remote;
mod run;
pub mod standin;
#[cfg(target_os = "linux")]
pub mod standstill;
pub mod text;
mod wait;
mod wire;

pub use compatibility::write_compatibility;
pub use daemon::Daemon;
pub use home::Home;
pub use logs::read_log_lines;
pub use mcp::{Exchange, HttpAnswer, McpClient, McpHttp, McpModern, McpOlder, McpSocket, McpStdio};
pub use process::{Proc, group_and_session, is_alive, marked_processes};
pub use recording::{Recorded, Recording};
pub use run::Ran;
pub use wait::Sign;
pub use wire::{Wire, WireEvent};

/// Returns a port that was free a moment ago, for programs that cannot report the port they use.
///
/// # Panics
///
/// Panics if no port is free.
#[track_caller]
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it listens").port()
}
