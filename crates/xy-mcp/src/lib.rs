//! MCP on the wire: the envelope of a message, its parameters, and the rules of each protocol revision.
//!
//! Nothing here does I/O. The content of a message is never parsed and serialised again: it keeps
//! its original text, so that numbers keep their spelling and keys their order.

pub mod batch;
pub mod capabilities;
pub mod edit;
pub mod envelope;
pub mod era;
pub mod handshake;
pub mod head;
pub mod kind;
pub mod level;
pub mod members;
pub mod modern;
pub mod param_headers;
pub mod params;
pub mod repeat;
pub mod reply;
pub mod revision;
pub mod sse;
pub mod tasks;
pub mod via;
