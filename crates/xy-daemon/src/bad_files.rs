//! The rules for bad configuration files: which ones a daemon accepts, and what happens to their
//! servers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_config::{BrokenServers, LoadedConfig, Paths};
use xy_protocol::control::{Problem, Severity};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::reload::ServerMap;

/// Maximum number of problems reported per server, and of warnings. Users fix the first few, then
/// check again.
const MAX_PROBLEMS: usize = 20;

/// Maximum length of a reason, in characters. It is shown in one line of `list`.
const MAX_REASON: usize = 200;

/// The options that decide whether a bad file keeps a daemon from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strictness {
    /// `--strict` or `--lenient`, if given.
    pub flag: Option<bool>,
    /// True if a user reads the daemon's output, as it runs in the foreground.
    pub is_foreground: bool,
}

/// Returns true if a daemon may start with these files. The flag overrides `xy.kdl`, which
/// overrides the default. A daemon with living servers to adopt always starts: bad files must not
/// end them.
pub(crate) fn may_start(by: Strictness, loaded: &LoadedConfig, has_living: bool) -> bool {
    let is_strict = by.flag.or(loaded.settings.strict).unwrap_or(by.is_foreground);
    let mut errors = loaded.problems.iter().filter(|it| it.is_error());
    has_living || errors.all(|it| !is_strict && loaded.bad.is_contained(it))
}

/// Returns true if a reload may change anything: every bad file must have been bad before.
pub(crate) fn may_reload(loaded: &LoadedConfig, before: &Faults) -> bool {
    let mut errors = loaded.problems.iter().filter(|it| it.is_error());
    errors.all(|it| loaded.bad.is_contained(it) && before.files.contains(&it.file))
}

/// The problems of the files that a daemon has accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// The servers that have failed because of their files.
    pub(crate) servers: BTreeMap<ServerName, BadFile>,
    /// All files with errors, as reports show them.
    pub(crate) files: BTreeSet<String>,
    /// Warnings about files that belong to no single server.
    pub(crate) warnings: Vec<String>,
    /// True if the last good version of `xy.kdl` is in use.
    pub(crate) has_old_settings: bool,
}

impl Faults {
    /// Removes a server whose file is good or gone. Other servers may be configured in the same
    /// file.
    pub(crate) fn forget(&mut self, name: &ServerName, shown: &str) {
        self.servers.remove(name);
        if !self.servers.values().any(|it| it.shown == shown) {
            self.files.remove(shown);
        }
    }
}

/// A file that keeps its server from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadFile {
    /// The path of the file.
    pub(crate) file: PathBuf,
    /// The name of the file in reports.
    pub(crate) shown: String,
    /// The problems of the file, errors first.
    pub(crate) problems: Vec<Problem>,
    /// The problems in one line.
    pub(crate) reason: String,
    /// The remedy for the file's folder, if the file is unused because of its folder.
    pub(crate) remedy: Option<String>,
}

impl BadFile {
    fn new(file: PathBuf, paths: &Paths, problems: Vec<Problem>) -> Self {
        let shown = paths.shown(&file);
        let reason = format!("its file cannot be used: {}", summary(&problems, &shown));
        Self { file, shown, problems, reason, remedy: None }
    }

    /// Returns the error for any request to the server.
    pub(crate) fn refusal(&self, name: &ServerName) -> CallError {
        CallError::new(ErrorKind::ConfigInvalid, format!("server `{name}` has failed"))
            .cause(&self.reason)
            .hint(self.hint())
            .problems(self.problems.clone())
    }

    /// Returns the hint that tells the user how to repair the file.
    pub(crate) fn hint(&self) -> String {
        match &self.remedy {
            Some(remedy) => format!("{remedy}, then run `xy reload`"),
            None => {
                format!("fix `{}`, test it with `xy check`, then run `xy reload`", self.shown)
            }
        }
    }
}

/// Returns the first error, preferably one with a line, and the number of other errors.
fn summary(problems: &[Problem], shown: &str) -> String {
    let errors: Vec<_> = problems.iter().filter(|it| it.severity == Severity::Error).collect();
    let placed = errors.iter().find(|it| it.line.is_some());
    let Some(first) = placed.or(errors.first()) else { return format!("see `{shown}`") };
    let line = first.line.map(|line| format!(":{line}")).unwrap_or_default();
    let mut message: String = first.message.chars().take(MAX_REASON).collect();
    if message.len() < first.message.len() {
        message.push('…');
    }
    let others = match errors.len() {
        1 => String::new(),
        2 => " (and 1 more error)".to_owned(),
        n => format!(" (and {} more errors)", n - 1),
    };
    format!("{}{line}: {message}{others}", first.file)
}

