//! Reads the configuration files. Apart from `trust.rs`, which inspects owners and modes, nothing
//! else in this crate touches a disk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xy_protocol::server::ServerName;

use crate::bad_files::{LastGood, PriorState};
pub use crate::check::MAX_SERVER_FILES;
use crate::check::{
    BrokenServers, FileText, LimitSupport, LoadedConfig, Machine, PathKind, Texts, UnknownMachine,
    check, check_all,
};
use crate::environment::{ENVIRONMENT, supervisor_enabled};
use crate::paths::Paths;
use crate::profile::{DEFAULT_PROFILE, ProfileSettings};
use crate::report::{Problem, ProblemKind};
use crate::supervision::Supervision;
use crate::trust::{self, TrustError};

/// Maximum size of a configuration file.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Maximum size of an MCP client's file. Some clients store much else beside their servers.
pub const MAX_MCP_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum number of profiles.
pub const MAX_PROFILE_FILES: usize = 200;

/// Reads and checks all files, for a machine that supports these limits.
pub fn load(paths: &Paths, limits: &LimitSupport) -> LoadedConfig {
    load_with(paths, limits, &PriorState::default())
}

/// Reads and checks all files, with the state of an earlier daemon.
///
/// If `xy.kdl` or a profile cannot be used, its last good text is used. Of two servers with the
/// same port, the running one keeps it, or the first by name.
pub fn load_with(paths: &Paths, limits: &LimitSupport, earlier: &PriorState) -> LoadedConfig {
    let mut files = Files::read(paths);
    let mut loaded = files.check(paths, limits);
    let replaced = files.replace_bad(&loaded.problems, &earlier.last_good);
    let has_port_conflict = !earlier.living.is_empty()
        && loaded.problems.iter().any(|it| it.kind == ProblemKind::PortConflict);
    if has_port_conflict {
        files.move_first(&earlier.living);
    }
    if has_port_conflict || !replaced.is_empty() {
        let first = std::mem::replace(&mut loaded, files.check(paths, limits));
        report_replaced(&mut loaded, &first.problems, replaced);
    }
    let contained_folders =
        files.untrusted.iter().filter(|folder| files.is_contained(folder, &loaded));
    let contained_folders: Vec<_> = contained_folders.map(|folder| paths.shown(folder)).collect();
    loaded.bad.contained.extend(contained_folders);
    loaded.bad.folders =
        files.untrusted.iter().map(|folder| (paths.shown(folder), folder.clone())).collect();
    loaded.broken = broken(paths, &files.listed, &loaded);
    let left_out = |path: &PathBuf| {
        let name = ServerName::new(path.file_stem()?.to_str()?).ok()?;
        let is_used = loaded.settings.servers.contains_key(&name);
        (!is_used && !loaded.self_references.contains_key(&name)).then(|| (name, path.clone()))
    };
    let left_out: Vec<_> = files.listed.iter().filter_map(left_out).collect();
    loaded.bad.servers.extend(left_out);
    let texts = files.daemon_file.iter().chain(&files.profiles);
    let good = texts.filter(|it| is_good(&loaded, &it.shown));
    loaded.bad.texts = good.map(|it| (it.shown.clone(), it.text.clone())).collect();
    loaded
}

fn is_good(loaded: &LoadedConfig, shown: &str) -> bool {
    loaded.bad.replaced.contains(shown)
        || !loaded.problems.iter().any(|it| it.is_error() && it.file == shown)
}

/// The files on disk, except those of MCP clients, which `xy.kdl` names.
struct Files {
    daemon_path: PathBuf,
    daemon_shown: String,
    daemon_file: Option<FileText>,
    /// All server files, including unreadable ones.
    listed: Vec<PathBuf>,
    servers: Vec<FileText>,
    /// All profiles, including unreadable ones, and their names in reports.
    listed_profiles: Vec<(PathBuf, String)>,
    profiles: Vec<FileText>,
    /// The configuration folders that other users can write.
    untrusted: BTreeSet<PathBuf>,
    /// True if an earlier daemon has stored the last good texts of these files.
    has_last_good: bool,
    /// The problems of files that could not be read.
    problems: Vec<Problem>,
}

