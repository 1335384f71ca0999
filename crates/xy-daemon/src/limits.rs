//! Which limits can be kept here, for whoever judges the files.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::sleep;
use xy_config::{Kept, KeptLimits};
use xy_shim::cgroup;

/// What is killed is gone within a moment, unless it hangs in the kernel.
const LOOKS: usize = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
pub(crate) async fn prepare() {
    cgroup::make_room();
    for _ in 0..LOOKS {
        if !cgroup::end_stale() {
            return;
        }
        sleep(LOOK_AGAIN).await;
    }
    tracing::warn!("something that a dead shim has left behind does not die");
}