/// Divides the servers into those that run with these files and those that have failed because of
/// them. `kept` holds the servers whose last good settings are known.
pub(crate) fn sort(loaded: &LoadedConfig, kept: &ServerMap, paths: &Paths) -> (ServerMap, Faults) {
    let of_file = |is_meant: &dyn Fn(&xy_config::Problem) -> bool| {
        let mut problems: Vec<_> =
            loaded.problems.iter().filter(|it| is_meant(it)).map(Problem::from).collect();
        // Stable: keeps the order by location.
        problems.sort_by_key(|it| it.severity != Severity::Error);
        problems.truncate(MAX_PROBLEMS);
        problems
    };
    let mut failed = BTreeMap::new();
    for (name, file) in &loaded.bad.servers {
        let shown = paths.shown(file);
        let problems = of_file(&|it| loaded.bad.is_about(it, file, &shown));
        let of_folder = problems.iter().find(|it| loaded.bad.folders.contains_key(&it.file));
        let remedy = of_folder.and_then(|it| it.suggestion.clone());
        let bad = BadFile { remedy, ..BadFile::new(file.clone(), paths, problems) };
        failed.insert(name.clone(), bad);
    }
    let mut servers = loaded.settings.servers.clone();
    if loaded.broken == BrokenServers::All {
        // The settings that apply to all servers are unknown.
        for (name, settings) in std::mem::take(&mut servers) {
            let problems = of_file(&|it| !loaded.bad.contained.contains(&it.file));
            failed.insert(name, BadFile::new(settings.source.file.clone(), paths, problems));
        }
    }
    for (name, settings) in kept {
        let mut settings = ServerSettings::clone(settings);
        settings.source.is_outdated = true;
        failed.remove(name);
        if let Some(port) = settings.port() {
            yield_port(port, &settings, &mut servers, &mut failed, paths);
        }
        servers.insert(name.clone(), Arc::new(settings));
    }
    let errors = || loaded.problems.iter().filter(|it| it.is_error());
    let is_of_server = |file: &str| {
        failed.values().any(|it| it.shown == file)
            || kept.values().any(|it| paths.shown(&it.source.file) == file)
    };
    let replaced = loaded.bad.replaced.iter().map(|file| {
        format!("`{file}` cannot be used, so its last good version is in use: see `xy check`")
    });
    let mut reported = BTreeSet::new();
    let nameless = errors()
        .filter(|it| loaded.bad.contained.contains(&it.file) && !is_of_server(&it.file))
        .filter(|it| reported.insert(&it.file))
        .map(|it| {
            let message = it.message.trim_start_matches("not used: ");
            format!("`{}` is not used: {message}: see `xy check`", it.file)
        });
    let faults = Faults {
        files: errors().map(|it| it.file.clone()).collect(),
        warnings: replaced.chain(nameless).take(MAX_PROBLEMS).collect(),
        has_old_settings: loaded.bad.replaced.contains(&paths.shown(&paths.daemon_file)),
        servers: failed,
    };
    (servers, faults)
}

/// Takes the port of a living server from servers with good files, which then fail. The living
/// server's own file cannot be used.
fn yield_port(
    port: u16,
    holder: &ServerSettings,
    servers: &mut ServerMap,
    failed: &mut BTreeMap<ServerName, BadFile>,
    paths: &Paths,
) {
    let is_other = |it: &Arc<ServerSettings>| it.port() == Some(port) && it.name != holder.name;
    let others: Vec<_> = servers.values().filter(|it| is_other(it)).cloned().collect();
    for other in others {
        servers.remove(&other.name);
        let file = other.source.file.clone();
        let message = port_taken(port, holder);
        let problem = Problem {
            severity: Severity::Error,
            rendered: format!("error: {message}\n"),
            message,
            file: paths.shown(&file),
            line: None,
            column: None,
            suggestion: Some("give one of them another port".to_owned()),
        };
        failed.insert(other.name.clone(), BadFile::new(file, paths, vec![problem]));
    }
}

/// Returns the error for reloading settings that claim the port of another living server. Only a
/// reload of all files may change that server's port.
pub(crate) fn port_conflict(claiming: &ServerSettings, living: &ServerMap) -> Option<CallError> {
    let port = claiming.port()?;
    let is_holder = |it: &&Arc<ServerSettings>| it.port() == Some(port) && it.name != claiming.name;
    let holder = living.values().find(is_holder)?;
    let message = format!("server `{}` was not reloaded", claiming.name);
    Some(
        CallError::new(ErrorKind::PortConflict, message)
            .cause(port_taken(port, holder))
            .hint("give one of them another port, then run `xy reload`"),
    )
}

fn port_taken(port: u16, holder: &ServerSettings) -> String {
    format!("port {port} is already used by `{}`", holder.name)
}

#[cfg(test)]
mod tests;
