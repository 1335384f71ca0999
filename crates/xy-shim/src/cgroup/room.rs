//! Room for limits in cgroup2.
//!
//! There, a group that has processes of its own cannot limit the groups below it. A
//! daemon that is alone in its group, as a service of systemd is, can step aside:
//!
//! ```text
//! before   x.service ── the daemon
//! after    x.service ─┬─ xy-daemon   the daemon and its shims
//!                     └─ xy-<shim>   one per life, limited
//! ```

use std::fs;
use std::io;
use std::path::PathBuf;

use super::group::Group;
use super::places::Places;
use super::{Controller, Version};

/// The group that a daemon steps aside into.
const ROOM: &str = "xy-daemon";

/// The group in which groups are made, by a process in this one.
pub(super) fn base_of(own: PathBuf) -> PathBuf {
    match (own.file_name(), own.parent()) {
        (Some(name), Some(parent)) if name == ROOM => parent.to_owned(),
        _ => own,
    }
}

/// Makes room for limits, if this process is alone in a group that it may change.
///
/// For a daemon, before it starts anything. Where it cannot be done, nothing changes.
pub fn make_room() {
    let places = Places::here();
    let Some(base) = &places.unified else { return };
    let in_unified = |it: &Controller| places.of(*it).is_some_and(|it| it.version == Version::Two);
    let both = [Controller::Memory, Controller::Pids];
    let wanted: Vec<&str> = both.iter().filter(|it| in_unified(it)).map(|it| it.name()).collect();
    step_aside(&Group::at(base.clone()), std::process::id(), &wanted);
}

/// Moves `pid` from `base` to a group below it, so that `base` can hand down `wanted`.
fn step_aside(base: &Group, pid: u32, wanted: &[&str]) {
    let wanted: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|it| base.lists("cgroup.controllers", it))
        .filter(|it| !base.lists("cgroup.subtree_control", it))
        .collect();
    if wanted.is_empty() || base.is_root() || !base.has_only(pid) {
        return;
    }
    let room = Group::at(base.folder.join(ROOM));
    let made = match fs::create_dir(&room.folder) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()), // Of an earlier one.
        other => other,
    };
    if made.is_err() || room.set("cgroup.procs", &pid.to_string()).is_err() {
        let _ = room.remove();
        return;
    }
    let hand_down = |it: &&str| base.set("cgroup.subtree_control", &format!("+{it}")).is_ok();
    if wanted.iter().filter(|it| hand_down(it)).count() == 0 {
        let _ = base.set("cgroup.procs", &pid.to_string()); // It was all for nothing.
        let _ = room.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_stepped_aside_makes_groups_beside_itself() {
        let table =
            [("/cg/x.service/xy-daemon", "/cg/x.service"), ("/cg/x.service", "/cg/x.service")];
        for (own, base) in table {
            assert_eq!(base_of(own.into()), PathBuf::from(base));
        }
    }
}
