//! Where this process is in the hierarchies of control groups.
//!
//! Everything is read from two files of the kernel: which hierarchies are mounted where
//! (`mountinfo`), and in which group of each we are (`cgroup`). [`find`] is pure.

use std::fs;
use std::path::{Path, PathBuf};

use super::Controller;
use super::room;

/// The two interfaces of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// A hierarchy for each controller, or for a few of them.
    One,
    /// cgroup2: one hierarchy for all of them.
    Two,
}

/// A group in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) folder: PathBuf,
}

/// Our groups, in the hierarchies that matter to us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// In cgroup2.
    pub(super) unified: Option<PathBuf>,
    pub(super) memory: Home,
    pub(super) pids: Home,
}

/// Where a controller is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Home {
    /// In cgroup2, if anywhere.
    #[default]
    Unified,
    /// In a hierarchy of version one, in this group.
    Own(PathBuf),
    /// In a hierarchy that we cannot reach.
    OutOfReach,
}

impl Places {
    /// Those of this process. What turns out to be no group is none.
    pub(super) fn here() -> Self {
        let read = |path| {
            let bytes = fs::read(path).unwrap_or_default(); // No such file, no groups.
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let found = find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let is_group = |folder: &PathBuf| folder.join("cgroup.procs").exists();
        let reachable = |home| match home {
            Home::Own(folder) if !is_group(&folder) => Home::OutOfReach,
            home => home,
        };
        Self {
            unified: found.unified.filter(is_group).map(room::base_of),
            memory: reachable(found.memory),
            pids: reachable(found.pids),
        }
    }

    /// Where groups with this controller can be made, if it is there.
    pub(super) fn of(&self, controller: Controller) -> Option<Place> {
        let home = match controller {
            Controller::Memory => &self.memory,
            Controller::Pids => &self.pids,
        };
        match home {
            Home::Unified => {
                self.unified.clone().map(|folder| Place { version: Version::Two, folder })
            }
            Home::Own(folder) => Some(Place { version: Version::One, folder: folder.clone() }),
            Home::OutOfReach => None,
        }
    }

    /// Every place once.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        let own = |home: &Home| match home {
            Home::Own(folder) => Some(folder.clone()),
            Home::Unified | Home::OutOfReach => None,
        };
        let mut all: Vec<PathBuf> = self.unified.iter().cloned().collect();
        all.extend([own(&self.memory), own(&self.pids)].into_iter().flatten());
        all.dedup(); // Two controllers may share a hierarchy.
        all
    }
}

/// Our groups, from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub(super) fn find(mountinfo: &str, own: &str) -> Places {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
    let mut places = Places::default();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            places.unified = folder_of(&mounts, None, path);
        }
        for controller in controllers.split(',') {
            let home = match controller {
                "memory" => &mut places.memory,
                "pids" => &mut places.pids,
                _ => continue,
            };
            let folder = folder_of(&mounts, Some(controller), path);
            *home = folder.map_or(Home::OutOfReach, Home::Own);
        }
    }
    places
}

/// The folder of a group: the latest mount through which it can be seen is on top.
fn folder_of(mounts: &[Mount], controller: Option<&str>, path: &str) -> Option<PathBuf> {
    mounts.iter().rev().filter(|mount| mount.has(controller)).find_map(|mount| {
        let below = Path::new(path).strip_prefix(&mount.root).ok()?;
        let is_plain =
            below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        // Its components again, because nothing joined is a `/` too many.
        is_plain.then(|| mount.at.components().chain(below.components()).collect())
    })
}

/// A mounted hierarchy.
#[derive(Debug)]
struct Mount {
    /// Which of its groups is at the top of it.
    root: PathBuf,
    at: PathBuf,
    /// Its controllers; absent for cgroup2.
    controllers: Option<Vec<String>>,
}

impl Mount {
    /// `id parent device root mount-point options … - type source options`
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, at) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let (kind, _source, options) = (back.next()?, back.next()?, back.next()?);
        let controllers = match kind {
            "cgroup2" => None,
            "cgroup" => Some(options.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self { root: unescaped(root), at: unescaped(at), controllers })
    }

    fn has(&self, controller: Option<&str>) -> bool {
        match (&self.controllers, controller) {
            (None, None) => true,
            (Some(all), Some(one)) => all.iter().any(|it| it == one),
            _ => false,
        }
    }
}

