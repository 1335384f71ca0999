//! What servers offer: their lists, the names that clients see, and the part that a profile shows.
//!
//! Pure.

pub mod catalog;
pub mod instructions;
pub mod names;
pub mod sanitize;
pub mod scope;
