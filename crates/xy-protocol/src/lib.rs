//! The words on xy's control socket: what front ends ask and what the daemon answers.
//!
//! Types for the wire, and the rule for what must not be on it ([`mask`]). Nothing here does I/O, reads a clock or knows how a
//! server is run; the rest of xy converts to these types at its edge.

pub mod control;
pub mod door;
pub mod error;
pub mod jsonrpc;
pub mod mask;
pub mod server;
pub mod size;
pub mod text;
pub mod time;

/// The revision of this protocol; it grows when an answer changes its meaning.
pub const PROTOCOL_VERSION: u32 = 1;
