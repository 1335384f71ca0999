//! The door: every server's tools, prompts and resources, to every client.
//!
//! One thread with a runtime of its own holds all of it. A message goes from a client's
//! socket into a server's pipe, and back, without a lock, a channel or another task in
//! between, and its inside stays the text it was.

mod bridge;
mod capabilities;
mod catalog;
mod census;
mod chunks;
mod client;
pub mod control;
mod crowd;
mod desk;
pub mod era;
mod error_log;
#[cfg(test)]
mod fake;
mod fit;
pub mod front;
mod gateway;
mod generation;
mod held;
pub mod http;
mod hub;
mod idle;
mod instructions;
mod large;
mod level;
mod life;
mod limit_hits;
#[cfg(test)]
mod limits_table;
mod local;
mod manifest;
mod message_text;
pub mod metrics;
mod mirror;
mod modern;
mod names;
mod owners;
mod params;
mod piece;
#[cfg(test)]
mod play;
mod say;
mod scope;
mod server;
mod share;
mod subscriptions;
mod tasks;
mod tools;
mod turns;
mod upstream;
mod via;

pub use desk::{Tool, Users};
pub use gateway::{Desk, End, Gateway, HttpParts, Lines, Parts, RawRequest, Speaker, speaker};
pub use generation::Generation;
pub use large::LargeMessage;
pub use limit_hits::LimitHit;
pub use server::instance_failed;
pub use upstream::RoundTrip;
