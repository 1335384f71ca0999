//! Finds this process's groups in the hierarchies of control groups.
//!
//! Two files of the kernel contain everything: `mountinfo` lists the mounted hierarchies, and
//! `cgroup` the group of this process in each of them. [`find`] is pure.

use std::fs;
use std::path::{Path, PathBuf};

use super::Controller;

/// The subgroup that a daemon moves to.
pub(super) const DAEMON_GROUP: &str = "xy-daemon";

/// The two interfaces of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// cgroup v1: a hierarchy for each controller, or for a few of them.
    One,
    /// cgroup2: one hierarchy for all controllers.
    Two,
}

/// A group in which groups can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParentGroup {
    pub(super) version: Version,
    pub(super) folder: PathBuf,
}

/// The groups of this process, in the hierarchies that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// The group in cgroup2.
    pub(super) unified: Option<PathBuf>,
    pub(super) memory: ControllerLocation,
    pub(super) pids: ControllerLocation,
}

/// The hierarchy that has a controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ControllerLocation {
    /// In cgroup2, if anywhere.
    #[default]
    Unified,
    /// In a hierarchy of version 1, in this group.
    Legacy(PathBuf),
    /// In a hierarchy that this process cannot reach.
    Unreachable,
}

impl Hierarchies {
    /// Returns the groups of this process. A path that is not a group is left out.
    pub(super) fn of_current_process() -> Self {
        let read = |path| {
            let bytes = fs::read(path).unwrap_or_default(); // Without the file there are no groups.
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let found = find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let is_group = |folder: &PathBuf| folder.join("cgroup.procs").exists();
        let reachable = |location| match location {
            ControllerLocation::Legacy(folder) if !is_group(&folder) => {
                ControllerLocation::Unreachable
            }
            location => location,
        };
        Self {
            unified: found.unified.filter(is_group).map(parent_of),
            memory: reachable(found.memory),
            pids: reachable(found.pids),
        }
    }

    /// Returns the group in which groups with this controller can be created.
    pub(super) fn of(&self, controller: Controller) -> Option<ParentGroup> {
        let location = match controller {
            Controller::Memory => &self.memory,
            Controller::Pids => &self.pids,
        };
        match location {
            ControllerLocation::Unified => {
                self.unified.clone().map(|folder| ParentGroup { version: Version::Two, folder })
            }
            ControllerLocation::Legacy(folder) => {
                Some(ParentGroup { version: Version::One, folder: folder.clone() })
            }
            ControllerLocation::Unreachable => None,
        }
    }

    /// Returns every group once.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        let legacy = |location: &ControllerLocation| match location {
            ControllerLocation::Legacy(folder) => Some(folder.clone()),
            ControllerLocation::Unified | ControllerLocation::Unreachable => None,
        };
        let mut all: Vec<PathBuf> = self.unified.iter().cloned().collect();
        all.extend([legacy(&self.memory), legacy(&self.pids)].into_iter().flatten());
        all.dedup(); // Two controllers may share a hierarchy.
        all
    }
}

/// Returns the group in which a process of group `own` creates groups.
fn parent_of(own: PathBuf) -> PathBuf {
    match (own.file_name(), own.parent()) {
        (Some(name), Some(parent)) if name == DAEMON_GROUP => parent.to_owned(),
        _ => own,
    }
}

/// Returns the groups, given the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub(super) fn find(mountinfo: &str, cgroup: &str) -> Hierarchies {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
    let mut hierarchies = Hierarchies::default();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            hierarchies.unified = folder_of(&mounts, None, path);
        }
        for controller in controllers.split(',') {
            let location = match controller {
                "memory" => &mut hierarchies.memory,
                "pids" => &mut hierarchies.pids,
                _ => continue,
            };
            let folder = folder_of(&mounts, Some(controller), path);
            *location = folder.map_or(ControllerLocation::Unreachable, ControllerLocation::Legacy);
        }
    }
    hierarchies
}

/// Returns the directory of a group. The latest mount through which it is visible is on top.
fn folder_of(mounts: &[Mount], controller: Option<&str>, path: &str) -> Option<PathBuf> {
    mounts.iter().rev().filter(|mount| mount.has(controller)).find_map(|mount| {
        let below = Path::new(path).strip_prefix(&mount.root).ok()?;
        let is_plain =
            below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        // Built from components, because joining an empty path would append a `/`.
        is_plain.then(|| mount.at.components().chain(below.components()).collect())
    })
}

/// A mounted hierarchy.
#[derive(Debug)]
struct Mount {
    /// The group at the top of this mount.
    root: PathBuf,
    at: PathBuf,
    /// Its controllers; `None` for cgroup2.
    controllers: Option<Vec<String>>,
}

impl Mount {
    /// Parses `id parent device root mount-point options … - type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, at) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
        let controllers = match kind {
            "cgroup2" => None,
            "cgroup" => Some(options.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self { root: unescape(root), at: unescape(at), controllers })
    }

