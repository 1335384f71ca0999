//! Control groups: what holds a server together, and what limits it.
//!
//! ```text
//! the group of the daemon and its shims ─┬─ xy-<shim>   one per life, in each hierarchy
//!                                        └─ xy-<shim>   that is needed
//! ```
//!
//! The files of the kernel are read and written as they are. A machine may have one
//! hierarchy (cgroup2), several (one per controller), both, or none; which are there
//! and where is read from `/proc`, see `places.rs`. Without any, a server is held
//! together by the subreaper alone, and its limits are those of single processes.
//!
//! A group outlives a shim that is killed. Its name says whose it was, so that a daemon
//! can end and remove it; the groups of living shims are never touched.

mod group;
mod kills;
mod life;
mod name;
mod places;
mod room;

use std::path::Path;

use rustix::fs::{Access, access};

use self::group::Group;
pub use self::kills::OomKills;
pub(crate) use self::life::Groups;
use self::name::Name;
use self::places::{Place, Places, Version};
pub use self::room::make_room;

/// Which limits can be kept by a daemon that is where this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLimits {
    /// How memory is limited.
    pub memory: Kept,
    /// How processes are limited.
    pub pids: Kept,
}

/// How a limit is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// For all processes of a server together.
    ByCgroup,
    /// For each process of a server alone.
    PerProcess,
    /// Not at all.
    NotAtAll {
        /// The reason, as the end of a sentence.
        why: String,
    },
}

/// Finds out which limits can be kept; changes nothing.
pub fn kept() -> KeptLimits {
    let places = Places::here();
    let by_cgroup = |controller| match keeper(&places, controller) {
        Ok(_) => Kept::ByCgroup,
        Err(why) => Kept::NotAtAll { why },
    };
    let memory = match by_cgroup(Controller::Memory) {
        Kept::NotAtAll { .. } if cfg!(target_os = "linux") => Kept::PerProcess,
        kept => kept,
    };
    KeptLimits { memory, pids: by_cgroup(Controller::Pids) }
}

/// The group of another process, in cgroup2.
#[cfg(target_os = "linux")]
pub(crate) fn group_of(pid: u32) -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = places::find(&mounts, &own).unified?;
    // One that has just been started is where its shim is, with who knows whom.
    group.file_name()?.to_str().and_then(Name::parse)?;
    Some(group)
}

/// Kills whatever is left in the groups of shims that are dead, and removes those groups;
/// answers whether any is still there. What is just dying is gone at the next look.
pub fn end_stale() -> bool {
    let mut is_any_left = false;
    for group in stale() {
        group.kill();
        is_any_left |= group.remove().is_err();
    }
    is_any_left
}

/// Removes the groups of shims that are dead, if nothing is left in them.
pub fn remove_stale() {
    for group in stale() {
        let _ = group.remove(); // One that is in use stays.
    }
}

/// The groups, beside those of our own shims, whose shim is dead.
fn stale() -> Vec<Group> {
    let bases = Places::here().all();
    let entries = bases.iter().filter_map(|base| std::fs::read_dir(base).ok()).flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name().to_str().and_then(Name::parse);
            name.is_some_and(Name::is_stale)
        })
        .map(|entry| Group::at(entry.path()))
        .collect()
}

/// What a hierarchy can limit.
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

/// Where groups that limit this can be made, or why nowhere.
fn keeper(places: &Places, controller: Controller) -> Result<Place, String> {
    if cfg!(target_os = "macos") {
        return Err("macOS has no such limit".to_owned());
    }
    let name = controller.name();
    let Some(place) = places.of(controller) else {
        return Err(format!("there is no cgroup with the `{name}` controller"));
    };
    let folder = &place.folder;
    if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let shown = folder.display();
        return Err(format!("no groups can be made in the cgroup `{shown}` by this user"));
    }
    if place.version == Version::Two {
        check_unified(folder, name)?;
    }
    Ok(place)
}

/// Groups below a cgroup2 group can be limited only if it hands the controller down, and
/// that it does only if it has no processes of its own, or is the root.
fn check_unified(folder: &Path, controller: &str) -> Result<(), String> {
    let group = Group::at(folder.to_owned());
    let shown = folder.display();
    if !group.lists("cgroup.controllers", controller) {
        return Err(format!("the cgroup `{shown}` has no `{controller}` controller"));
    }
    if group.lists("cgroup.subtree_control", controller) {
        return Ok(());
    }
    if access(folder.join("cgroup.subtree_control"), Access::WRITE_OK).is_err() {
        return Err(format!("the cgroup `{shown}` cannot be changed by this user"));
    }
    if group.is_root() || group.is_vacant() {
        return Ok(());
    }
    Err("the daemon needs a cgroup of its own, as from `systemd-run --user -p Delegate=yes`".into())
}

#[cfg(test)]
mod tests;
