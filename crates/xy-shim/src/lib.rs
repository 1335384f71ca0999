//! The shim: a small process between the daemon and one server.
//!
//! It is the same binary as the daemon, entered before any runtime starts. It has one thread and
//! does not use Tokio: this crate must never depend on it. The daemon's side of the connection is
//! in `xy-supervisor`. [`wire`] defines the messages.
//!
//! ```text
//! run ── waits for Start ── exec ──► life ─────┬─ control     frames to and from the daemon
//!                                              ├─ controller  attached daemon, or none; listener
//!                                              ├─ handover    what the next daemon receives
//!                                              ├─ log         lines, disk_log, log_file
//!                                              ├─ stop        state × event → state × effect
//!                                              ├─ leader      signals and reaps the server
//!                                              └─ cgroup      contains the server and limits it
//! ```
//!
//! [`stream_holder`] is a separate, smaller process: it keeps the stream of a container open.

pub mod cgroup;
mod child_exit;
mod clock;
mod confine;
mod control;
mod controller;
pub mod cpu;
pub mod direct;
pub mod disk_log;
pub mod end_watch;
pub mod env_mark;
mod exec;
mod handover;
pub mod identity;
mod leader;
mod life;
pub mod lines;
pub mod listener;
mod log;
pub mod log_file;
pub mod memory;
mod pace;
pub mod pidfd;
mod proc_stat;
mod program;
mod run;
mod shim;
mod signals;
pub mod sockets;
mod stop;
pub mod stream_holder;
mod sys;
mod tree;
pub mod wire;

pub use run::run;