impl Files {
    fn read(paths: &Paths) -> Self {
        let mut problems: Vec<Problem> = Vec::new();
        let daemon_file = daemon_file(paths, &mut problems);
        let listed = kdl_files(paths, &paths.servers_dir, MAX_SERVER_FILES, &mut problems);
        let profiles = kdl_files(paths, &paths.profiles_dir, MAX_PROFILE_FILES, &mut problems);
        let mut read = |listed: &[PathBuf]| -> Vec<FileText> {
            let read = listed.iter().map(|path| read_file(paths, path));
            read.filter_map(|it| it.map_err(|problem| push_unique(&mut problems, problem)).ok())
                .collect()
        };
        let (servers, read_profiles) = (read(&listed), read(&profiles));
        let shown = |path: PathBuf| {
            let shown = paths.shown(&path);
            (path, shown)
        };
        Self {
            daemon_path: paths.daemon_file.clone(),
            daemon_shown: paths.shown(&paths.daemon_file),
            daemon_file,
            listed,
            servers,
            listed_profiles: profiles.into_iter().map(shown).collect(),
            profiles: read_profiles,
            untrusted: untrusted_folders(paths),
            has_last_good: false,
            problems,
        }
    }

    fn check(&self, paths: &Paths, limits: &LimitSupport) -> LoadedConfig {
        let mut problems = self.problems.clone();
        let named = self.daemon_file.as_ref().map(client_files).unwrap_or_default();
        let clients = mcp_files(paths, &named, &mut problems);
        let texts = Texts { servers: &self.servers, clients: &clients, profiles: &self.profiles };
        let mut loaded = check_all(self.daemon_file.as_ref(), texts, &LocalMachine { limits });
        close_unread(&self.listed_profiles, &mut loaded);
        let folder = paths.shown(&paths.profiles_dir);
        let is_replaceable = self.has_last_good && self.untrusted.contains(&paths.profiles_dir);
        if !is_replaceable && problems.iter().any(|it| it.is_error() && it.file == folder) {
            // An unreadable folder may hold a `default.kdl` that hides something.
            let closed = || Arc::new(ProfileSettings::closed(DEFAULT_PROFILE, &folder));
            loaded.settings.profiles.entry(DEFAULT_PROFILE.to_owned()).or_insert_with(closed);
        }
        loaded.settings.mcp_json = paths.mcp_json.iter().cloned().chain(named).collect();
        loaded.server_files = self.listed.len() + loaded.settings.mcp_json.len();
        loaded.files = usize::from(exists(&paths.daemon_file))
            + loaded.server_files
            + self.listed_profiles.len();
        problems.append(&mut loaded.problems);
        loaded.problems = problems;
        let contained = self.listed.iter().chain(&loaded.settings.mcp_json);
        loaded.bad.contained = contained.map(|path| paths.shown(path)).collect();
        loaded
    }

    /// Replaces each file that has an error and must not be left out by its last good text. In a
    /// folder that other users can write, every file counts as bad, even a missing one. Returns the
    /// names of the replaced files in reports.
    fn replace_bad(&mut self, problems: &[Problem], last_good: &LastGood) -> BTreeSet<String> {
        self.has_last_good = !last_good.is_empty();
        self.list_removed_profiles(last_good);
        let untrusted = &self.untrusted;
        let is_bad = |path: &Path, shown: &str| {
            problems.iter().any(|it| it.is_error() && it.file == shown)
                || untrusted.iter().any(|folder| path.starts_with(folder))
        };
        let good = |path: &PathBuf, shown: &String| {
            let text = last_good.get(shown).filter(|_| is_bad(path, shown))?.clone();
            Some(FileText { path: path.clone(), shown: shown.clone(), text })
        };
        let mut replaced = BTreeSet::new();
        if let Some(file) = good(&self.daemon_path, &self.daemon_shown) {
            replaced.insert(file.shown.clone());
            self.daemon_file = Some(file);
        }
        for (path, shown) in &self.listed_profiles {
            let Some(file) = good(path, shown) else { continue };
            replaced.insert(shown.clone());
            self.profiles.retain(|it| it.shown != *shown);
            self.profiles.push(file);
        }
        self.problems.retain(|it| !replaced.contains(&it.file));
        replaced
    }

