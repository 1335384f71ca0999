//! Reads the files. Besides `trust.rs`, which looks at owners and modes, nothing else in this
//! crate touches a disk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xy_protocol::server::ServerName;

use crate::bad_files::{Earlier, LastGood};
use crate::check::{
    Anywhere, Broken, FileText, Found, KeptLimits, Loaded, Surroundings, Texts, check, check_all,
};
use crate::environment::{ENVIRONMENT, supervisor_enabled};
use crate::paths::Paths;
use crate::profile::{DEFAULT_PROFILE, ProfileSettings};
use crate::report::{Kind, Problem};
use crate::supervision::Supervision;
use crate::trust::{self, Untrusted};

/// A longer file is not a configuration.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// A longer file of an MCP client is not one. Some keep much else beside their servers.
pub const MAX_MCP_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum number of server files.
pub const MAX_SERVER_FILES: usize = 1000;
/// Maximum number of profiles.
pub const MAX_PROFILE_FILES: usize = 200;

/// Reads and judges all files, on a machine that keeps these limits.
pub fn load(paths: &Paths, limits: &KeptLimits) -> Loaded {
    load_after(paths, limits, &Earlier::default())
}

/// Reads and judges all files. Where `xy.kdl` or a profile cannot be used, its last good text
/// is; of two servers with one port the living one keeps it, else the first by name.
pub fn load_after(paths: &Paths, limits: &KeptLimits, earlier: &Earlier) -> Loaded {
    let mut files = Files::read(paths);
    let mut loaded = files.judge(paths, limits);
    let replaced = files.replace_bad(&loaded.problems, &earlier.last_good);
    let is_contested = !earlier.living.is_empty()
        && loaded.problems.iter().any(|it| it.kind == Kind::PortConflict);
    if is_contested {
        files.put_first(&earlier.living);
    }
    if is_contested || !replaced.is_empty() {
        let first = std::mem::replace(&mut loaded, files.judge(paths, limits));
        tell_replaced(&mut loaded, &first.problems, replaced);
    }
    let contained = files.untrusted.iter().filter(|folder| files.is_contained(folder, &loaded));
    let contained: Vec<_> = contained.map(|folder| paths.shown(folder)).collect();
    loaded.bad.contained.extend(contained);
    loaded.bad.folders =
        files.untrusted.iter().map(|folder| (paths.shown(folder), folder.clone())).collect();
    loaded.broken = broken(paths, &files.listed, &loaded);
    let left_out = |path: &PathBuf| {
        let name = ServerName::new(path.file_stem()?.to_str()?).ok()?;
        let is_used = loaded.settings.servers.contains_key(&name);
        (!is_used && !loaded.itself.contains_key(&name)).then(|| (name, path.clone()))
    };
    let left_out: Vec<_> = files.listed.iter().filter_map(left_out).collect();
    loaded.bad.servers.extend(left_out);
    let texts = files.daemon_file.iter().chain(&files.profiles);
    let good = texts.filter(|it| is_good(&loaded, &it.shown));
    loaded.bad.texts = good.map(|it| (it.shown.clone(), it.text.clone())).collect();
    loaded
}

fn is_good(loaded: &Loaded, shown: &str) -> bool {
    loaded.bad.replaced.contains(shown)
        || !loaded.problems.iter().any(|it| it.is_error() && it.file == shown)
}

/// What is on the disk, but for the files of MCP clients: `xy.kdl` names those.
struct Files {
    daemon_path: PathBuf,
    daemon_shown: String,
    daemon_file: Option<FileText>,
    /// The server files, read or not.
    listed: Vec<PathBuf>,
    servers: Vec<FileText>,
    /// The profiles, read or not, and the names that reports show.
    listed_profiles: Vec<(PathBuf, String)>,
    profiles: Vec<FileText>,
    /// Folders of the configuration that others may write.
    untrusted: BTreeSet<PathBuf>,
    /// True if an earlier daemon has stored the last good texts of these files.
    has_last_good: bool,
    /// What could not be read.
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
            read.filter_map(|it| it.map_err(|problem| tell_once(&mut problems, problem)).ok())
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

