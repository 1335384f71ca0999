//! The supervisor: keeps servers alive, and knows nothing of MCP.
//!
//! - [`lifecycle`] decides what an instance does next; a task per instance carries it out.
//! - [`fleet`] owns all instances.
//! - [`launch`] is the seam behind which processes and containers are started and stopped.
//! - [`protocol`] is the seam to the driver that speaks with servers.

pub mod desired;
#[cfg(test)]
mod fake;
pub mod fleet;
pub mod health;
pub mod instance;
mod instance_key;
pub mod journal;
pub mod launch;
pub mod lifecycle;
pub mod locks;
pub mod logs;
mod monitor;
mod probe;
pub mod protocol;
pub mod reload;
mod runtime_servers;
mod task;
pub mod wait;

pub use probe::NotReady;
pub use runtime_servers::RuntimeServers;
