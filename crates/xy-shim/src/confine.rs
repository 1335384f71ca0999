//! The words for what a server may use, and for what holds it together.

use serde::{Deserialize, Serialize};

/// What a server may use; nothing is said of what is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitsOrder {
    /// Open files, in each of its processes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nofile: Option<u64>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryLimit>,
    /// Processes and threads, all together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pids: Option<u32>,
}

/// A limit of memory. It is kept as said, or the server does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// How much.
    pub bytes: u64,
    /// Of what.
    pub kept_by: KeptBy,
}

/// How a limit is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// By a control group, for all processes together.
    Cgroup,
    /// By a resource limit, for each process alone.
    Rlimit,
}

/// How a server is held together and limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Confined {
    /// What finds all its processes.
    #[serde(default)]
    pub containment: Containment,
    /// What it may use.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limits: Vec<Limit>,
}

/// What finds all processes of a server, from the strongest to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A control group that it cannot leave by forking, and the subreaper.
    Cgroup,
    /// Whatever loses its parent becomes a child of the shim.
    Subreaper,
    /// The group of processes that its leader leads, which each may leave.
    #[default]
    Group,
}

/// A limit that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Of what.
    pub name: LimitName,
    /// How much: a number, or bytes.
    pub value: u64,
    /// How.
    pub kept_by: KeptBy,
}

/// What can be limited.
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

/// Why the kernel killed for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oom {
    /// The server used more than its limit.
    Limit,
    /// The machine, or a group above the server's, had no more.
    Machine,
}

impl LimitsOrder {
    /// The limits, once they are kept.
    pub fn kept(&self) -> Vec<Limit> {
        let nofile = self.nofile.map(|value| (LimitName::Nofile, value, KeptBy::Rlimit));
        let memory = self.memory.map(|it| (LimitName::Memory, it.bytes, it.kept_by));
        let pids = self.pids.map(|it| (LimitName::Pids, u64::from(it), KeptBy::Cgroup));
        let all = [nofile, memory, pids].into_iter().flatten();
        all.map(|(name, value, kept_by)| Limit { name, value, kept_by }).collect()
    }
}