    /// Adds the profiles that an earlier daemon had, and that another user may have removed.
    fn list_removed_profiles(&mut self, last_good: &LastGood) {
        let Some(config_dir) = self.daemon_path.parent() else { return };
        for shown in last_good.keys().filter(|it| **it != self.daemon_shown) {
            let path = config_dir.join(shown);
            let is_untrusted = self.untrusted.iter().any(|folder| path.starts_with(folder));
            if is_untrusted && !self.listed_profiles.iter().any(|(_, listed)| listed == shown) {
                self.listed_profiles.push((path, shown.clone()));
            }
        }
    }

    /// Returns true if all files in an untrusted folder that affect all servers have been replaced
    /// by their last good texts.
    fn is_contained(&self, folder: &Path, loaded: &LoadedConfig) -> bool {
        let is_replaced = |path: &Path, shown: &String| {
            !path.starts_with(folder) || loaded.bad.replaced.contains(shown)
        };
        (!exists(&self.daemon_path) || is_replaced(&self.daemon_path, &self.daemon_shown))
            && self.listed_profiles.iter().all(|(path, shown)| is_replaced(path, shown))
    }

    /// Sorts these servers first, so that they claim their ports before all others.
    fn move_first(&mut self, living: &BTreeSet<ServerName>) {
        let name = |file: &FileText| ServerName::new(file.path.file_stem()?.to_str()?).ok();
        self.servers.sort_by_key(|file| !name(file).is_some_and(|it| living.contains(&it)));
    }
}

/// Reports the problems of the files, and not those of the texts that are used instead. A last good
/// text that is no longer valid under new rules replaces nothing.
fn report_replaced(loaded: &mut LoadedConfig, first: &[Problem], replaced: BTreeSet<String>) {
    let (of_texts, others): (Vec<_>, Vec<_>) =
        loaded.problems.drain(..).partition(|it| replaced.contains(&it.file));
    loaded.problems.extend(first.iter().filter(|it| replaced.contains(&it.file)).cloned());
    for shown in replaced {
        if !of_texts.iter().any(|it| it.is_error() && it.file == shown) {
            let message = "a daemon uses the last good version of this file";
            let problem = Problem::in_file(&shown, message).warn();
            loaded.problems.push(problem.suggest("fix the file, then run `xy reload`"));
            loaded.bad.replaced.insert(shown);
        }
    }
    loaded.problems.extend(others);
}

/// Checks the settings of a new server as if `file` were on disk. Uses the daemon's own file or its
/// last good text for defaults, and ignores all other files.
pub fn check_new(
    paths: &Paths,
    limits: &LimitSupport,
    file: &FileText,
    last_good: &LastGood,
) -> LoadedConfig {
    let mut problems = Vec::new();
    let mut daemon_file = daemon_file(paths, &mut problems);
    let shown = paths.shown(&paths.daemon_file);
    let is_bad = |file: &FileText| !check(Some(file), &[], &LocalMachine { limits }).is_valid();
    if (!problems.is_empty() || daemon_file.as_ref().is_some_and(is_bad))
        && let Some(text) = last_good.get(&shown).cloned()
    {
        problems.clear();
        daemon_file = Some(FileText { path: paths.daemon_file.clone(), shown, text });
    }
    let mut loaded =
        check(daemon_file.as_ref(), std::slice::from_ref(file), &LocalMachine { limits });
    problems.append(&mut loaded.problems);
    loaded.problems = problems;
    loaded
}

