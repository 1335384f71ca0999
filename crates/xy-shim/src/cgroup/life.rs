//! The groups of one life: made before it begins, removed when it is over.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::Pid;

use super::group::Group;
use super::name::Name;
use super::places::{Place, Places, Version};
use super::{Controller, keeper};
use crate::held::Held;
use crate::proc_stat::ProcStat;
use crate::tree::Tree;
use crate::wire::{KeptBy, LimitsOrder, Oom, Problem, StartFault};

/// What has just died may still be counted for a moment.
const REMOVE_TRIES: usize = 20;
const REMOVE_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// What is born while others are brought in is brought in by the next try.
const GATHER_TRIES: usize = 8;

/// The kernel takes memory in batches, so a limit is reached a little before.
const NEAR: u64 = 1 << 20;

/// The groups of one life, one in each hierarchy that it needs. Dropping them removes them.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: Vec<Member>,
    /// Which of them limits memory.
    memory: Option<usize>,
}

#[derive(Debug)]
struct Member {
    group: Group,
    version: Version,
    /// It keeps a limit, so the server must not run outside.
    is_required: bool,
}

impl Member {
    /// Brings in a process below us, and nobody else of its number.
    fn bring_in(&self, pid: Pid) {
        let number = pid.as_raw_pid().unsigned_abs();
        let Some(held) = Held::new(number).filter(|_| ProcStat::is_below_us(number)) else {
            return;
        };
        let _ = self.group.enter(pid); // It may have died this instant.
        if !held.is_alive() && !ProcStat::is_below_us(number) {
            self.group.put_out(pid); // Then it may have been a stranger.
        }
    }
}

impl Groups {
    /// Makes the groups of a life. Those for its limits it must have; the one of cgroup2
    /// that only holds it together is good to have.
    pub(crate) fn make(limits: &LimitsOrder) -> Result<Self, StartFault> {
        let mut groups = Self::default();
        let places = Places::here();
        let name = Name::own().map(|name| name.to_string());
        if let (Some(base), Some(name)) = (&places.unified, &name) {
            let place = Place { version: Version::Two, folder: base.clone() };
            let _ = groups.group_in(&place, name); // Without it the subreaper is enough.
        }
        let memory = limits.memory.filter(|it| it.kept_by == KeptBy::Cgroup);
        let wanted = [
            memory.map(|it| (Controller::Memory, it.bytes)),
            limits.pids.map(|it| (Controller::Pids, u64::from(it))),
        ];
        for (controller, limit) in wanted.into_iter().flatten() {
            let why = "the system does not say who we are";
            let name = name.as_deref().ok_or_else(|| not_kept(controller, why, None))?;
            groups.limit(&places, name, controller, limit)?;
        }
        Ok(groups)
    }

    fn limit(
        &mut self,
        places: &Places,
        name: &str,
        controller: Controller,
        limit: u64,
    ) -> Result<(), StartFault> {
        let place = keeper(places, controller).map_err(|why| not_kept(controller, &why, None))?;
        let kept = self.limit_in(&place, name, controller, limit);
        kept.map_err(|cause| {
            let why = format!("{cause} (in `{}`)", place.folder.display());
            not_kept(controller, &why, cause.raw_os_error())
        })
    }

    fn limit_in(
        &mut self,
        place: &Place,
        name: &str,
        controller: Controller,
        limit: u64,
    ) -> io::Result<()> {
        if place.version == Version::Two {
            hand_down(place, controller)?;
        }
        let index = self.group_in(place, name)?;
        let member = &mut self.members[index];
        let (group, limit) = (&member.group, limit.to_string());
        match (controller, place.version) {
            (Controller::Pids, _) => group.set("pids.max", &limit)?,
            (Controller::Memory, Version::One) => {
                group.set("memory.limit_in_bytes", &limit)?;
                // Memory and swap together; the file is not there where swap is not counted.
                let _ = group.set("memory.memsw.limit_in_bytes", &limit);
            }
            (Controller::Memory, Version::Two) => {
                group.set("memory.max", &limit)?;
                let _ = group.set("memory.swap.max", "0"); // As above.
                // A server of which the kernel has killed a part is neither dead nor alive.
                let _ = group.set("memory.oom.group", "1");
            }
        }
        member.is_required = true;
        if controller == Controller::Memory {
            self.memory = Some(index);
        }
        Ok(())
    }

    /// The group in this place; made, unless it is there.
    fn group_in(&mut self, place: &Place, name: &str) -> io::Result<usize> {
        let folder = place.folder.join(name);
        if let Some(known) = self.members.iter().position(|it| it.group.folder == folder) {
            return Ok(known);
        }
        let group = Group::make(&place.folder, name)?;
        self.members.push(Member { group, version: place.version, is_required: false });
        Ok(self.members.len() - 1)
    }

    /// The doors of the groups outside of which the server must not run.
    pub(crate) fn doors(&self) -> io::Result<Vec<OwnedFd>> {
        let required = self.members.iter().filter(|member| member.is_required);
        required.map(|member| member.group.door()).collect()
    }

