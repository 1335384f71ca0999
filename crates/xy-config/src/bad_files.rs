//! Files that cannot be used as they are, and what a load may use instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xy_protocol::server::ServerName;

use crate::report::Problem;

/// The last good texts of `xy.kdl` and of profiles, by the names that reports show.
pub type LastGood = BTreeMap<String, String>;

/// The state of a home before a load.
#[derive(Debug, Clone, Default)]
pub struct Earlier {
    /// Texts to use where a file cannot be used now.
    pub last_good: LastGood,
    /// Servers that have their ports already, and keep them.
    pub living: BTreeSet<ServerName>,
}

/// The files of a load that cannot be used.
#[derive(Debug, Clone, Default)]
pub struct BadFiles {
    /// Servers that are left out, and the files that configure them.
    pub servers: BTreeMap<ServerName, PathBuf>,
    /// Files and folders whose mistakes concern their own servers only, as reports show them.
    pub contained: BTreeSet<String>,
    /// Folders that others may write, by the names that reports show. No file in them is used.
    pub folders: BTreeMap<String, PathBuf>,
    /// Files whose last good version is in use, as reports show them.
    pub replaced: BTreeSet<String>,
    /// The texts in use of `xy.kdl` and of profiles: the last good ones from now on.
    pub texts: LastGood,
}

impl BadFiles {
    /// Returns true if the other files can be used in spite of `problem`.
    pub fn is_contained(&self, problem: &Problem) -> bool {
        self.contained.contains(&problem.file) || self.replaced.contains(&problem.file)
    }

    /// Returns true if `problem` keeps `file`, which reports show as `shown`, from being used.
    pub fn is_about(&self, problem: &Problem, file: &Path, shown: &str) -> bool {
        let folder = self.folders.get(&problem.file);
        problem.file == shown || folder.is_some_and(|folder| file.starts_with(folder))
    }
}
