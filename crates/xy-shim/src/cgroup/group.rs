//! One control group: a directory of the kernel's.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::proc_stat::ProcStat;

/// Maximum depth to which groups below a server's group are visited.
const MAX_DEPTH: usize = 16;

/// A group that a shim has created.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) folder: PathBuf,
}

impl Group {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Creates a new group.
    pub(super) fn create(base: &Path, name: &str) -> io::Result<Self> {
        let group = Self { folder: base.join(name) };
        fs::create_dir(&group.folder)?;
        Ok(group)
    }

    /// Returns the content of a file, or an empty string if it is missing.
    pub(super) fn read(&self, file: &str) -> String {
        let bytes = fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes to a file of the kernel.
    pub(super) fn write(&self, file: &str, value: &str) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(self.folder.join(file))?;
        rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()))?;
        Ok(())
    }

    /// Returns true if a file is a list that contains this word.
    pub(super) fn contains_word(&self, file: &str, word: &str) -> bool {
        self.read(file).split_whitespace().any(|it| it == word)
    }

    /// Returns the number after a word, in a file of such lines.
    pub(super) fn count(&self, file: &str, word: &str) -> u64 {
        let text = self.read(file);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == word).and_then(|(_, n)| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns true for the root of cgroup2, the only group without a type.
    pub(super) fn is_root(&self) -> bool {
        !self.folder.join("cgroup.type").exists()
    }

    /// Opens the file through which a process enters the group by writing `0`.
    pub(super) fn open_procs(&self) -> io::Result<OwnedFd> {
        let file = fs::OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))?;
        Ok(file.into())
    }

    /// Returns its processes, without those of groups below it.
    pub(super) fn own_pids(&self) -> Vec<Pid> {
        let text = self.read("cgroup.procs");
        text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Returns true if no other process than `pid` is in it. A process of another namespace is
    /// listed as 0.
    pub(super) fn has_only(&self, pid: u32) -> bool {
        let pid = pid.to_string();
        self.read("cgroup.procs").split_whitespace().all(|it| it == pid)
    }

    /// Returns true if no process is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.read("cgroup.procs").trim().is_empty()
    }

    /// Returns the living processes in it and in the groups below it.
    pub(super) fn alive(&self) -> Vec<Pid> {
        let is_alive = |pid: &Pid| ProcStat::may_live(pid.as_raw_pid().unsigned_abs());
        self.pids().into_iter().filter(is_alive).collect()
    }

    fn pids(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        self.visit(0, &mut |group| pids.extend(group.own_pids()));
        pids
    }

    /// Moves a process into the group.
    pub(super) fn enter(&self, pid: Pid) -> io::Result<()> {
        self.write("cgroup.procs", &pid.as_raw_pid().to_string())
    }

    /// Moves a process that does not belong here to the group above.
    pub(super) fn expel(&self, pid: Pid) {
        if let Some(above) = self.folder.parent().filter(|_| self.own_pids().contains(&pid)) {
            let _ = Self { folder: above.to_owned() }.enter(pid); // The process may have ended.
        }
    }

    /// Kills every process in it.
    pub(super) fn kill(&self) {
        // A kernel that is new enough kills all of them before any can fork.
        if self.write("cgroup.kill", "1").is_err() {
            for pid in self.pids() {
                self.kill_one(pid);
            }
        }
    }

    /// Kills a process only if it is still in the group after its pidfd was opened: the ID may have
    /// been reused.
    #[cfg(target_os = "linux")]
    fn kill_one(&self, pid: Pid) {
        use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if self.pids().contains(&pid) {
            let _ = pidfd_send_signal(pidfd, Signal::KILL); // The process may have just died.
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "there are no groups here")]
    fn kill_one(&self, _pid: Pid) {}

    /// Removes the group and those below it. Only empty groups can be removed.
    pub(super) fn remove(&self) -> io::Result<()> {
        let mut removed = Ok(());
        self.visit(0, &mut |group| {
            removed = match fs::remove_dir(&group.folder) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        });
        removed // This group is visited last.
    }

    /// Visits every group below this one, then this one.
    fn visit(&self, depth: usize, act: &mut impl FnMut(&Self)) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let folders = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in folders.take_while(|_| depth < MAX_DEPTH) {
            Self { folder: entry.path() }.visit(depth + 1, act);
        }
        act(self);
    }
}
