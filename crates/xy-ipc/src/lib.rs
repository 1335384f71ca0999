//! JSON-RPC over a Unix socket, one message per line: the server, the client and the socket itself.
//!
//! Knows the envelope, not the meaning of requests: a [`server::Service`] answers them. The client
//! is blocking and has no runtime, so that a command starts at once.

pub mod client;
pub mod listen;
pub mod server;
mod socket;

pub use client::{CallFailure, Client, ConnectError, Notification};
pub use listen::{BindError, BoundSocket, SocketFile, bind};
pub use server::{Answer, Feed, Outbox, OutboxClosed, Service, serve};
pub use socket::is_hung_up;
