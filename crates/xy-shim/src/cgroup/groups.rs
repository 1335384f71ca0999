//! The control groups of one life: created before its start, removed after its end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::Pid;

use super::group::Group;
use super::hierarchies::{Hierarchies, ParentGroup, Version};
use super::name::GroupName;
use super::{Controller, parent_group};
use crate::pidfd::ProcessHandle;
use crate::proc_stat::ProcStat;
use crate::tree::Tree;
use crate::wire::{EnforcedBy, LimitsOrder, Oom, Problem, StartFault};

/// Attempts to remove a group: a process that has just died may still be counted for a moment.
const MAX_REMOVE_ATTEMPTS: usize = 20;
const REMOVE_INTERVAL: Duration = Duration::from_millis(5);

/// Rounds of gathering: a process forked during one is moved by the next.
const MAX_GATHER_ROUNDS: usize = 8;

/// The kernel charges memory in batches, so a limit takes effect a little below its value.
const LIMIT_TOLERANCE: u64 = 1 << 20;

/// The groups of one life, one in each hierarchy that it needs. Dropping them removes them.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: Vec<Member>,
    /// Index of the group that limits memory.
    memory: Option<usize>,
}

#[derive(Debug)]
struct Member {
    group: Group,
    version: Version,
    /// Set if the group enforces a limit, so the server must not run outside it.
    is_required: bool,
}

impl Member {
    /// Moves a descendant of this process into the group, and never another process with the same
    /// ID.
    fn adopt(&self, pid: Pid) {
        let number = pid.as_raw_pid().unsigned_abs();
        let Some(process) = ProcessHandle::new(number).filter(|_| ProcStat::is_descendant(number))
        else {
            return;
        };
        let _ = self.group.enter(pid); // The process may have just died.
        if !process.is_alive() && !ProcStat::is_descendant(number) {
            self.group.expel(pid); // It may have been an unrelated process.
        }
    }
}

impl Groups {
    /// Creates the groups of a life. Those for limits are required; the cgroup2 group that
    /// only contains the server is optional.
    pub(crate) fn create(limits: &LimitsOrder) -> Result<Self, StartFault> {
        let mut groups = Self::default();
        let hierarchies = Hierarchies::of_current_process();
        let name = GroupName::of_current_process().map(|name| name.to_string());
        if let (Some(group), Some(name)) = (&hierarchies.unified, &name) {
            let parent = ParentGroup { version: Version::Two, folder: group.clone() };
            let _ = groups.get_or_create(&parent, name); // Without it the subreaper suffices.
        }
        let memory = limits.memory.filter(|it| it.kept_by == EnforcedBy::Cgroup);
        let wanted = [
            memory.map(|it| (Controller::Memory, it.bytes)),
            limits.pids.map(|it| (Controller::Pids, u64::from(it))),
        ];
        for (controller, limit) in wanted.into_iter().flatten() {
            let why = "the system does not report this process's start time and namespace";
            let name = name.as_deref().ok_or_else(|| limit_fault(controller, why, None))?;
            groups.limit(&hierarchies, name, controller, limit)?;
        }
        Ok(groups)
    }

    fn limit(
        &mut self,
        hierarchies: &Hierarchies,
        name: &str,
        controller: Controller,
        limit: u64,
    ) -> Result<(), StartFault> {
        let parent = parent_group(hierarchies, controller)
            .map_err(|why| limit_fault(controller, &why, None))?;
        let result = self.apply_limit(&parent, name, controller, limit);
        result.map_err(|cause| {
            let why = format!("{cause} (in `{}`)", parent.folder.display());
            limit_fault(controller, &why, cause.raw_os_error())
        })
    }

