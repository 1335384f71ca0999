//! `xy connect` as an MCP client meets it: the real program, between a client and a daemon
//! that say what the test wants, and in front of a real daemon.

#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

mod carries;
mod direct;
mod ends;
mod modern;
mod real;
mod records;
mod refused;
mod stage;
mod survives;
