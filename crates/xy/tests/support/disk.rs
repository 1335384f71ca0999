//! A disk that is full, or can only be read.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use xy_testkit::Home;

/// A small disk under the state folder, where one may be mounted.
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

    /// Leaves no byte free.
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
        // Lazily: a daemon of a failed test may still be in there.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}
