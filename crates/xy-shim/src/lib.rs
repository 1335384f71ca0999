//! The shim: a small process of its own between the daemon and one server.
//!
//! It is entered from the same binary before any runtime starts, has one thread,
//! and does not know tokio: this crate must never depend on it. The daemon's side
//! of the conversation is in `xy-supervisor`; the words of it are in [`wire`].
//!
//! ```text
//! run ── waits for Start ── exec ──► life ─┬─ control   frames to and from the daemon
//!                                          ├─ company   who is there; door, for whoever comes
//!                                          ├─ log       lines, disk_log, log_file
//!                                          ├─ stop      decides: state × event → state × effect
//!                                          ├─ leader    signals and reaps the server
//!                                          └─ cgroup    holds it together and limits it
//! ```
//!
//! [`grip`] is another process, smaller still: it keeps the stream of a container open.

pub mod cgroup;
mod clock;
mod company;
mod confine;
mod control;
pub mod cpu;
pub mod direct;
pub mod disk_log;
pub mod door;
mod exec;
pub mod grip;
pub mod held;
mod heritage;
pub mod identity;
mod leader;
mod life;
pub mod lines;
mod log;
pub mod log_file;
pub mod marked;
pub mod memory;
mod pace;
mod proc_stat;
mod program;
mod run;
pub mod sequence;
mod signals;
mod stop;
mod sys;
mod tree;
pub mod wire;
pub mod wires;

pub use run::run;
