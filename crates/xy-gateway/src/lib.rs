//! The gateway: serves the tools, prompts and resources of all servers to all clients.
//!
//! It runs on one thread with a runtime of its own. A message passes from a client's socket to a
//! server's pipe, and back, without locks, channels or another task. Its content is passed on as
//! text.

mod admin;
mod backend;
mod bridge;
mod call;
mod client;
mod client_limits;
pub mod control;
mod exclusive;
mod gateway;
mod gateway_status;
#[cfg(test)]
mod harness;
mod idle;
mod limit_hits;
#[cfg(test)]
mod limits_table;
mod local;
mod manifest;
mod ownership;
mod router;
mod subscriptions;
mod tools;
mod upstream;
mod upstream_session;
mod visibility;

pub use admin::{RawRequest, Tool, Users};
pub use gateway::{Admin, Connections, Gateway, GatewayDriver, HttpParts, Parts, Shutdown, driver};
pub use limit_hits::LimitHit;
