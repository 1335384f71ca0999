//! The door: every server's tools, prompts and resources, to every client.
//!
//! One thread with a runtime of its own holds all of it. A message goes from a client's
//! socket into a server's pipe, and back, without a lock, a channel or another task in
//! between, and its inside stays the text it was.

mod admin;
mod backend;
mod body;
mod bridge;
mod capabilities;
mod catalog;
mod chunks;
mod client;
mod client_limits;
pub mod control;
pub mod era;
mod error_log;
mod exclusive;
#[cfg(test)]
mod fake;
pub mod frontend;
mod gateway;
mod generation;
#[cfg(test)]
mod harness;
mod held;
pub mod http;
mod idle;
mod instructions;
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
mod param_headers;
mod params;
mod reply;
mod retained;
mod router;
mod sanitize;
mod scope;
mod share;
mod subscriptions;
mod tasks;
mod tools;
mod upstream;
mod upstream_session;
mod via;

pub use admin::{Tool, Users};
pub use backend::instance_failed;
pub use gateway::{Admin, End, Gateway, HttpParts, Lines, Parts, RawRequest, Speaker, speaker};
pub use generation::Generation;
pub use large::LargeMessage;
pub use limit_hits::LimitHit;
pub use upstream::RoundTrip;
