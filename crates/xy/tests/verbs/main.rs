//! The verbs as a person meets them: the real program, against a scripted daemon and a real one.

#![expect(clippy::unwrap_used, reason = "a test has nobody to hand an error to")]

mod asking;
mod following;
mod real;
mod stage;
mod usage;
