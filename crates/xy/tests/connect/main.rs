//! `xy connect` as MCP clients use it: the real program between a scripted client and a scripted or
//! real daemon.

#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

mod direct;
mod fixtures;
mod forwarding;
mod modern;
mod real_daemon;
mod reconnect;
mod recording;
mod refused;
mod shutdown;
