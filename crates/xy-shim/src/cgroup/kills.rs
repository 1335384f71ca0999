//! How often the kernel has killed in a container's group for want of memory.
//!
//! The count is gone with its group, soon after the last process in it. So its file is opened
//! while there are some, and read at once when the first of them has ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Controller;
use super::places::{self, Version};

/// More than the longest such file.
const LONGEST: usize = 1024;

/// The count of one container.
#[derive(Debug)]
pub struct OomKills {
    file: File,
    /// How many there were at the look before the last, or when it was opened.
    before: u64,
    /// How many there were at the last look.
    last: u64,
}

impl OomKills {
    /// That of the container with this id, whose first process this is. Only a group that has
    /// the id in its name is taken for the container's own.
    pub fn of(pid: u32, id: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let place = places::find(&mounts, &own).of(Controller::Memory)?;
        let name = match place.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        Self::below(&place.folder, name, id)
    }

    /// The kernel keeps count in the group of the process, or where limits were last handed
    /// down, above it.
    fn below(folder: &Path, name: &str, id: &str) -> Option<Self> {
        let is_its_own = |it: &&Path| {
            it.components().any(|part| part.as_os_str().to_string_lossy().contains(id))
        };
        let mut groups = folder.ancestors().take_while(is_its_own);
        let file = groups.find_map(|group| File::open(group.join(name)).ok())?;
        let before = count(&file)?;
        Some(Self { file, before, last: before })
    }

    /// Looks at it. What was counted before the look before this one is past.
    pub fn look(&mut self) {
        self.before = self.last;
        self.last = count(&self.file).unwrap_or(self.last);
    }

    /// Whether there was another one that is not past; `false` also if that cannot be told any
    /// more.
    pub fn has_risen(&self) -> bool {
        count(&self.file).is_some_and(|now| now > self.before)
    }
}

fn count(file: &File) -> Option<u64> {
    let mut bytes = [0; LONGEST];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kill_is_counted_in_the_group_of_the_container_or_above_it_and_in_no_other() {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("parent/libpod-abc.scope");
        let inner = scope.join("container");
        fs::create_dir_all(&inner).unwrap();
        let events = |kills| format!("low 0\nmax 9\noom 1\noom_kill {kills}\noom_group_kill 0\n");
        fs::write(root.path().join("parent/memory.events"), events(7)).unwrap();
        let found = |id| OomKills::below(&inner, "memory.events", id);
        assert!(found("abc").is_none(), "what is above it is of others too");
        fs::write(scope.join("memory.events"), events(1)).unwrap();
        assert!(found("another").is_none());
        let mut kills = found("abc").unwrap();
        assert!(!kills.has_risen(), "that was before");
        fs::write(scope.join("memory.events"), events(2)).unwrap();
        assert!(kills.has_risen());
        kills.look();
        assert!(kills.has_risen(), "it may have been just before that look");
        kills.look();
        assert!(!kills.has_risen(), "that is past");
        fs::write(scope.join("memory.events"), events(3)).unwrap();
        assert!(kills.has_risen());
    }

    #[test]
    fn the_words_of_either_version_are_understood() {
        let root = tempfile::tempdir().unwrap();
        for (text, is_read) in [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", true),
            ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", true),
            ("oom_kill_disable 0\nunder_oom 0\n", false), // As older kernels say it.
            ("", false),
        ] {
            fs::write(root.path().join("x"), text).unwrap();
            let name = root.path().file_name().unwrap().to_str().unwrap();
            assert_eq!(OomKills::below(root.path(), "x", name).is_some(), is_read, "{text}");
        }
    }
}
