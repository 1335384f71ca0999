//! What the files say when a daemon starts, and whether it starts with that.

use std::collections::BTreeSet;

use xy_config::{Broken, Earlier, LastGood, Paths, Settings};
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::AddedServers;
use xy_supervisor::launch::adopt::Adopted;
use xy_supervisor::reload::ServerMap;

use crate::bad_files::{self, Faults, Strictness, may_start};
use crate::{check, last_good, limits};

/// The configuration of a daemon that starts.
pub(super) struct Configuration {
    /// The servers to run.
    pub(super) servers: ServerMap,
    /// Servers of which the files say nothing that can be used.
    pub(super) broken: Broken,
    /// What is wrong with the files.
    pub(super) faults: Faults,
    /// All other settings.
    pub(super) settings: Settings,
    /// The texts in use, to be kept as the last good ones.
    pub(super) texts: LastGood,
}

impl Configuration {
    /// Reads the files. Adopted servers whose files cannot be used go on as they were.
    pub(super) fn load(
        paths: &Paths,
        strictness: Strictness,
        adopted: &[Adopted],
        added: &AddedServers,
        has_living: bool,
    ) -> Result<Self, CallError> {
        let living: BTreeSet<_> = adopted.iter().map(|one| one.server().clone()).collect();
        let last_good = last_good::read(&paths.last_good_file);
        let loaded = xy_config::load_after(paths, &limits::kept(), &Earlier { last_good, living });
        if !may_start(strictness, &loaded, has_living) {
            // The report is about the files, and not about what would be used instead.
            let loaded = xy_config::load(paths, &limits::kept());
            let refused = check::refusal(&loaded, "the daemon did not start");
            return Err(CallError { kind: ErrorKind::ConfigInvalid, ..refused });
        }
        for problem in &loaded.problems {
            if problem.is_error() {
                tracing::error!(file = problem.file, "{}", problem.message);
            } else {
                tracing::warn!(file = problem.file, "{}", problem.message);
            }
        }
        let is_kept =
            |one: &&Adopted| loaded.broken.contains(one.server()) && !one.settings().source.added;
        let mut kept = ServerMap::new();
        for one in adopted.iter().filter(is_kept) {
            tracing::error!(server = %one.server(), "its file cannot be used: it goes on as it was");
            kept.insert(one.server().clone(), one.settings().clone());
        }
        let (mut servers, mut faults) = bad_files::sort(&loaded, &kept, paths);
        // What was added has no file, so that none can be used says nothing of it.
        for (name, settings) in &added.servers {
            servers.entry(name.clone()).or_insert_with(|| settings.clone());
            faults.servers.remove(name);
        }
        for (name, bad) in &faults.servers {
            tracing::error!(server = %name, "not started: {}", bad.reason);
        }
        let (broken, texts) = (loaded.broken, loaded.bad.texts);
        Ok(Self { servers, broken, faults, settings: loaded.settings, texts })
    }
}