/// Spaces and the like are written as `\040` there.
fn unescaped(text: &str) -> PathBuf {
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

    fn own(folder: &str) -> Home {
        Home::Own(folder.into())
    }

    #[test]
    fn one_hierarchy_has_everything() {
        let group = "0::/user.slice/user-1000.slice/session-3.scope\n";
        let places = find(UNIFIED, group);
        let folder = PathBuf::from("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope");
        let expected = Places { unified: Some(folder.clone()), ..Places::default() };
        assert_eq!(places, expected);
        for controller in [Controller::Memory, Controller::Pids] {
            let place = Place { version: Version::Two, folder: folder.clone() };
            assert_eq!(places.of(controller), Some(place));
        }
        assert_eq!(places.all(), [folder]);
    }

    #[test]
    fn a_controller_with_a_hierarchy_of_its_own_is_there_and_not_in_cgroup2() {
        let groups = "9:name=systemd:/\n8:pids:/\n4:memory:/some/group\n0::/\n";
        let places = find(HYBRID, groups);
        assert_eq!(places.unified, Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(places.memory, own("/sys/fs/cgroup/memory/some/group"));
        assert_eq!(places.pids, own("/sys/fs/cgroup/pids"));
        assert_eq!(places.of(Controller::Pids).unwrap().version, Version::One);
        assert_eq!(places.all().len(), 3);
    }

    #[test]
    fn without_cgroup2_there_are_only_the_others() {
        let mounts = "\
35 31 0:32 / /cg/both\\040of\\040them rw - cgroup cgroup rw,memory,pids
36 31 0:33 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct
";
        let places = find(mounts, "3:cpu,cpuacct:/x\n2:memory,pids:/x\n");
        assert_eq!(places.unified, None);
        assert_eq!(places.memory, own("/cg/both of them/x"));
        assert_eq!(places.pids, own("/cg/both of them/x"));
        assert_eq!(places.all().len(), 1);
    }

    #[test]
    fn where_nothing_is_mounted_there_is_nothing() {
        let mounts = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
        assert_eq!(find(mounts, "0::/\n"), Places::default());
        assert_eq!(find("", ""), Places::default());
        let out_of_reach = find(mounts, "4:memory:/\n0::/\n");
        assert_eq!(out_of_reach.memory, Home::OutOfReach);
        assert_eq!(out_of_reach.of(Controller::Memory), None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_top() {
        // With a namespace of its own, all paths begin at its group.
        let places = find(UNIFIED, "0::/\n");
        assert_eq!(places.unified, Some("/sys/fs/cgroup".into()));
        // Without one, the mount says which group is at the top of it.
        let mount = "30 21 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let inside = find(mount, "0::/docker/abc/inner\n");
        assert_eq!(inside.unified, Some("/sys/fs/cgroup/inner".into()));
        // A group that cannot be seen through the mount is not guessed at.
        assert_eq!(find(mount, "0::/docker/other\n").unified, None);
        assert_eq!(find(mount, "0::/../other\n").unified, None);
        let above = "30 21 0:26 /.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(find(above, "0::/\n").unified, None);
        assert_eq!(find(UNIFIED, "0::/../other\n").unified, None);
    }

    #[test]
    fn of_two_mounts_the_latest_that_shows_the_group_counts() {
        let mounts = format!(
            "{UNIFIED}50 21 0:26 /a /over rw - cgroup2 none rw\n51 21 0:26 /b /else rw - cgroup2 none rw\n"
        );
        assert_eq!(find(&mounts, "0::/a/x\n").unified, Some("/over/x".into()));
        assert_eq!(find(&mounts, "0::/c\n").unified, Some("/sys/fs/cgroup/c".into()));
    }

    #[test]
    fn nonsense_is_no_place() {
        for line in ["", "a", "1 2 3 4 5 - cgroup2", "- cgroup2 x y", "1 2 3 / /x rw cgroup2 a b"] {
            assert_eq!(find(line, "0::/\n::::\n0\n"), Places::default(), "{line}");
        }
        assert_eq!(unescaped(r"/a\040b\zzz\04\377é"), Path::new(r"/a b\zzz\04\377é"));
    }
}
