//! The files that cannot be used, and what a load uses instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xy_protocol::server::ServerName;

use crate::report::Problem;

/// The last good texts of `xy.kdl` and of profiles, by their names in reports.
pub type LastGood = BTreeMap<String, String>;

/// The state of an earlier daemon that a load takes into account.
#[derive(Debug, Clone, Default)]
pub struct PriorState {
    /// The texts to use for files that cannot be used now.
    pub last_good: LastGood,
    /// The running servers, which keep their ports.
    pub living: BTreeSet<ServerName>,
}

/// The files of a load that cannot be used.
#[derive(Debug, Clone, Default)]
pub struct BadFiles {
    /// The servers that are left out, and the files that configure them.
    pub servers: BTreeMap<ServerName, PathBuf>,
    /// The files and folders whose errors affect their own servers only, by their names in reports.
    pub contained: BTreeSet<String>,
    /// The folders that other users can write, by their names in reports. No file in them is used.
    pub folders: BTreeMap<String, PathBuf>,
    /// The files whose last good version is in use, by their names in reports.
    pub replaced: BTreeSet<String>,
    /// The texts of `xy.kdl` and of profiles in use: the last good ones from now on.
    pub texts: LastGood,
}

impl BadFiles {
    /// Returns true if the other files can be used despite `problem`.
    pub fn is_contained(&self, problem: &Problem) -> bool {
        self.contained.contains(&problem.file) || self.replaced.contains(&problem.file)
    }

    /// Returns true if `problem` keeps `file`, which reports show as `shown`, from being used.
    pub fn is_about(&self, problem: &Problem, file: &Path, shown: &str) -> bool {
        let folder = self.folders.get(&problem.file);
        problem.file == shown || folder.is_some_and(|folder| file.starts_with(folder))
    }
}
