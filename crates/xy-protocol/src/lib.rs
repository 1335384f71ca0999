//! Messages of xy's control socket: requests of front ends and answers of the daemon.
//!
//! Contains the wire types, the handshake on the MCP socket, and the rule for what must not be sent
//! ([`mask`]). Nothing here does I/O, reads a clock or knows how a server is run. The other crates
//! convert to these types at their edge.

pub mod control;
pub mod error;
pub mod framing;
pub mod handshake;
pub mod jsonrpc;
pub mod mask;
pub mod problem;
pub mod server;
pub mod size;
pub mod text;
pub mod time;

/// The version of this protocol. It is raised when an answer changes its meaning.
pub const PROTOCOL_VERSION: u32 = 1;