    fn apply_limit(
        &mut self,
        parent: &ParentGroup,
        name: &str,
        controller: Controller,
        limit: u64,
    ) -> io::Result<()> {
        if parent.version == Version::Two {
            enable_controller(parent, controller)?;
        }
        let index = self.get_or_create(parent, name)?;
        let member = &mut self.members[index];
        let (group, limit) = (&member.group, limit.to_string());
        match (controller, parent.version) {
            (Controller::Pids, _) => group.write("pids.max", &limit)?,
            (Controller::Memory, Version::One) => {
                group.write("memory.limit_in_bytes", &limit)?;
                // Memory and swap together; the file is missing where swap is not counted.
                let _ = group.write("memory.memsw.limit_in_bytes", &limit);
            }
            (Controller::Memory, Version::Two) => {
                group.write("memory.max", &limit)?;
                // As above: missing where swap is not counted.
                let _ = group.write("memory.swap.max", "0");
                // Kills the whole server: one that lost only a part would be neither dead nor
                // alive.
                let _ = group.write("memory.oom.group", "1");
            }
        }
        member.is_required = true;
        if controller == Controller::Memory {
            self.memory = Some(index);
        }
        Ok(())
    }

    /// Returns the index of the group below this parent, creating it if needed.
    fn get_or_create(&mut self, parent: &ParentGroup, name: &str) -> io::Result<usize> {
        let folder = parent.folder.join(name);
        if let Some(known) = self.members.iter().position(|it| it.group.folder == folder) {
            return Ok(known);
        }
        let group = Group::create(&parent.folder, name)?;
        self.members.push(Member { group, version: parent.version, is_required: false });
        Ok(self.members.len() - 1)
    }

    /// Opens the groups outside of which the server must not run.
    pub(crate) fn open_required(&self) -> io::Result<Vec<OwnedFd>> {
        let required = self.members.iter().filter(|member| member.is_required);
        required.map(|member| member.group.open_procs()).collect()
    }

    /// Moves the server and everything it has started into the group that only contains it.
    ///
    /// Entering a group can take the kernel some milliseconds, so this is done once the server
    /// runs. Until then the walk of its tree finds all processes.
    pub(crate) fn gather(&mut self, tree: &Tree) {
        for member in self.members.iter().filter(|member| !member.is_required) {
            // The leader is a child and not reaped, so its ID is valid.
            let _ = member.group.enter(tree.leader);
            for _ in 0..MAX_GATHER_ROUNDS {
                let inside = member.group.own_pids();
                let alive = tree.alive();
                let outside: Vec<Pid> =
                    alive.into_iter().filter(|pid| !inside.contains(pid)).collect();
                if outside.is_empty() {
                    break;
                }
                for pid in outside {
                    member.adopt(pid);
                }
            }
        }
        self.drop_unentered(tree.leader);
    }

    /// Drops a group that the server did not enter.
    fn drop_unentered(&mut self, leader: Pid) {
        let entered = |member: &Member| {
            member.is_required
                || member.group.own_pids().contains(&leader)
                || member.group.remove().is_err() // A process is in it.
        };
        if !self.members.iter().all(entered) {
            let memory = self.memory.map(|index| self.members[index].group.folder.clone());
            self.members.retain(|member| member.group.folder.exists());
            self.memory =
                self.members.iter().position(|it| Some(&it.group.folder) == memory.as_ref());
        }
    }

    /// Returns true if there is a cgroup2 group, which contains every process of the server.
    pub(crate) fn has_unified_group(&self) -> bool {
        self.members.iter().any(|member| member.version == Version::Two)
    }

    /// Kills every process in the groups.
    pub(crate) fn kill(&self) {
        for member in &self.members {
            member.group.kill();
        }
    }

    /// Returns the living processes in the groups.
    pub(crate) fn alive(&self) -> Vec<Pid> {
        let mut alive = Vec::new();
        for member in &self.members {
            // cgroup2 reports directly whether the group is populated.
            if member.version == Version::One
                || member.group.count("cgroup.events", "populated") > 0
            {
                alive.extend(member.group.alive());
            }
        }
        alive.sort_unstable_by_key(|pid| pid.as_raw_pid());
        alive.dedup();
        alive
    }