    /// Brings the server into the group that only holds it together, and whatever it has
    /// started by then. To enter one can take the kernel some milliseconds, so it is done
    /// when the server runs already: until then the walk of its tree finds all of it.
    pub(crate) fn gather(&mut self, tree: &Tree) {
        for member in self.members.iter().filter(|member| !member.is_required) {
            let _ = member.group.enter(tree.leader); // It is our child, and not reaped.
            for _ in 0..GATHER_TRIES {
                let inside = member.group.own_pids();
                let alive = tree.alive();
                let outside: Vec<Pid> =
                    alive.into_iter().filter(|pid| !inside.contains(pid)).collect();
                if outside.is_empty() {
                    break;
                }
                for pid in outside {
                    member.bring_in(pid);
                }
            }
        }
        self.settle(tree.leader);
    }

    /// Gives up a group that the server did not enter.
    fn settle(&mut self, leader: Pid) {
        let entered = |member: &Member| {
            member.is_required
                || member.group.own_pids().contains(&leader)
                || member.group.remove().is_err() // Somebody is in it.
        };
        if !self.members.iter().all(entered) {
            let memory = self.memory.map(|index| self.members[index].group.folder.clone());
            self.members.retain(|member| member.group.folder.exists());
            self.memory =
                self.members.iter().position(|it| Some(&it.group.folder) == memory.as_ref());
        }
    }

    /// Whether they hold everything of the server together.
    pub(crate) fn hold(&self) -> bool {
        self.members.iter().any(|member| member.version == Version::Two)
    }

    /// Kills everything in them.
    pub(crate) fn kill(&self) {
        for member in &self.members {
            member.group.kill();
        }
    }

    /// What lives in them.
    pub(crate) fn alive(&self) -> Vec<Pid> {
        let mut alive = Vec::new();
        for member in &self.members {
            // The kernel knows at once whether there is anybody, where it says so.
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

    /// Whether the kernel has killed any of it for want of memory.
    pub(crate) fn oom(&self) -> Option<Oom> {
        let limited = self.memory.map(|index| &self.members[index]);
        // Without a limit of ours, cgroup2 may still know.
        let unified = self.members.iter().find(|member| member.version == Version::Two);
        let Member { group, version, .. } = limited.or(unified)?;
        let (kills, limit_reached) = match version {
            Version::One => {
                // Not every kernel counts how often it refused, but each knows the peak.
                let number = |file| group.read(file).trim().parse().unwrap_or(0_u64);
                let limit = number("memory.limit_in_bytes");
                let is_near = number("memory.max_usage_in_bytes").saturating_add(NEAR) >= limit;
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
            for _ in 0..REMOVE_TRIES {
                if member.group.remove().is_ok() {
                    break;
                }
                pause(REMOVE_AGAIN_AFTER);
            }
        }
    }
}

/// Has the group in this place limit those below it.
fn hand_down(place: &Place, controller: Controller) -> io::Result<()> {
    let base = Group::at(place.folder.clone());
    if base.lists("cgroup.subtree_control", controller.name()) {
        return Ok(());
    }
    base.set("cgroup.subtree_control", &format!("+{}", controller.name()))
}

fn not_kept(controller: Controller, why: &str, errno: Option<i32>) -> StartFault {
    let limit = controller.name().to_owned();
    StartFault { problem: Problem::LimitNotKept { limit, why: why.to_owned() }, errno }
}

pub(super) fn pause(duration: Duration) {
    let time: Option<Timespec> = duration.try_into().ok();
    let _ = poll(&mut [], time.as_ref()); // A signal makes it shorter; no harm.
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A group whose files say this.
    fn told(version: Version, is_limited: bool, files: &[(&str, &str)]) -> Option<Oom> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let group = Group::at(folder.path().to_owned());
        let members = vec![Member { group, version, is_required: is_limited }];
        let groups = Groups { members, memory: is_limited.then_some(0) };
        let oom = groups.oom();
        drop(folder); // Before the groups, so that there is nothing to remove.
        oom
    }

    #[test]
    fn a_kill_for_want_of_memory_is_told_with_who_is_to_blame() {
        let events = |oom, kills| format!("low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\n");
        let two = |is_limited, events: String| {
            told(Version::Two, is_limited, &[("memory.events", &events)])
        };
        assert_eq!(two(true, events(0, 0)), None);
        assert_eq!(two(true, events(3, 0)), None, "it got by without");
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
            told(Version::One, true, &files)
        };
        assert_eq!(one(0, "67108864\n", "5\n"), None);
        assert_eq!(one(1, "67108864\n", "0\n"), Some(Oom::Limit));
        assert_eq!(one(1, "1048576\n", "5\n"), Some(Oom::Limit));
        assert_eq!(one(1, "1048576\n", "0\n"), Some(Oom::Machine));
    }

    #[test]
    fn a_controller_is_handed_down_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { version: Version::Two, folder: folder.path().to_owned() };
        let file = folder.path().join("cgroup.subtree_control");
        assert!(hand_down(&place, Controller::Pids).is_err(), "it is no group");
        for (before, after) in [("memory pids\n", "memory pids\n"), ("", "+pids")] {
            fs::write(&file, before).unwrap();
            hand_down(&place, Controller::Pids).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
