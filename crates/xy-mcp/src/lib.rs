//! MCP on the wire: the outside of a message, and where in its text the few things stand
//! that a proxy has to read or replace.
//!
//! Nothing here does I/O. The inside of a message is never taken apart and put together
//! again: it stays the text it was, so that numbers keep their spelling and keys their order.

pub mod batch;
pub mod edit;
pub mod envelope;
pub mod handshake;
pub mod head;
pub mod members;
pub mod sse;
