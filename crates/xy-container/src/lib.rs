//! The launcher of containers, run by Docker or Podman without a shim.
//!
//! The engine keeps a container running when a daemon is killed, keeps its output, and knows how it
//! exited. The daemon keeps its own knowledge in a state file. Podman closes the stdin of a
//! container with its last stream, so a small process holds the stream of a stdio server
//! (`stream_holder.rs`). No engine ends a container whose daemon never comes back; that is left to
//! the next daemon.
//!
//! ```text
//! start ── engine, image (pull), create, attach, start ─► runner ─┬─ relay          bytes, both ways
//!                                                                 ├─ stream         resumable stream
//!                                                                 ├─ stream_holder  its keeper
//!                                                                 ├─ log            file and ring
//! adopt ── state_file, stream, log_gap, overlap ──────────────────┼─ exit_watch     how it ended
//!                                                                 └─ faults         explanations
//! reconcile ── removes containers with our label and no owner, at all known `engines`
//! ```

mod adopt;
mod cli;
mod create;
mod engine;
mod engines;
mod exit_watch;
mod faults;
mod launcher;
mod log;
mod log_gap;
mod login;
mod oom_watch;
mod overlap;
mod owned_names;
mod pull;
mod reconcile;
mod relay;
mod runner;
mod shared;
mod start;
mod state_file;
mod stream;
mod stream_holder;
#[cfg(test)]
mod tests;

pub use cli::CliLauncher;
pub use launcher::ContainerLauncher;
pub use reconcile::UnownedContainers;
