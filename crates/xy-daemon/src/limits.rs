//! The limits that can be enforced on this machine, for checking the configuration.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::sleep;
use xy_config::{Enforcement, LimitSupport};
use xy_shim::cgroup;

/// How often the end of stale processes is checked. Killed processes end within a moment, unless
/// they hang in the kernel.
const MAX_POLLS: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the limits that a daemon started in this environment can enforce.
pub(crate) fn supported() -> LimitSupport {
    let found = cgroup::limit_support();
    let as_config = |kept| match kept {
        cgroup::Enforcement::ByCgroup => Enforcement::ByCgroup,
        cgroup::Enforcement::PerProcess => Enforcement::PerProcess,
        cgroup::Enforcement::Unavailable { why } => Enforcement::Unavailable { why },
    };
    LimitSupport {
        max_open_files: getrlimit(Resource::Nofile).maximum,
        memory: as_config(found.memory),
        pids: as_config(found.pids),
    }
}

/// Prepares cgroups before the first server starts: enables limits, and kills processes of shims
/// that were killed together with their daemon.
pub(crate) async fn prepare() {
    cgroup::enable_controllers();
    for _ in 0..MAX_POLLS {
        if !cgroup::kill_stale() {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
    tracing::warn!("a process that a dead shim left behind survives SIGKILL");
}
