//! Runs a real shim with real servers; the test plays the daemon.

#![expect(clippy::unwrap_used, reason = "everything here is a test")]

mod adoption;
mod cgroups;
mod daemon;
mod output;
mod start;
mod stop;
