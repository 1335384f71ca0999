//! Reads the files: the only place of this crate that touches a disk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xy_protocol::server::ServerName;

use crate::check::{
    Anywhere, Broken, FileText, Found, KeptLimits, Loaded, Surroundings, Texts, check, check_all,
};
use crate::environment::{ENVIRONMENT, supervisor_enabled};
use crate::paths::Paths;
use crate::profile::ProfileSettings;
use crate::report::{Kind, Problem};
use crate::supervision::Supervision;

/// A longer file is not a configuration.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// A longer file of an MCP client is not one. Some keep much else beside their servers.
pub const MAX_MCP_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// More servers than this are not wanted on one machine.
pub const MAX_SERVER_FILES: usize = 1000;
/// Nor more profiles.
pub const MAX_PROFILE_FILES: usize = 200;

/// Reads and judges all files, on a machine that keeps these limits.
pub fn load(paths: &Paths, limits: &KeptLimits) -> Loaded {
    let mut problems: Vec<Problem> = Vec::new();
    let daemon_file = daemon_file(paths, &mut problems);
    let listed = kdl_files(paths, &paths.servers_dir, MAX_SERVER_FILES, &mut problems);
    let profiles = kdl_files(paths, &paths.profiles_dir, MAX_PROFILE_FILES, &mut problems);
    let mut read = |listed: &[PathBuf]| -> Vec<FileText> {
        let read = listed.iter().map(|path| read_file(paths, path));
        read.filter_map(|it| it.map_err(|problem| problems.push(problem)).ok()).collect()
    };
    let (servers, read_profiles) = (read(&listed), read(&profiles));
    let named = daemon_file.as_ref().map(client_files).unwrap_or_default();
    let clients = mcp_files(paths, &named, &mut problems);
    let texts = Texts { servers: &servers, clients: &clients, profiles: &read_profiles };
    let mut loaded = check_all(daemon_file.as_ref(), texts, &Machine { limits });
    close_unread(paths, &profiles, &mut loaded);
    loaded.settings.mcp_json = paths.mcp_json.iter().cloned().chain(named).collect();
    loaded.server_files = listed.len() + loaded.settings.mcp_json.len();
    loaded.files = usize::from(exists(&paths.daemon_file)) + loaded.server_files + profiles.len();
    problems.append(&mut loaded.problems);
    loaded.problems = problems;
    loaded.broken = broken(paths, &listed, &loaded);
    loaded
}

/// Judges a server that is to come, as if this was its file, by the daemon's own file. What
/// other files say does not matter to it.
pub fn check_new(paths: &Paths, limits: &KeptLimits, file: &FileText) -> Loaded {
    let mut problems = Vec::new();
    let daemon_file = daemon_file(paths, &mut problems);
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
fn close_unread(paths: &Paths, profiles: &[PathBuf], loaded: &mut Loaded) {
    for path in profiles {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if ServerName::new(name).is_ok() {
            let closed = || Arc::new(ProfileSettings::closed(name, &paths.shown(path)));
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
        read.extend(file.map_err(|problem| problems.push(problem)));
    }
    read
}

/// Whose files are there and of no use.
fn broken(paths: &Paths, listed: &[PathBuf], loaded: &Loaded) -> Broken {
    let for_all = [&paths.daemon_file, &paths.servers_dir].map(|path| paths.shown(path));
    let is_for_all = |file: &String| for_all.contains(file) || file == ENVIRONMENT;
    if loaded.problems.iter().any(|it| it.is_error() && is_for_all(&it.file)) {
        return Broken::Every;
    }
    let all_but_the_read = || Broken::AllBut(loaded.settings.servers.keys().cloned().collect());
    // A folder that is not there was hardly emptied file by file: perhaps a disk is missing.
    if !exists(&paths.servers_dir) {
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
    read_file(paths, &paths.daemon_file).map_err(|problem| problems.push(problem)).ok()
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
