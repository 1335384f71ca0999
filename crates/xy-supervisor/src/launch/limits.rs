//! Conversion of resource limits to and from the wire types of the shim.

use xy_config::settings::Limits;
use xy_shim::cgroup::{self, Enforcement};
use xy_shim::wire::{self, EnforcedBy, LimitsOrder, MemoryLimit};

use crate::lifecycle::Oom;

/// Returns how memory limits are enforced on this machine.
pub(super) fn memory_enforced_by() -> EnforcedBy {
    match cgroup::limit_support().memory {
        Enforcement::ByCgroup => EnforcedBy::Cgroup,
        // Where memory cannot be limited at all, settings with such a limit were rejected.
        Enforcement::PerProcess | Enforcement::Unavailable { .. } => EnforcedBy::Rlimit,
    }
}

/// Returns the limits for a start order.
pub(super) fn order(limits: Limits, memory_enforced_by: EnforcedBy) -> LimitsOrder {
    let memory = limits.memory.map(|bytes| MemoryLimit { bytes, kept_by: memory_enforced_by });
    LimitsOrder { nofile: limits.nofile, memory, pids: limits.pids }
}

/// Converts an out-of-memory kill reported by the shim.
pub(super) fn oom(seen: Option<wire::Oom>, limits: Limits) -> Option<Oom> {
    Some(match (seen?, limits.memory) {
        (wire::Oom::Limit, Some(bytes)) => Oom::Limit { bytes },
        (wire::Oom::Limit, None) | (wire::Oom::Machine, _) => Oom::Machine,
    })
}
