//! The shim: a small process of its own between the daemon and one server.
//!
//! It is entered from the same binary before any runtime starts, has one thread,
//! and does not know tokio: this crate must never depend on it. The daemon's side
//! of the conversation is in `xy-supervisor`; the words of it are in [`wire`].

pub mod wire;
