//! Which limits can be kept here, for whoever judges the files.

use rustix::process::{Resource, getrlimit};
use xy_config::{Kept, KeptLimits};

/// What a daemon that is started here and now can keep.
pub(crate) fn kept() -> KeptLimits {
    let not_yet = Kept::NotAtAll { why: "this version of xy cannot".to_owned() };
    let most_files = getrlimit(Resource::Nofile).maximum;
    KeptLimits { most_files, memory: not_yet.clone(), pids: not_yet }
}
