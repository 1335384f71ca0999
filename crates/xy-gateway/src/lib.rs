//! The gateway: serves the tools, prompts and resources of all servers to all clients.
//!
//! It runs on one thread with a runtime of its own. A message passes from a client's socket to a
//! server's pipe, and back, without locks, channels or another task. Its content is passed on as
//! text.

mod admin;
mod backend;
mod body;
mod bridge;
mod budget;
mod call;
mod capabilities;
mod catalog;
mod chunks;
mod client;
mod client_limits;
mod connection;
pub mod control;
pub mod era;
mod error_log;
mod exclusive;
#[cfg(test)]
mod fake;
mod fault;
pub mod frontend;
mod gateway;
mod gateway_status;
mod generation;
#[cfg(test)]
mod harness;
pub mod http;
mod idle;
mod instructions;
mod kind;
mod large;
mod level;
mod limit_hits;
#[cfg(test)]
mod limits_table;
mod local;
mod manifest;
mod message_text;
pub mod metrics;
mod modern;
mod names;
mod ownership;
mod pace;
mod param_headers;
mod params;
mod reply;
mod retained;
mod revision;
mod router;
mod sanitize;
mod scope;
mod scratch;
mod share;
mod subscriptions;
mod tasks;
mod tools;
mod upstream;
mod upstream_session;
mod via;

pub use admin::{RawRequest, Tool, Users};
pub use connection::RoundTrip;
pub use fault::{Awaited, Cause, LossReason, RefusalKind, ServerFault, WaitTimeout};
pub use gateway::{Admin, Connections, Gateway, GatewayDriver, HttpParts, Parts, Shutdown, driver};
pub use generation::Generation;
pub use large::LargeMessage;
pub use limit_hits::LimitHit;
