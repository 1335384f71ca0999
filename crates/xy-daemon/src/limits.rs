//! Which limits can be kept here, for whoever judges the files.

use rustix::process::{Resource, getrlimit};
use xy_config::{Kept, KeptLimits};
use xy_shim::cgroup;

/// What a daemon that is started here and now can keep.
pub(crate) fn kept() -> KeptLimits {
    let found = cgroup::kept();
    let as_config = |kept| match kept {
        cgroup::Kept::ByCgroup => Kept::ByCgroup,
        cgroup::Kept::PerProcess => Kept::PerProcess,
        cgroup::Kept::NotAtAll { why } => Kept::NotAtAll { why },
    };
    KeptLimits {
        most_files: getrlimit(Resource::Nofile).maximum,
        memory: as_config(found.memory),
        pids: as_config(found.pids),
    }
}

/// Before the first server starts: makes room for limits, and ends what shims have left
/// behind that were killed together with their daemon.
pub(crate) fn prepare() {
    cgroup::make_room();
    cgroup::end_stale();
}
