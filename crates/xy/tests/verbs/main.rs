//! The verbs as a user sees them: the real program with a scripted daemon and a real one.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod asking;
mod following;
mod real;
mod stage;
mod usage;
