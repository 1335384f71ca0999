//! Real MCP clients and real MCP servers, with one daemon between them.
//!
//! Nothing here is ours but the daemon and the few lines that drive each client
//! (`real/clients`). What they are is installed by `real/install`, and `XY_REAL` says where.
//! Without it these tests fail, and no other run of tests has them: they are never green
//! without having been run. `./test real` runs them.

#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

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
