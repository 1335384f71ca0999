//! Disks for tests: full, or mounted read-only.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use xy_testkit::Home;

/// A small tmpfs, unmounted on drop.
pub(crate) struct SmallDisk {
    folder: PathBuf,
    filler: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(home: &Home) -> Option<Self> {
        Self::mount_at(home.root().join("state"))
    }

    pub(crate) fn mount_at(folder: PathBuf) -> Option<Self> {
        let filler = folder.join("filler");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]).arg(&folder);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Self { folder, filler })
    }

    pub(crate) fn remount(&self, how: &str) {
        let mut mount = Command::new("mount");
        mount.arg("-o").arg(format!("remount,{how}")).arg(&self.folder);
        assert!(mount.status().expect("it can be mounted again").success());
    }

    /// Fills the disk to the last byte.
    pub(crate) fn fill(&self) {
        let filled = fs::write(&self.filler, vec![0; 1024 * 1024]);
        let full = filled.expect_err("it is too small for that");
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(&self.filler).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a daemon of a failed test may still use the disk.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}
