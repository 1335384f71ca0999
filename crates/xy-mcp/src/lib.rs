//! MCP on the wire: the envelope of a message, and the positions of the few parts that a proxy
//! reads or replaces.
//!
//! Nothing here does I/O. The content of a message is never parsed and serialised again: it keeps
//! its original text, so that numbers keep their spelling and keys their order.

pub mod batch;
pub mod edit;
pub mod envelope;
pub mod handshake;
pub mod head;
pub mod members;
pub mod sse;
