//! Servers that are containers of real engines, Docker and Podman.
//!
//! The engines are brought by `real/engines`, and `XY_ENGINES` is the folder they are in.
//! Without it these tests fail, and no other run of tests has them: they are never green
//! without having been run. `./test engines` runs them. Where one of the two engines cannot be
//! had, its tests say so and are counted by whoever started them.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

mod adopted_logs;
mod adoption;
mod between;
mod cli;
mod cuts;
mod faults;
mod fields;
mod found;
mod grips;
mod health;
mod http;
mod life;
mod mends;
mod park;
mod pull;
mod shown;
mod stage;
mod storm;
#[path = "../support/mod.rs"]
mod support;

/// Each test, with each engine.
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
