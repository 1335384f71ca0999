//! Messages about a server's limits and about what contains its processes.

use serde::{Deserialize, Serialize};

/// The limits of a server. An absent limit does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitsOrder {
    /// Maximum number of open files in each process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nofile: Option<u64>,
    /// Memory limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryLimit>,
    /// Maximum number of processes and threads, all together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pids: Option<u32>,
}

/// A memory limit. The server does not start if it cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// Maximum number of bytes.
    pub bytes: u64,
    /// The mechanism that enforces the limit.
    pub kept_by: EnforcedBy,
}

/// The mechanism that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnforcedBy {
    /// A control group, for all processes together.
    Cgroup,
    /// A resource limit, for each process alone.
    Rlimit,
}

/// How a server is contained and limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Confinement {
    /// The mechanism that finds all processes of the server.
    #[serde(default)]
    pub containment: Containment,
    /// The enforced limits.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limits: Vec<Limit>,
}

/// The mechanisms that find all processes of a server, from the strongest to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A control group, which no process leaves by forking, and the subreaper.
    Cgroup,
    /// A process that loses its parent becomes a child of the shim.
    Subreaper,
    /// The leader's process group, which each process may leave.
    #[default]
    Group,
}

/// An enforced limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limited resource.
    pub name: LimitName,
    /// The limit: a number, or bytes.
    pub value: u64,
    /// The mechanism that enforces the limit.
    pub kept_by: EnforcedBy,
}

/// A resource that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// Open files.
    Nofile,
    /// Bytes of memory.
    Memory,
    /// Processes and threads.
    Pids,
}

/// Why the kernel killed a process for lack of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oom {
    /// The server exceeded its limit.
    Limit,
    /// The machine, or a group above the server's, ran out of memory.
    Machine,
}

impl LimitsOrder {
    /// Returns the limits as they are reported once they are enforced.
    pub fn enforced(&self) -> Vec<Limit> {
        let nofile = self.nofile.map(|value| (LimitName::Nofile, value, EnforcedBy::Rlimit));
        let memory = self.memory.map(|it| (LimitName::Memory, it.bytes, it.kept_by));
        let pids = self.pids.map(|it| (LimitName::Pids, u64::from(it), EnforcedBy::Cgroup));
        let all = [nofile, memory, pids].into_iter().flatten();
        all.map(|(name, value, kept_by)| Limit { name, value, kept_by }).collect()
    }
}