    /// Returns why the kernel killed a process of the server for lack of memory, if it did.
    pub(crate) fn oom(&self) -> Option<Oom> {
        let limited = self.memory.map(|index| &self.members[index]);
        // Without a limit set here, cgroup2 may still count kills.
        let unified = self.members.iter().find(|member| member.version == Version::Two);
        let Member { group, version, .. } = limited.or(unified)?;
        let (kills, limit_reached) = match version {
            Version::One => {
                // Not every kernel counts refused charges, but each records the peak.
                let number = |file| group.read(file).trim().parse().unwrap_or(0_u64);
                let limit = number("memory.limit_in_bytes");
                let is_near =
                    number("memory.max_usage_in_bytes").saturating_add(LIMIT_TOLERANCE) >= limit;
                let is_over = is_near || number("memory.failcnt") > 0;
                (group.count("memory.oom_control", "oom_kill"), is_over)
            }
            Version::Two => {
                let count = |word| group.count("memory.events", word);
                (count("oom_kill"), count("oom") > 0)
            }
        };
        let of = if limit_reached && limited.is_some() { Oom::Limit } else { Oom::Machine };
        (kills > 0).then_some(of)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for member in &self.members {
            for _ in 0..MAX_REMOVE_ATTEMPTS {
                if member.group.remove().is_ok() {
                    break;
                }
                pause(REMOVE_INTERVAL);
            }
        }
    }
}

/// Lets the parent group limit the groups below it.
fn enable_controller(parent: &ParentGroup, controller: Controller) -> io::Result<()> {
    let group = Group::at(parent.folder.clone());
    if group.contains_word("cgroup.subtree_control", controller.name()) {
        return Ok(());
    }
    group.write("cgroup.subtree_control", &format!("+{}", controller.name()))
}

fn limit_fault(controller: Controller, why: &str, errno: Option<i32>) -> StartFault {
    let limit = controller.name().to_owned();
    StartFault { problem: Problem::LimitNotKept { limit, why: why.to_owned() }, errno }
}

pub(super) fn pause(duration: Duration) {
    let time: Option<Timespec> = duration.try_into().ok();
    let _ = poll(&mut [], time.as_ref()); // A signal may cut it short, which is harmless.
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the verdict for a group with these files.
    fn oom_of(version: Version, is_limited: bool, files: &[(&str, &str)]) -> Option<Oom> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let group = Group::at(folder.path().to_owned());
        let members = vec![Member { group, version, is_required: is_limited }];
        let groups = Groups { members, memory: is_limited.then_some(0) };
        let oom = groups.oom();
        drop(folder); // Dropped before the groups, so that they find nothing to remove.
        oom
    }

    #[test]
    fn oom_kill_is_attributed_to_limit_or_machine() {
        let events = |oom, kills| format!("low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\n");
        let two = |is_limited, events: String| {
            oom_of(Version::Two, is_limited, &[("memory.events", &events)])
        };
        assert_eq!(two(true, events(0, 0)), None);
        assert_eq!(two(true, events(3, 0)), None, "the limit was hit without a kill");
        assert_eq!(two(true, events(3, 1)), Some(Oom::Limit));
        assert_eq!(two(true, events(0, 1)), Some(Oom::Machine));
        assert_eq!(two(false, events(0, 1)), Some(Oom::Machine));
        assert_eq!(two(false, String::new()), None, "a group that does not count memory");

        let one = |kills, peak, refused| {
            let control = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
            let files = [
                ("memory.oom_control", control.as_str()),
                ("memory.limit_in_bytes", "67108864\n"),
                ("memory.max_usage_in_bytes", peak),
                ("memory.failcnt", refused),
            ];
            oom_of(Version::One, true, &files)
        };
        assert_eq!(one(0, "67108864\n", "5\n"), None);
        assert_eq!(one(1, "67108864\n", "0\n"), Some(Oom::Limit));
        assert_eq!(one(1, "1048576\n", "5\n"), Some(Oom::Limit));
        assert_eq!(one(1, "1048576\n", "0\n"), Some(Oom::Machine));
    }

    #[test]
    fn controller_is_enabled_once() {
        let folder = tempfile::tempdir().unwrap();
        let parent = ParentGroup { version: Version::Two, folder: folder.path().to_owned() };
        let file = folder.path().join("cgroup.subtree_control");
        assert!(enable_controller(&parent, Controller::Pids).is_err(), "it is no group");
        for (before, after) in [("memory pids\n", "memory pids\n"), ("", "+pids")] {
            fs::write(&file, before).unwrap();
            enable_controller(&parent, Controller::Pids).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