    fn has(&self, controller: Option<&str>) -> bool {
        match (&self.controllers, controller) {
            (None, None) => true,
            (Some(all), Some(one)) => all.iter().any(|it| it == one),
            _ => false,
        }
    }
}

/// Replaces the octal escapes of the kernel, such as `\040` for a space.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
24 21 0:5 / /proc rw,nosuid - proc proc rw
30 21 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn legacy(folder: &str) -> ControllerLocation {
        ControllerLocation::Legacy(folder.into())
    }

    #[test]
    fn cgroup2_has_all_controllers() {
        let group = "0::/user.slice/user-1000.slice/session-3.scope\n";
        let hierarchies = find(UNIFIED, group);
        let folder = PathBuf::from("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope");
        let expected = Hierarchies { unified: Some(folder.clone()), ..Hierarchies::default() };
        assert_eq!(hierarchies, expected);
        for controller in [Controller::Memory, Controller::Pids] {
            let parent = ParentGroup { version: Version::Two, folder: folder.clone() };
            assert_eq!(hierarchies.of(controller), Some(parent));
        }
        assert_eq!(hierarchies.all(), [folder]);
    }

    #[test]
    fn legacy_controller_is_not_in_cgroup2() {
        let groups = "9:name=systemd:/\n8:pids:/\n4:memory:/some/group\n0::/\n";
        let hierarchies = find(HYBRID, groups);
        assert_eq!(hierarchies.unified, Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(hierarchies.memory, legacy("/sys/fs/cgroup/memory/some/group"));
        assert_eq!(hierarchies.pids, legacy("/sys/fs/cgroup/pids"));
        assert_eq!(hierarchies.of(Controller::Pids).unwrap().version, Version::One);
        assert_eq!(hierarchies.all().len(), 3);
    }

    #[test]
    fn legacy_hierarchies_work_without_cgroup2() {
        let mounts = "\
35 31 0:32 / /cg/both\\040of\\040them rw - cgroup cgroup rw,memory,pids
36 31 0:33 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct
";
        let hierarchies = find(mounts, "3:cpu,cpuacct:/x\n2:memory,pids:/x\n");
        assert_eq!(hierarchies.unified, None);
        assert_eq!(hierarchies.memory, legacy("/cg/both of them/x"));
        assert_eq!(hierarchies.pids, legacy("/cg/both of them/x"));
        assert_eq!(hierarchies.all().len(), 1);
    }

    #[test]
    fn nothing_is_found_without_mounts() {
        let mounts = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
        assert_eq!(find(mounts, "0::/\n"), Hierarchies::default());
        assert_eq!(find("", ""), Hierarchies::default());
        let out_of_reach = find(mounts, "4:memory:/\n0::/\n");
        assert_eq!(out_of_reach.memory, ControllerLocation::Unreachable);
        assert_eq!(out_of_reach.of(Controller::Memory), None);
    }

    #[test]
    fn container_sees_its_group_at_the_top() {
        // With its own namespace, all paths begin at its group.
        let hierarchies = find(UNIFIED, "0::/\n");
        assert_eq!(hierarchies.unified, Some("/sys/fs/cgroup".into()));
        // Without one, the mount names the group at its top.
        let mount = "30 21 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let inside = find(mount, "0::/docker/abc/inner\n");
        assert_eq!(inside.unified, Some("/sys/fs/cgroup/inner".into()));
        // A group that is not visible through the mount is not guessed.
        assert_eq!(find(mount, "0::/docker/other\n").unified, None);
        assert_eq!(find(mount, "0::/../other\n").unified, None);
        let above = "30 21 0:26 /.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(find(above, "0::/\n").unified, None);
        assert_eq!(find(UNIFIED, "0::/../other\n").unified, None);
    }

    #[test]
    fn latest_mount_that_shows_the_group_wins() {
        let mounts = format!(
            "{UNIFIED}50 21 0:26 /a /over rw - cgroup2 none rw\n51 21 0:26 /b /else rw - cgroup2 none rw\n"
        );
        assert_eq!(find(&mounts, "0::/a/x\n").unified, Some("/over/x".into()));
        assert_eq!(find(&mounts, "0::/c\n").unified, Some("/sys/fs/cgroup/c".into()));
    }

    #[test]
    fn malformed_lines_are_ignored() {
        for line in ["", "a", "1 2 3 4 5 - cgroup2", "- cgroup2 x y", "1 2 3 / /x rw cgroup2 a b"] {
            assert_eq!(find(line, "0::/\n::::\n0\n"), Hierarchies::default(), "{line}");
        }
        assert_eq!(unescape(r"/a\040b\zzz\04\377é"), Path::new(r"/a b\zzz\04\377é"));
    }

    #[test]
    fn moved_daemon_creates_groups_beside_its_own() {
        let table =
            [("/cg/x.service/xy-daemon", "/cg/x.service"), ("/cg/x.service", "/cg/x.service")];
        for (own, parent) in table {
            assert_eq!(parent_of(own.into()), PathBuf::from(parent));
        }
    }
}
