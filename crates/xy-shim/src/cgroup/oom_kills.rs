//! Counts how often the kernel has killed in a container's group for lack of memory.
//!
//! The counter disappears with its group, soon after the last process of the container. So its file
//! is opened while the container runs, and read as soon as the first process has ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Controller;
use super::hierarchies::{self, Version};

/// Size of the read buffer, more than the longest such file.
const MAX_FILE_BYTES: usize = 1024;

/// The counter of one container.
#[derive(Debug)]
pub struct OomKills {
    file: File,
    /// The count at the last call of `advance` but one, or when the file was opened.
    baseline: u64,
    /// The count at the last call of `advance`.
    last: u64,
}

impl OomKills {
    /// Opens the counter of the container with this ID, whose first process is `pid`. Only a group
    /// with the ID in its path counts as the container's own.
    pub fn of(pid: u32, id: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let parent = hierarchies::find(&mounts, &own).of(Controller::Memory)?;
        let name = match parent.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        Self::below(&parent.folder, name, id)
    }

    /// Opens the counter in the group of the process or, if the kernel counts there, in a group
    /// above it.
    fn below(folder: &Path, name: &str, id: &str) -> Option<Self> {
        let is_own = |it: &&Path| {
            it.components().any(|part| part.as_os_str().to_string_lossy().contains(id))
        };
        let mut groups = folder.ancestors().take_while(is_own);
        let file = groups.find_map(|group| File::open(group.join(name)).ok())?;
        let baseline = count(&file)?;
        Some(Self { file, baseline, last: baseline })
    }

    /// Reads the counter. Kills counted before the previous call are not reported any more.
    pub fn advance(&mut self) {
        self.baseline = self.last;
        self.last = count(&self.file).unwrap_or(self.last);
    }

    /// Returns true if a kill was counted that has not expired. Returns false if the file cannot be
    /// read any more.
    pub fn has_risen(&self) -> bool {
        count(&self.file).is_some_and(|now| now > self.baseline)
    }
}

fn count(file: &File) -> Option<u64> {
    let mut bytes = [0; MAX_FILE_BYTES];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn kill_is_counted_only_in_the_containers_groups() {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("parent/libpod-abc.scope");
        let inner = scope.join("container");
        fs::create_dir_all(&inner).unwrap();
        let events = |kills| format!("low 0\nmax 9\noom 1\noom_kill {kills}\noom_group_kill 0\n");
        fs::write(root.path().join("parent/memory.events"), events(7)).unwrap();
        let found = |id| OomKills::below(&inner, "memory.events", id);
        assert!(found("abc").is_none(), "the group above has other containers too");
        fs::write(scope.join("memory.events"), events(1)).unwrap();
        assert!(found("another").is_none());
        let mut kills = found("abc").unwrap();
        assert!(!kills.has_risen(), "that was before");
        fs::write(scope.join("memory.events"), events(2)).unwrap();
        assert!(kills.has_risen());
        kills.advance();
        assert!(kills.has_risen(), "it may have been just before the last call");
        kills.advance();
        assert!(!kills.has_risen(), "that is past");
        fs::write(scope.join("memory.events"), events(3)).unwrap();
        assert!(kills.has_risen());
    }

    #[test]
    fn both_kernel_formats_are_parsed() {
        let root = tempfile::tempdir().unwrap();
        for (text, is_read) in [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", true),
            ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", true),
            ("oom_kill_disable 0\nunder_oom 0\n", false), // As written by older kernels.
            ("", false),
        ] {
            fs::write(root.path().join("x"), text).unwrap();
            let name = root.path().file_name().unwrap().to_str().unwrap();
            assert_eq!(OomKills::below(root.path(), "x", name).is_some(), is_read, "{text}");
        }
    }
}
