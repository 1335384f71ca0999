//! What a server may use, in the words of its shim.

use xy_config::settings::Limits;
use xy_shim::cgroup::{self, Kept};
use xy_shim::wire::{self, KeptBy, LimitsOrder, MemoryLimit};

use crate::lifecycle::Oom;

/// How memory is limited where this daemon is.
pub(super) fn memory_kept_by() -> KeptBy {
    match cgroup::kept().memory {
        Kept::ByCgroup => KeptBy::Cgroup,
        // Where it cannot be limited at all, no file with such a limit was accepted.
        Kept::PerProcess | Kept::NotAtAll { .. } => KeptBy::Rlimit,
    }
}

/// What to tell the shim.
pub(super) fn order(limits: Limits, memory_kept_by: KeptBy) -> LimitsOrder {
    let memory = limits.memory.map(|bytes| MemoryLimit { bytes, kept_by: memory_kept_by });
    LimitsOrder { nofile: limits.nofile, memory, pids: limits.pids }
}

/// What the shim means by a kill for want of memory.
pub(super) fn oom(seen: Option<wire::Oom>, limits: Limits) -> Option<Oom> {
    Some(match (seen?, limits.memory) {
        (wire::Oom::Limit, Some(bytes)) => Oom::Limit { bytes },
        (wire::Oom::Limit, None) | (wire::Oom::Machine, _) => Oom::Machine,
    })
}
