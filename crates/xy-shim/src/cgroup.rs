//! Control groups: they contain a server's processes and limit them.
//!
//! ```text
//! the group of the daemon and its shims ─┬─ xy-<shim>   one per life, in each hierarchy
//!                                        └─ xy-<shim>   that is needed
//! ```
//!
//! The kernel's files are read and written directly. A machine may have one hierarchy (cgroup2),
//! several (one per controller), both, or none. `/proc` lists them, see `hierarchies.rs`. Without
//! any, a server is contained by the subreaper alone, and its limits are those of single processes.
//!
//! A group outlives a shim that is killed. Its name identifies the shim, so that a daemon can clean
//! it up. The groups of living shims are never touched.

mod delegation;
mod group;
mod groups;
mod hierarchies;
mod name;
mod oom_kills;

use std::path::Path;

use rustix::fs::{Access, access};

pub use self::delegation::enable_controllers;
use self::group::Group;
pub(crate) use self::groups::Groups;
use self::hierarchies::{Hierarchies, ParentGroup, Version};
use self::name::GroupName;
pub use self::oom_kills::OomKills;

/// Which limits can be enforced from this process's place in the hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSupport {
    /// Support for memory limits.
    pub memory: Enforcement,
    /// Support for process limits.
    pub pids: Enforcement,
}

/// How a limit can be enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// For all processes of a server together.
    ByCgroup,
    /// For each process of a server alone.
    PerProcess,
    /// Not at all.
    Unavailable {
        /// The reason, as the end of a sentence.
        why: String,
    },
}

/// Determines which limits can be enforced. Changes nothing.
pub fn limit_support() -> LimitSupport {
    let hierarchies = Hierarchies::of_current_process();
    let by_cgroup = |controller| match parent_group(&hierarchies, controller) {
        Ok(_) => Enforcement::ByCgroup,
        Err(why) => Enforcement::Unavailable { why },
    };
    let memory = match by_cgroup(Controller::Memory) {
        Enforcement::Unavailable { .. } if cfg!(target_os = "linux") => Enforcement::PerProcess,
        support => support,
    };
    LimitSupport { memory, pids: by_cgroup(Controller::Pids) }
}

/// Returns the cgroup2 group of another process, if a shim created it.
#[cfg(target_os = "linux")]
pub(crate) fn group_of(pid: u32) -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = hierarchies::find(&mounts, &own).unified?;
    // A server that has just started is still in the group of its shim.
    group.file_name()?.to_str().and_then(GroupName::parse)?;
    Some(group)
}

/// Kills the processes left in the groups of dead shims, and removes those groups. Returns true if
/// any group is left: a process that is just dying is gone at the next call.
pub fn kill_stale() -> bool {
    let mut is_left = false;
    for group in stale_groups() {
        group.kill();
        is_left |= group.remove().is_err();
    }
    is_left
}

/// Removes the empty groups of dead shims.
pub fn remove_stale() {
    for group in stale_groups() {
        let _ = group.remove(); // A group in use stays.
    }
}

/// Returns the groups of dead shims, beside those of this process's own shims.
fn stale_groups() -> Vec<Group> {
    let parents = Hierarchies::of_current_process().all();
    let entries =
        parents.iter().filter_map(|parent| std::fs::read_dir(parent).ok()).flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name().to_str().and_then(GroupName::parse);
            name.is_some_and(GroupName::is_stale)
        })
        .map(|entry| Group::at(entry.path()))
        .collect()
}

/// A controller of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// Returns the group in which groups with this limit can be created, or why there is none.
fn parent_group(hierarchies: &Hierarchies, controller: Controller) -> Result<ParentGroup, String> {
    if cfg!(target_os = "macos") {
        return Err("macOS has no such limit".to_owned());
    }
    let name = controller.name();
    let Some(place) = hierarchies.of(controller) else {
        return Err(format!("there is no cgroup with the `{name}` controller"));
    };
    let folder = &place.folder;
    if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let shown = folder.display();
        return Err(format!("this user cannot create groups in the cgroup `{shown}`"));
    }
    if place.version == Version::Two {
        check_unified(folder, name)?;
    }
    Ok(place)
}

/// Returns an error if a cgroup2 group cannot limit the groups below it.
///
/// It must enable the controller for them, which it can do only if it has no processes of its own,
/// or is the root.
fn check_unified(folder: &Path, controller: &str) -> Result<(), String> {
    let group = Group::at(folder.to_owned());
    let shown = folder.display();
    if !group.contains_word("cgroup.controllers", controller) {
        return Err(format!("the cgroup `{shown}` has no `{controller}` controller"));
    }
    if group.contains_word("cgroup.subtree_control", controller) {
        return Ok(());
    }
    if access(folder.join("cgroup.subtree_control"), Access::WRITE_OK).is_err() {
        return Err(format!("this user cannot change the cgroup `{shown}`"));
    }
    if group.is_root() || group.is_empty() {
        return Ok(());
    }
    Err("the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`".into())
}

#[cfg(test)]
mod tests;