/// Returns whether servers are supervised. Ignores a file that cannot be read, which is reported
/// when a daemon starts. Returns an error if the environment variable cannot be parsed.
pub fn supervision(paths: &Paths) -> Result<Supervision, Problem> {
    let environment = supervisor_enabled(|name| std::env::var_os(name))?;
    let file = daemon_file(paths, &mut Vec::new());
    let in_file =
        file.and_then(|file| check(Some(&file), &[], &UnknownMachine).settings.supervisor);
    Ok(Supervision::of((&paths.shown(&paths.daemon_file), in_file), environment))
}

/// Adds profiles that show nothing for files that exist and could not be read.
fn close_unread(profiles: &[(PathBuf, String)], loaded: &mut LoadedConfig) {
    for (path, shown) in profiles {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if ServerName::new(name).is_ok() {
            let closed = || Arc::new(ProfileSettings::closed(name, shown));
            loaded.settings.profiles.entry(name.to_owned()).or_insert_with(closed);
        }
    }
}

/// Returns the files of MCP clients that the daemon's own file names. Its problems are reported
/// when all files are checked.
fn client_files(daemon_file: &FileText) -> Vec<PathBuf> {
    check(Some(daemon_file), &[], &UnknownMachine).settings.mcp_json
}

/// Reads the files of MCP clients, each once: those of the command line and those that the daemon's
/// own file names. A missing file is an error, since the user named it.
fn mcp_files(paths: &Paths, named: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<FileText> {
    let (mut read, mut seen) = (Vec::new(), BTreeSet::new());
    for path in paths.mcp_json.iter().chain(named).filter(|path| seen.insert(*path)) {
        let file = if exists(path) {
            read_bounded(paths, path, MAX_MCP_FILE_BYTES)
        } else {
            let problem = Problem::in_file(&paths.shown(path), "the file does not exist");
            let advice = if paths.mcp_json.contains(path) {
                "fix the path after `--mcp-json`, or leave it out"
            } else {
                "fix the path after `mcp-json` in `xy.kdl`, or remove it"
            };
            Err(problem.kind(ProblemKind::Unreadable).suggest(advice))
        };
        read.extend(file.map_err(|problem| push_unique(problems, problem)));
    }
    read
}

/// Returns the servers whose files exist and cannot be used.
fn broken(paths: &Paths, listed: &[PathBuf], loaded: &LoadedConfig) -> BrokenServers {
    let folders = [&*paths.daemon_file, &paths.servers_dir, &paths.config_dir, config_home(paths)];
    let for_all = folders.map(|path| paths.shown(path));
    let is_for_all = |file: &String| {
        let is_contained =
            loaded.bad.replaced.contains(file) || loaded.bad.contained.contains(file);
        (for_all.contains(file) || file == ENVIRONMENT) && !is_contained
    };
    if loaded.problems.iter().any(|it| it.is_error() && is_for_all(&it.file)) {
        return BrokenServers::All;
    }
    let all_except_loaded =
        || BrokenServers::AllExcept(loaded.settings.servers.keys().cloned().collect());
    // A missing folder was probably not emptied file by file: a disk may be missing. In a folder
    // that other users can write, files may have been removed.
    let is_untrusted = |folder: &PathBuf| paths.servers_dir.starts_with(folder);
    if !exists(&paths.servers_dir) || loaded.bad.folders.values().any(is_untrusted) {
        return all_except_loaded();
    }
    // The servers of a client's file that is missing or unreadable are unknown, too.
    let is_lost = |path: &PathBuf| {
        let shown = paths.shown(path);
        loaded.problems.iter().any(|it| it.kind == ProblemKind::Unreadable && it.file == shown)
    };
    if loaded.settings.mcp_json.iter().any(is_lost) {
        return all_except_loaded();
    }
    let names = listed.iter().filter_map(|path| ServerName::new(path.file_stem()?.to_str()?).ok());
    let of_clients = match &loaded.broken {
        BrokenServers::Only(names) => names.clone(),
        BrokenServers::All | BrokenServers::AllExcept(_) => return all_except_loaded(),
    };
    let is_not_used = |name: &ServerName| {
        !loaded.settings.servers.contains_key(name) && !loaded.self_references.contains_key(name)
    };
    BrokenServers::Only(names.filter(is_not_used).chain(of_clients).collect())
}

/// Reads the daemon's own file, if it exists.
fn daemon_file(paths: &Paths, problems: &mut Vec<Problem>) -> Option<FileText> {
    if !exists(&paths.daemon_file) {
        return None;
    }
    read_file(paths, &paths.daemon_file).map_err(|problem| push_unique(problems, problem)).ok()
}

/// Adds a problem, unless it was added before: each file of an untrusted folder reports the same
/// one.
fn push_unique(problems: &mut Vec<Problem>, problem: Problem) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// Returns the KDL files of a folder, sorted by name.
fn kdl_files(
    paths: &Paths,
    folder: &Path,
    limit: usize,
    problems: &mut Vec<Problem>,
) -> Vec<PathBuf> {
    let unreadable = |cause: &io::Error| {
        Problem::in_file(&paths.shown(folder), format!("the folder cannot be read: {cause}"))
            .kind(ProblemKind::Unreadable)
            .suggest("make it a folder that you can read, or remove it")
    };
    if !exists(folder) {
        return Vec::new();
    }
    let mut names: Vec<OsString> = Vec::new();
    let entries = fs::read_dir(folder).map_err(|cause| problems.push(unreadable(&cause)));
    for entry in entries.into_iter().flatten() {
        match entry {
            Ok(entry) if is_kdl_file(&entry.file_name()) => names.push(entry.file_name()),
            Ok(_) => {}
            Err(cause) => {
                problems.push(unreadable(&cause));
                break;
            }
        }
    }
    names.sort();
    if names.len() > limit {
        let kind = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let message = format!("there are {} {} files", names.len(), kind.trim_end_matches('s'));
        let problem = Problem::in_file(&paths.shown(folder), message);
        problems.push(problem.suggest(format!("xy reads at most {limit}")));
        names.truncate(limit);
    }
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Returns true for a visible `.kdl` file. Editors' backups are hidden or end otherwise.
fn is_kdl_file(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.ends_with(b".kdl") && !bytes.starts_with(b".") && !bytes.starts_with(b"#")
}

/// Returns true if anything is at a path, even a dangling link.
fn exists(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(cause) => cause.kind() != io::ErrorKind::NotFound,
    }
}

fn read_file(paths: &Paths, path: &Path) -> Result<FileText, Problem> {
    read_bounded(paths, path, MAX_FILE_BYTES)
}

fn read_bounded(paths: &Paths, path: &Path, limit: u64) -> Result<FileText, Problem> {
    let shown = paths.shown(path);
    let unreadable = |message: String, advice: &str| {
        Problem::in_file(&shown, message).kind(ProblemKind::Unreadable).suggest(advice)
    };
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => {
            unreadable(format!("the link is dangling: {cause}"), "fix the link, or remove it")
        }
        io::ErrorKind::PermissionDenied => {
            unreadable(format!("the file cannot be read: {cause}"), "allow it with `chmod u+r`")
        }
        _ => unreadable(format!("the file cannot be read: {cause}"), "fix or remove it"),
    };
    let found = fs::metadata(path).map_err(system)?;
    if !found.is_file() {
        let kind = if found.is_dir() { "a folder" } else { "not a regular file" };
        return Err(unreadable(format!("this is {kind}"), "put a file there, or rename it"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(system)?;
    check_trust(paths, path, &file.metadata().map_err(system)?).map_err(|untrusted| {
        // A folder of xy is a problem of its own; another folder is a problem of this file.
        let is_in_config_home = untrusted.path.starts_with(config_home(paths));
        let about = if is_in_config_home { paths.shown(&untrusted.path) } else { shown.clone() };
        let problem = Problem::in_file(&about, format!("not used: {untrusted}"));
        problem.kind(ProblemKind::Unreadable).suggest(untrusted.remedy())
    })?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(system)?;
    if bytes.len() as u64 > limit {
        let message = format!("the file is larger than {} MiB", limit >> 20);
        return Err(unreadable(
            message,
            "a server needs only a few lines; is this the right file?",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|cause| {
        let offset = cause.utf8_error().valid_up_to();
        let line = cause.as_bytes()[..offset].split(|&byte| byte == b'\n').count();
        unreadable(format!("line {line} is not UTF-8"), "save the file as UTF-8")
    })?;
    Ok(FileText { path: path.to_owned(), shown, text })
}

/// Checks that a file and its folders are trusted, up to the XDG folder or the one that holds it.
/// Behind a link, also checks the folder that it leads to.
fn check_trust(paths: &Paths, path: &Path, found: &fs::Metadata) -> Result<(), TrustError> {
    trust::check(path, found)?;
    let home = config_home(paths);
    match path.parent().filter(|folder| folder.starts_with(home)) {
        Some(folder) => trust::check_folders(folder, home)?,
        None => trust::check_folder_of(path)?,
    }
    fs::canonicalize(path).map_or(Ok(()), |real| trust::check_folder_of(&real))
}

/// Returns the configuration folders that other users can write.
fn untrusted_folders(paths: &Paths) -> BTreeSet<PathBuf> {
    let folders = [&paths.servers_dir, &paths.profiles_dir, &paths.config_dir];
    let check = |folder: &PathBuf| trust::check_folders(folder, config_home(paths));
    folders.into_iter().filter_map(|folder| check(folder).err()).map(|it| it.path).collect()
}

/// Returns the XDG folder that holds the configuration.
fn config_home(paths: &Paths) -> &Path {
    paths.config_dir.parent().unwrap_or(&paths.config_dir)
}

/// The machine that this process runs on.
struct LocalMachine<'a> {
    limits: &'a LimitSupport,
}

impl Machine for LocalMachine<'_> {
    fn home(&self) -> Option<PathBuf> {
        etcetera::home_dir().ok()
    }

    fn search_path(&self) -> Option<OsString> {
        std::env::var_os("PATH")
    }

    fn inspect(&self, path: &Path) -> PathKind {
        match fs::metadata(path) {
            Err(_) => PathKind::Missing,
            Ok(found) if found.is_dir() => PathKind::Folder,
            Ok(found) if is_executable(&found) => PathKind::Program,
            Ok(_) => PathKind::File,
        }
    }

    #[cfg(unix)]
    fn others_can_read(&self, path: &Path) -> Option<bool> {
        Some(others_can_read(path))
    }

    fn is_this_program(&self, path: &Path) -> bool {
        // The running program is known by its file, even if another file has taken its name since.
        let running = Path::new("/proc/self/exe");
        let this = fs::metadata(running).or_else(|_| fs::metadata(std::env::current_exe()?));
        let (Ok(this), Ok(that)) = (this, fs::metadata(path)) else { return false };
        is_same_file(&this, &that)
    }

    fn limits(&self) -> LimitSupport {
        self.limits.clone()
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

#[cfg(unix)]
fn is_executable(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    found.permissions().mode() & 0o111 != 0
}

/// Returns true if other users can read a file, by its mode and those of its parent folders. A
/// group with the same id as its user counts as private.
#[cfg(unix)]
fn others_can_read(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(path) = fs::canonicalize(path) else { return false };
    let allows = |path: &Path, group: u32, other: u32| {
        let Ok(found) = fs::metadata(path) else { return (false, false) };
        let is_shared = found.gid() != found.uid();
        (is_shared && found.mode() & group != 0, found.mode() & other != 0)
    };
    let (mut group, mut other) = allows(&path, 0o040, 0o004);
    for folder in path.ancestors().skip(1) {
        let Ok(found) = fs::metadata(folder) else { return false };
        group &= found.mode() & 0o011 != 0;
        other &= found.mode() & 0o001 != 0;
    }
    group || other
}

#[cfg(unix)]
fn is_same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests;
