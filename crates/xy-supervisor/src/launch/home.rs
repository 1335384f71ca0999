//! The id of a daemon's home, which is part of each life id that the daemon creates.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns true if a daemon of this home created that life id.
pub fn is_of_home(life: &str, home: &str) -> bool {
    life.strip_prefix(home).is_some_and(|rest| rest.starts_with('-'))
}

/// Returns an id that distinguishes the homes of several daemons on one machine. It identifies the
/// folder itself, as the same path may be another folder in another container.
pub fn home_id(locks_dir: &Path) -> String {
    let (device, inode) = std::fs::metadata(locks_dir).map_or((0, 0), |it| (it.dev(), it.ino()));
    let mut path = locks_dir.canonicalize().unwrap_or_else(|_| locks_dir.to_owned());
    path.push(format!("{device}-{inode}"));
    // FNV-1a is the same in every version, unlike the standard library's hasher.
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}
