//! Safe access to the files that xy owns.

pub mod atomic;
pub(crate) mod open;
