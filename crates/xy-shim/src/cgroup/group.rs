//! One control group: a folder of the kernel's.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::proc_stat::ProcStat;

/// A server may make groups below its own; deeper than this nobody does.
const MAX_DEPTH: usize = 16;

/// A group that we made, or one that was left behind.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) folder: PathBuf,
}

impl Group {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Makes a new group.
    pub(super) fn make(base: &Path, name: &str) -> io::Result<Self> {
        let group = Self { folder: base.join(name) };
        fs::create_dir(&group.folder)?;
        Ok(group)
    }

    /// What a file says; nothing, if it is not there.
    pub(super) fn read(&self, file: &str) -> String {
        let bytes = fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes to a file that the kernel has made.
    pub(super) fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(self.folder.join(file))?;
        rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()))?;
        Ok(())
    }

    /// Whether a file is a list with this word in it.
    pub(super) fn lists(&self, file: &str, word: &str) -> bool {
        self.read(file).split_whitespace().any(|it| it == word)
    }

    /// The number after a word, in a file of such lines.
    pub(super) fn count(&self, file: &str, word: &str) -> u64 {
        let text = self.read(file);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == word).and_then(|(_, n)| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether it is the root of cgroup2, which is the only one without a type.
    pub(super) fn is_root(&self) -> bool {
        !self.folder.join("cgroup.type").exists()
    }

    /// Where whoever writes a `0` enters.
    pub(super) fn door(&self) -> io::Result<OwnedFd> {
        let file = fs::OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))?;
        Ok(file.into())
    }

    /// Its processes, without those of groups below it.
    pub(super) fn own_pids(&self) -> Vec<Pid> {
        let text = self.read("cgroup.procs");
        text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Whether nobody but `pid` is in it; whoever is of another namespace is listed as 0.
    pub(super) fn has_only(&self, pid: u32) -> bool {
        let pid = pid.to_string();
        self.read("cgroup.procs").split_whitespace().all(|it| it == pid)
    }

    /// Whether nobody is in it.
    pub(super) fn is_vacant(&self) -> bool {
        self.read("cgroup.procs").trim().is_empty()
    }

    /// What lives in it, or in a group below it.
    pub(super) fn alive(&self) -> Vec<Pid> {
        let is_alive = |pid: &Pid| ProcStat::may_live(pid.as_raw_pid().unsigned_abs());
        self.pids().into_iter().filter(is_alive).collect()
    }

    fn pids(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        self.visit(0, &mut |group| pids.extend(group.own_pids()));
        pids
    }

    /// Moves a process in here.
    pub(super) fn enter(&self, pid: Pid) -> io::Result<()> {
        self.set("cgroup.procs", &pid.as_raw_pid().to_string())
    }

    /// Moves a process that does not belong here to the group above.
    pub(super) fn put_out(&self, pid: Pid) {
        if let Some(above) = self.folder.parent().filter(|_| self.own_pids().contains(&pid)) {
            let _ = Self { folder: above.to_owned() }.enter(pid); // It may have ended.
        }
    }

    /// Kills everything in it, as far as that is possible at once.
    pub(super) fn kill(&self) {
        // The kernel does it without anybody being born meanwhile, if it is new enough.
        if self.set("cgroup.kill", "1").is_err() {
            for pid in self.pids() {
                self.kill_one(pid);
            }
        }
    }

    /// A number may mean somebody else by now: it is held, found here again, then killed.
    #[cfg(target_os = "linux")]
    fn kill_one(&self, pid: Pid) {
        use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if self.pids().contains(&pid) {
            let _ = pidfd_send_signal(held, Signal::KILL); // It may have died this instant.
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "there are no groups here")]
    fn kill_one(&self, _pid: Pid) {}

    /// Removes it, and the groups below it; only what is empty can be removed.
    pub(super) fn remove(&self) -> io::Result<()> {
        let mut removed = Ok(());
        self.visit(0, &mut |group| {
            removed = match fs::remove_dir(&group.folder) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        });
        removed // The last one visited is this one.
    }

    /// Goes to every group below it, then to it.
    fn visit(&self, depth: usize, act: &mut impl FnMut(&Self)) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let folders = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in folders.take_while(|_| depth < MAX_DEPTH) {
            Self { folder: entry.path() }.visit(depth + 1, act);
        }
        act(self);
    }
}