    fn judge(&self, paths: &Paths, limits: &KeptLimits) -> Loaded {
        let mut problems = self.problems.clone();
        let named = self.daemon_file.as_ref().map(client_files).unwrap_or_default();
        let clients = mcp_files(paths, &named, &mut problems);
        let texts = Texts { servers: &self.servers, clients: &clients, profiles: &self.profiles };
        let mut loaded = check_all(self.daemon_file.as_ref(), texts, &Machine { limits });
        close_unread(&self.listed_profiles, &mut loaded);
        let folder = paths.shown(&paths.profiles_dir);
        let is_known = self.has_last_good && self.untrusted.contains(&paths.profiles_dir);
        if !is_known && problems.iter().any(|it| it.is_error() && it.file == folder) {
            // Its `default.kdl`, if there is one, may hide something.
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

    /// Takes the last good text of each file that has an error and may not be left out. In a
    /// folder that others may write, each file counts as one, also if it is gone. Returns the
    /// files by the names that reports show.
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

    /// Lists the profiles that an earlier daemon had, and that another user may have removed.
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

    /// Returns true if all files in an untrusted folder that hold for all servers have been
    /// replaced by their last good texts.
    fn is_contained(&self, folder: &Path, loaded: &Loaded) -> bool {
        let is_replaced = |path: &Path, shown: &String| {
            !path.starts_with(folder) || loaded.bad.replaced.contains(shown)
        };
        (!exists(&self.daemon_path) || is_replaced(&self.daemon_path, &self.daemon_shown))
            && self.listed_profiles.iter().all(|(path, shown)| is_replaced(path, shown))
    }

    /// Has these servers claim their ports before all others.
    fn put_first(&mut self, living: &BTreeSet<ServerName>) {
        let name = |file: &FileText| ServerName::new(file.path.file_stem()?.to_str()?).ok();
        self.servers.sort_by_key(|file| !name(file).is_some_and(|it| living.contains(&it)));
    }
}

/// Reports the mistakes of the files, and not those of the texts that are used instead. A text
/// that is not good any more, as the rules have changed, replaces nothing.
fn tell_replaced(loaded: &mut Loaded, first: &[Problem], replaced: BTreeSet<String>) {
    let (of_texts, others): (Vec<_>, Vec<_>) =
        loaded.problems.drain(..).partition(|it| replaced.contains(&it.file));
    loaded.problems.extend(first.iter().filter(|it| replaced.contains(&it.file)).cloned());
    for shown in replaced {
        if !of_texts.iter().any(|it| it.is_error() && it.file == shown) {
            let message = "a daemon uses the last good version of this file";
            let problem = Problem::in_file(&shown, message).warn();
            loaded.problems.push(problem.suggest("correct the file, then run `xy reload`"));
            loaded.bad.replaced.insert(shown);
        }
    }
    loaded.problems.extend(others);
}

/// Judges a server that is to come, as if this was its file, by the daemon's own file or its
/// last good text. What other files say does not matter to it.
pub fn check_new(
    paths: &Paths,
    limits: &KeptLimits,
    file: &FileText,
    last_good: &LastGood,
) -> Loaded {
    let mut problems = Vec::new();
    let mut daemon_file = daemon_file(paths, &mut problems);
    let shown = paths.shown(&paths.daemon_file);
    let is_bad = |file: &FileText| !check(Some(file), &[], &Machine { limits }).is_valid();
    if (!problems.is_empty() || daemon_file.as_ref().is_some_and(is_bad))
        && let Some(text) = last_good.get(&shown).cloned()
    {
        problems.clear();
        daemon_file = Some(FileText { path: paths.daemon_file.clone(), shown, text });
    }
    let mut loaded = check(daemon_file.as_ref(), std::slice::from_ref(file), &Machine { limits });
    problems.append(&mut loaded.problems);
    loaded.problems = problems;
    loaded
}

/// Whether servers are supervised. A file that cannot be read says nothing here: that is told to
/// whoever starts a daemon. The environment is a problem if it cannot be understood.
pub fn supervision(paths: &Paths) -> Result<Supervision, Problem> {
    let environment = supervisor_enabled(|name| std::env::var_os(name))?;
    let file = daemon_file(paths, &mut Vec::new());
    let said = file.and_then(|file| check(Some(&file), &[], &Anywhere).settings.supervisor);
    Ok(Supervision::of((&paths.shown(&paths.daemon_file), said), environment))
}

/// A profile whose file is there and cannot be read shows nothing.
fn close_unread(profiles: &[(PathBuf, String)], loaded: &mut Loaded) {
    for (path, shown) in profiles {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if ServerName::new(name).is_ok() {
            let closed = || Arc::new(ProfileSettings::closed(name, shown));
            loaded.settings.profiles.entry(name.to_owned()).or_insert_with(closed);
        }
    }
}

/// The files of MCP clients that the daemon's own names. Whatever is wrong with it is told when
/// all files are judged.
fn client_files(daemon_file: &FileText) -> Vec<PathBuf> {
    check(Some(daemon_file), &[], &Anywhere).settings.mcp_json
}

/// The files of MCP clients, each once: those of the command line, and those that the daemon's
/// own file names. One that is not there is an error: somebody named it.
fn mcp_files(paths: &Paths, named: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<FileText> {
    let (mut read, mut seen) = (Vec::new(), BTreeSet::new());
    for path in paths.mcp_json.iter().chain(named).filter(|path| seen.insert(*path)) {
        let file = if exists(path) {
            read_bounded(paths, path, MAX_MCP_FILE_BYTES)
        } else {
            let problem = Problem::in_file(&paths.shown(path), "there is no such file");
            let advice = if paths.mcp_json.contains(path) {
                "correct the path after `--mcp-json`, or leave it out"
            } else {
                "correct the path after `mcp-json` in `xy.kdl`, or remove it there"
            };
            Err(problem.kind(Kind::Unreadable).suggest(advice))
        };
        read.extend(file.map_err(|problem| tell_once(problems, problem)));
    }
    read
}

/// Returns the servers whose files are there and cannot be used.
fn broken(paths: &Paths, listed: &[PathBuf], loaded: &Loaded) -> Broken {
    let folders = [&*paths.daemon_file, &paths.servers_dir, &paths.config_dir, config_home(paths)];
    let for_all = folders.map(|path| paths.shown(path));
    let is_for_all = |file: &String| {
        let is_contained =
            loaded.bad.replaced.contains(file) || loaded.bad.contained.contains(file);
        (for_all.contains(file) || file == ENVIRONMENT) && !is_contained
    };
    if loaded.problems.iter().any(|it| it.is_error() && is_for_all(&it.file)) {
        return Broken::Every;
    }
    let all_but_the_read = || Broken::AllBut(loaded.settings.servers.keys().cloned().collect());
    // A folder that is not there was hardly emptied file by file: perhaps a disk is missing. From
    // one that others may write, files may have been removed.
    let is_untrusted = |folder: &PathBuf| paths.servers_dir.starts_with(folder);
    if !exists(&paths.servers_dir) || loaded.bad.folders.values().any(is_untrusted) {
        return all_but_the_read();
    }
    // Nor is it known who stands in a client's file that is not there, or cannot be read.
    let is_lost = |path: &PathBuf| {
        let shown = paths.shown(path);
        loaded.problems.iter().any(|it| it.kind == Kind::Unreadable && it.file == shown)
    };
    if loaded.settings.mcp_json.iter().any(is_lost) {
        return all_but_the_read();
    }
    let names = listed.iter().filter_map(|path| ServerName::new(path.file_stem()?.to_str()?).ok());
    let of_clients = match &loaded.broken {
        Broken::These(names) => names.clone(),
        Broken::Every | Broken::AllBut(_) => return all_but_the_read(),
    };
    let is_not_used = |name: &ServerName| {
        !loaded.settings.servers.contains_key(name) && !loaded.itself.contains_key(name)
    };
    Broken::These(names.filter(is_not_used).chain(of_clients).collect())
}

/// The daemon's own file, if there is one.
fn daemon_file(paths: &Paths, problems: &mut Vec<Problem>) -> Option<FileText> {
    if !exists(&paths.daemon_file) {
        return None;
    }
    read_file(paths, &paths.daemon_file).map_err(|problem| tell_once(problems, problem)).ok()
}

/// Adds a problem. One of a folder is met with each file in it.
fn tell_once(problems: &mut Vec<Problem>, problem: Problem) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// The files of a folder, by name.
fn kdl_files(
    paths: &Paths,
    folder: &Path,
    most: usize,
    problems: &mut Vec<Problem>,
) -> Vec<PathBuf> {
    let unreadable = |cause: &io::Error| {
        Problem::in_file(&paths.shown(folder), format!("the folder cannot be read: {cause}"))
            .kind(Kind::Unreadable)
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
    if names.len() > most {
        let what = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let message = format!("there are {} {} files", names.len(), what.trim_end_matches('s'));
        let problem = Problem::in_file(&paths.shown(folder), message);
        problems.push(problem.suggest(format!("xy reads at most {most}")));
        names.truncate(most);
    }
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Ends in `.kdl`, and is not hidden; editors' backups are one or the other.
fn is_kdl_file(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.ends_with(b".kdl") && !bytes.starts_with(b".") && !bytes.starts_with(b"#")
}

/// Whether there is anything at a path, be it a link to nowhere.
fn exists(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(cause) => cause.kind() != io::ErrorKind::NotFound,
    }
}

fn read_file(paths: &Paths, path: &Path) -> Result<FileText, Problem> {
    read_bounded(paths, path, MAX_FILE_BYTES)
}

fn read_bounded(paths: &Paths, path: &Path, most: u64) -> Result<FileText, Problem> {
    let shown = paths.shown(path);
    let unreadable = |message: String, advice: &str| {
        Problem::in_file(&shown, message).kind(Kind::Unreadable).suggest(advice)
    };
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => {
            unreadable(format!("a link to nowhere: {cause}"), "correct the link, or remove it")
        }
        io::ErrorKind::PermissionDenied => {
            unreadable(format!("the file cannot be read: {cause}"), "allow it with `chmod u+r`")
        }
        _ => unreadable(format!("the file cannot be read: {cause}"), "correct or remove it"),
    };
    let found = fs::metadata(path).map_err(system)?;
    if !found.is_file() {
        let what = if found.is_dir() { "a folder" } else { "not a regular file" };
        return Err(unreadable(format!("this is {what}"), "put a file there, or rename it"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(system)?;
    check_trust(paths, path, &file.metadata().map_err(system)?).map_err(|untrusted| {
        // A folder of ours is a problem of its own; one elsewhere is a problem of this file.
        let is_of_ours = untrusted.path.starts_with(config_home(paths));
        let about = if is_of_ours { paths.shown(&untrusted.path) } else { shown.clone() };
        let problem = Problem::in_file(&about, format!("not used: {untrusted}"));
        problem.kind(Kind::Unreadable).suggest(untrusted.remedy())
    })?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(system)?;
    if bytes.len() as u64 > most {
        let message = format!("the file is larger than {} MiB", most >> 20);
        return Err(unreadable(message, "a server needs a few lines only; is it the right file?"));
    }
    let text = String::from_utf8(bytes).map_err(|cause| {
        let offset = cause.utf8_error().valid_up_to();
        let line = cause.as_bytes()[..offset].split(|&byte| byte == b'\n').count();
        unreadable(format!("line {line} is not UTF-8"), "save the file as UTF-8")
    })?;
    Ok(FileText { path: path.to_owned(), shown, text })
}

/// Checks a file and its folders: up to the XDG folder, or the one that it is in; behind a link
/// also the one that it leads to.
fn check_trust(paths: &Paths, path: &Path, found: &fs::Metadata) -> Result<(), Untrusted> {
    trust::check(path, found)?;
    let home = config_home(paths);
    match path.parent().filter(|folder| folder.starts_with(home)) {
        Some(folder) => trust::check_folders(folder, home)?,
        None => trust::check_folder_of(path)?,
    }
    fs::canonicalize(path).map_or(Ok(()), |real| trust::check_folder_of(&real))
}

/// Returns the folders of the configuration that others may write.
fn untrusted_folders(paths: &Paths) -> BTreeSet<PathBuf> {
    let folders = [&paths.servers_dir, &paths.profiles_dir, &paths.config_dir];
    let check = |folder: &PathBuf| trust::check_folders(folder, config_home(paths));
    folders.into_iter().filter_map(|folder| check(folder).err()).map(|it| it.path).collect()
}

/// The XDG folder that the configuration is in.
fn config_home(paths: &Paths) -> &Path {
    paths.config_dir.parent().unwrap_or(&paths.config_dir)
}

/// The machine we are on.
struct Machine<'a> {
    limits: &'a KeptLimits,
}

impl Surroundings for Machine<'_> {
    fn home(&self) -> Option<PathBuf> {
        etcetera::home_dir().ok()
    }

    fn search_path(&self) -> Option<OsString> {
        std::env::var_os("PATH")
    }

    fn look(&self, path: &Path) -> Found {
        match fs::metadata(path) {
            Err(_) => Found::Nothing,
            Ok(found) if found.is_dir() => Found::Folder,
            Ok(found) if is_executable(&found) => Found::Program,
            Ok(_) => Found::File,
        }
    }

    #[cfg(unix)]
    fn others_can_read(&self, path: &Path) -> Option<bool> {
        Some(others_can_read(path))
    }

    fn is_this_program(&self, path: &Path) -> bool {
        // A running program is known by its file, even if another has taken its name since.
        let running = Path::new("/proc/self/exe");
        let this = fs::metadata(running).or_else(|_| fs::metadata(std::env::current_exe()?));
        let (Ok(this), Ok(that)) = (this, fs::metadata(path)) else { return false };
        is_same_file(&this, &that)
    }

    fn limits(&self) -> KeptLimits {
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

/// Whether other users can read a file: by its mode, and those of the folders on the way. A
/// group with the number of its user is that user's own.
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
