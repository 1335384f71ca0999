//! The life of servers; knows nothing of MCP.
//!
//! [`lifecycle`] decides, `task` acts, [`fleet`] holds all of them, [`launch`] is
//! the seam behind which a process, and later a container, is started and ended.

mod added;
#[cfg(test)]
mod fake;
pub mod fleet;
pub mod health;
pub mod instance;
pub mod journal;
pub mod launch;
pub mod lifecycle;
pub mod locks;
pub mod logs;
mod plain_file;
mod probe;
pub mod reload;
pub mod speak;
mod task;
mod vigil;
mod wait;
pub mod whole_file;
pub mod wishes;

pub use added::AddedServers;
pub use probe::Unready;
