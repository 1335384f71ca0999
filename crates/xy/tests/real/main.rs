//! Real MCP clients and real MCP servers, with one daemon between them.
//!
//! Only the daemon and the scripts that drive the clients (`real/clients`) are part of this
//! project. `real/install` installs the rest, and `XY_REAL` names its folder. The tests fail
//! without it, and only `./test real` runs them, so they never pass without having run.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod both_eras;
mod conformance;
mod deaths;
mod differential;
mod eras;
mod finding;
mod first_day;
mod inspector;
mod lab;
mod peer;
mod runners;
mod same;
mod sdk;
mod slow;
mod stage;
mod tour;
