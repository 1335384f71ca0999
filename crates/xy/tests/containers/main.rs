//! Servers that are containers of real engines, Docker and Podman.
//!
//! `real/engines` provides the engines, and `XY_ENGINES` is their folder. Without it these tests
//! fail, so they cannot pass without having run; no other test run includes them. `./test engines`
//! runs them. If one of the two engines is not available, its tests report that and `./test` counts
//! them.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

mod adopted_logs;
mod adoption;
mod cli;
mod disconnects;
mod engine_proxy;
mod engine_selection;
mod faults;
mod fields;
mod front_ends;
mod health;
mod http;
mod life;
mod park;
mod pull;
mod rare_cases;
mod stage;
mod storm;
mod stream_holders;
#[path = "../support/mod.rs"]
mod support;

/// Runs each test with each engine.
#[macro_export]
macro_rules! with_each_engine {
    ($($name:ident),* $(,)?) => {
        mod docker {
            $(#[test] fn $name() { super::$name(&$crate::stage::Engine::docker()); })*
        }
        mod podman {
            $(#[test] fn $name() { super::$name(&$crate::stage::Engine::podman()); })*
        }
    };
}
