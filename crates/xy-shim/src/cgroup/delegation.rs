//! Moves the daemon so that its cgroup2 group can limit the groups below it.
//!
//! In cgroup2, a group with processes of its own cannot enable controllers for the groups below it.
//! A daemon that is alone in its group, as in a systemd service, can move to a subgroup:
//!
//! ```text
//! before   x.service ── the daemon
//! after    x.service ─┬─ xy-daemon   the daemon and its shims
//!                     └─ xy-<shim>   one per life, limited
//! ```

use std::fs;
use std::io;

use super::group::Group;
use super::hierarchies::{DAEMON_GROUP, Hierarchies};
use super::{Controller, Version};

/// Enables limits, if this process is alone in a group that it may change.
///
/// For a daemon, before it starts any process. Where it is not possible, nothing changes.
pub fn enable_controllers() {
    let hierarchies = Hierarchies::of_current_process();
    let Some(parent) = &hierarchies.unified else { return };
    let in_unified =
        |it: &Controller| hierarchies.of(*it).is_some_and(|it| it.version == Version::Two);
    let both = [Controller::Memory, Controller::Pids];
    let wanted: Vec<&str> = both.iter().filter(|it| in_unified(it)).map(|it| it.name()).collect();
    move_to_subgroup(&Group::at(parent.clone()), std::process::id(), &wanted);
}

/// Moves `pid` from `parent` to a group below it, so that `parent` can enable the `wanted`
/// controllers.
fn move_to_subgroup(parent: &Group, pid: u32, wanted: &[&str]) {
    let wanted: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|it| parent.contains_word("cgroup.controllers", it))
        .filter(|it| !parent.contains_word("cgroup.subtree_control", it))
        .collect();
    if wanted.is_empty() || parent.is_root() || !parent.has_only(pid) {
        return;
    }
    let subgroup = Group::at(parent.folder.join(DAEMON_GROUP));
    let created = match fs::create_dir(&subgroup.folder) {
        // An earlier daemon created it.
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    if created.is_err() || subgroup.write("cgroup.procs", &pid.to_string()).is_err() {
        let _ = subgroup.remove();
        return;
    }
    let enable = |it: &&str| parent.write("cgroup.subtree_control", &format!("+{it}")).is_ok();
    if wanted.iter().filter(|it| enable(it)).count() == 0 {
        // No controller could be enabled: undo the move.
        let _ = parent.write("cgroup.procs", &pid.to_string());
        let _ = subgroup.remove();
    }
}
