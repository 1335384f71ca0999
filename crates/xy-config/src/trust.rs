//! The rule that decides which files and folders are trusted: those that only their user can have
//! changed, as with `StrictModes` of sshd.
//!
//! [`check_entry`] is the rule. The other functions inspect the disk and apply it; they change
//! nothing.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The user that xy runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The primary group, if the user is its only member. Under `umask 002`, which many systems
    /// use, this group can write every file that the user creates.
    pub private_group: Option<u32>,
}

/// The owner, group and mode of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The permission bits.
    pub mode: u32,
}

/// The reason why a file or folder is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distrust {
    /// Another user owns it.
    OwnedBy(u32),
    /// Every user can write it.
    OpenToAll,
    /// A group with other members can write it.
    OpenToGroup(u32),
}

/// A file or folder that is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustError {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub why: Distrust,
}

/// Returns an error unless `user` can trust an entry: the owner must be the user or root, and only
/// the owner and the user's private group may write it.
pub fn check_entry(entry: Entry, user: User) -> Result<(), Distrust> {
    if entry.uid != user.uid && entry.uid != 0 {
        return Err(Distrust::OwnedBy(entry.uid));
    }
    if entry.mode & OTHERS_WRITE != 0 {
        return Err(Distrust::OpenToAll);
    }
    if entry.mode & GROUP_WRITES != 0 && user.private_group != Some(entry.gid) {
        return Err(Distrust::OpenToGroup(entry.gid));
    }
    Ok(())
}

/// Checks a folder of sockets, which must belong to the user: a folder of root is not enough.
fn check_socket_entry(entry: Entry, user: User) -> Result<(), Distrust> {
    if entry.uid == user.uid { check_entry(entry, user) } else { Err(Distrust::OwnedBy(entry.uid)) }
}

/// Checks a folder above xy's own. In a sticky folder such as `/tmp`, users cannot replace files of
/// others, and xy's own folder is checked separately.
fn check_parent_entry(entry: Entry, user: User) -> Result<(), Distrust> {
    let is_sticky = entry.mode & STICKY != 0;
    let mode = if is_sticky { entry.mode & !(GROUP_WRITES | OTHERS_WRITE) } else { entry.mode };
    check_entry(Entry { mode, ..entry }, user)
}

/// Checks a file or folder by its metadata.
pub fn check(path: &Path, found: &Metadata) -> Result<(), TrustError> {
    apply(check_entry, path, found)
}

/// Checks a folder and its parents, up to `xdg_folder`. A missing folder is no problem.
pub fn check_folders(folder: &Path, xdg_folder: &Path) -> Result<(), TrustError> {
    for folder in folder.ancestors().take_while(|folder| folder.starts_with(xdg_folder)) {
        let rule = if folder == xdg_folder { check_parent_entry } else { check_entry };
        check_folder(rule, folder)?;
    }
    Ok(())
}

/// Checks the folder of a file outside of xy's folders, or of a link's target.
pub fn check_folder_of(file: &Path) -> Result<(), TrustError> {
    file.parent().map_or(Ok(()), |folder| check_folder(check_parent_entry, folder))
}

/// Checks a folder in which a daemon listens. Another user who can write there could listen in the
/// daemon's place.
pub fn check_socket_folder(folder: &Path) -> Result<(), TrustError> {
    check_folder(check_socket_entry, folder)
}

type Rule = fn(Entry, User) -> Result<(), Distrust>;

fn check_folder(rule: Rule, folder: &Path) -> Result<(), TrustError> {
    // A folder without metadata is missing, or cannot be used either.
    fs::metadata(folder).map_or(Ok(()), |found| apply(rule, folder, &found))
}

fn apply(rule: Rule, path: &Path, found: &Metadata) -> Result<(), TrustError> {
    let entry = Entry { uid: found.uid(), gid: found.gid(), mode: found.mode() };
    rule(entry, User::current()).map_err(|why| TrustError { path: path.to_owned(), why })
}

/// Opens a trusted regular file for reading. Follows links, and checks the target itself. A pipe is
/// an error, and opening it never blocks.
pub fn open(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    check(path, &found)?;
    Ok(file)
}

/// Opens a file that xy writes, with the given options. Refuses a link, as it could lead to any
/// file, and anything but a regular file. Opening never blocks.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|cause| match cause.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => {
            let path = path.display();
            io::Error::other(format!(
                "`{path}` is a link, and xy does not write through links: remove it"
            ))
        }
        _ => cause,
    })?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is not a regular file"))
}

impl TrustError {
    /// Returns the remedy for a folder of sockets, whose place the environment variable `variable`
    /// decides.
    pub fn remedy_of_sockets(&self, variable: &str) -> String {
        let another = format!("set {variable} to a folder of your own");
        match self.why {
            Distrust::OwnedBy(_) => format!("run `xy` as its owner, or {another}"),
            _ => format!("{}, or {another}", self.remedy()),
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> String {
        let path = quoted(&self.path);
        match self.why {
            Distrust::OwnedBy(_) => {
                let uid = User::current().uid;
                format!("run `chown {uid} {path}` if you trust it, or move it away")
            }
            Distrust::OpenToAll => format!("run `chmod go-w {path}`"),
            Distrust::OpenToGroup(_) => format!("run `chmod g-w {path}`"),
        }
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.why {
            Distrust::OwnedBy(uid) => write!(f, "`{path}` belongs to user {uid}"),
            Distrust::OpenToAll => write!(f, "everyone may write `{path}`"),
            Distrust::OpenToGroup(gid) => write!(f, "group {gid} may write `{path}`"),
        }
    }
}

impl std::error::Error for TrustError {}

impl From<TrustError> for io::Error {
    fn from(untrusted: TrustError) -> Self {
        Self::other(format!("{untrusted}: {}", untrusted.remedy()))
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte);
    if text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

impl User {
    /// Returns the user of this process. Groups are read once.
    pub fn current() -> Self {
        static CURRENT: OnceLock<User> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let read = |file| fs::read_to_string(file).unwrap_or_default();
            let (uid, passwd) = (geteuid().as_raw(), read("/etc/passwd"));
            // `newgrp` changes the group of a process, but not the owner of its files.
            let gid = primary_group(uid, &passwd).unwrap_or_else(|| getegid().as_raw());
            let is_private = is_private(uid, gid, &passwd, &read("/etc/group"));
            Self { uid, private_group: is_private.then_some(gid) }
        })
    }
}

/// Returns the primary group of a user from the text of `/etc/passwd`.
fn primary_group(uid: u32, passwd: &str) -> Option<u32> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|user| user.get(2).and_then(|it| it.parse().ok()) == Some(uid))?;
    user.get(3)?.parse().ok()
}

/// Returns true if a user's primary group is private. It must have the user's name, or the user's
/// id if names are not in these files. It must have no other member, and must not be another user's
/// primary group.
fn is_private(uid: u32, gid: u32, passwd: &str, group: &str) -> bool {
    let fields = |line: &'_ str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let is_number = |field: Option<&String>, number: u32| {
        field.is_some_and(|field| field.parse() == Ok(number))
    };
    let users: Vec<_> = passwd.lines().map(fields).collect();
    let user = users.iter().find(|user| is_number(user.get(2), uid));
    let name = user.and_then(|user| user.first()).map(String::as_str);
    let is_of_another =
        users.iter().any(|user| is_number(user.get(3), gid) && !is_number(user.get(2), uid));
    let group = group.lines().map(fields).find(|group| is_number(group.get(2), gid));
    let has_user_name = match (name, group.as_ref().and_then(|group| group.first())) {
        (Some(name), Some(group)) => name == group,
        _ => uid == gid,
    };
    let members = group.as_ref().and_then(|group| group.get(3)).map_or("", String::as_str);
    let is_alone = members.split(',').all(|it| it.is_empty() || Some(it) == name);
    has_user_name && is_alone && !is_of_another
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const US: User = User { uid: 1000, private_group: Some(1000) };

    #[test]
    fn only_the_user_and_root_are_trusted() {
        use Distrust::{OpenToAll, OpenToGroup, OwnedBy};
        for (uid, gid, mode, expected) in [
            (1000, 1000, 0o600, Ok(())),
            (1000, 1000, 0o644, Ok(())),
            (1000, 1000, 0o664, Ok(())), // `umask 002`.
            (1000, 1000, 0o666, Err(OpenToAll)),
            (1000, 1000, 0o602, Err(OpenToAll)),
            (1000, 100, 0o644, Ok(())),
            (1000, 100, 0o664, Err(OpenToGroup(100))),
            (0, 0, 0o644, Ok(())),
            (0, 0, 0o664, Err(OpenToGroup(0))),
            (0, 0, 0o666, Err(OpenToAll)),
            (0, 1000, 0o664, Ok(())),
            (1001, 1000, 0o600, Err(OwnedBy(1001))),
            (1001, 1001, 0o666, Err(OwnedBy(1001))),
        ] {
            let entry = Entry { uid, gid, mode };
            assert_eq!(check_entry(entry, US), expected, "{entry:?}");
        }
        let shared = User { private_group: None, ..US };
        let entry = Entry { uid: 1000, gid: 1000, mode: 0o664 };
        assert_eq!(check_entry(entry, shared), Err(OpenToGroup(1000)));
    }

    #[test]
    fn sticky_folder_is_trusted_as_parent_but_not_for_sockets() {
        let tmp = Entry { uid: 0, gid: 0, mode: 0o1777 };
        assert_eq!(check_entry(tmp, US), Err(Distrust::OpenToAll));
        assert_eq!(check_parent_entry(tmp, US), Ok(()));
        assert_eq!(check_parent_entry(Entry { mode: 0o777, ..tmp }, US), Err(Distrust::OpenToAll));
        assert_eq!(
            check_parent_entry(Entry { uid: 1001, ..tmp }, US),
            Err(Distrust::OwnedBy(1001))
        );
        for (uid, mode, is_fit) in [
            (1000, 0o700, true),
            (1000, 0o755, true),
            (1000, 0o775, true),
            (1000, 0o1777, false),
            (0, 0o755, false),
            (1001, 0o700, false),
        ] {
            let entry = Entry { uid, gid: 1000, mode };
            assert_eq!(check_socket_entry(entry, US).is_ok(), is_fit, "{entry:?}");
        }
    }

    #[test]
    fn private_group_has_its_users_name_and_no_other_member() {
        let passwd = "root:x:0:0::/:/bin/sh\none:x:1000:1000::/:/bin/sh\n\
                      two:x:1001:1002::/:/bin/sh\nnonsense\n";
        let cases = [
            (1000, 1000, "one:x:1000:\n", true),
            (1000, 1000, "one:x:1000:one\n", true),
            (1000, 1000, "one:x:1000:two\n", false),
            (1000, 1000, "one:x:1000:one,two\n", false),
            (1000, 1000, "staff:x:1000:\n", false),
            (1000, 1000, "", true),
            (1000, 100, "users:x:100:\n", false),
            (1000, 1002, "one:x:1002:\n", false), // Also two's.
            (1001, 1002, "two:x:1002:\n", true),
            (1001, 1002, "", false),
            (5000, 5000, "", true), // Not in these files.
            (5000, 5000, "some:x:5000:one\n", false),
            (5000, 20, "staff:x:20:root\n", false),
        ];
        for (uid, gid, group, expected) in cases {
            assert_eq!(is_private(uid, gid, passwd, group), expected, "{uid} {gid} {group:?}");
        }
    }

    #[test]
    fn remedies_are_valid_shell_commands() {
        let error = |path: &str, why| {
            let untrusted = TrustError { path: path.into(), why };
            format!("{untrusted}: {}", untrusted.remedy())
        };
        assert_eq!(
            error("/a/b.kdl", Distrust::OpenToAll),
            "everyone may write `/a/b.kdl`: run `chmod go-w /a/b.kdl`"
        );
        assert_eq!(
            error("/a b/it's", Distrust::OpenToGroup(7)),
            r"group 7 may write `/a b/it's`: run `chmod g-w '/a b/it'\''s'`"
        );
        assert!(
            error("/a", Distrust::OwnedBy(7)).starts_with("`/a` belongs to user 7: run `chown ")
        );
    }

    #[test]
    fn folders_up_to_the_xdg_folder_are_checked() {
        let root = tempfile::tempdir().unwrap();
        let (home, xy) = (root.path().join("config"), root.path().join("config/xy"));
        let servers = xy.join("servers");
        fs::create_dir_all(&servers).unwrap();
        let set =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(check_folders(&servers, &home), Ok(()));
        set(root.path(), 0o777); // Above the XDG folder.
        assert_eq!(check_folders(&servers, &home), Ok(()));
        for folder in [&home, &xy, &servers] {
            set(folder, 0o777);
            let untrusted = check_folders(&servers, &home).unwrap_err();
            assert_eq!(untrusted, TrustError { path: folder.clone(), why: Distrust::OpenToAll });
            set(folder, 0o755);
        }
        assert_eq!(check_folders(&servers.join("missing"), &home), Ok(()));
    }

    #[test]
    fn target_of_a_link_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert!(open(&link).is_ok());
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let error = open(&link).unwrap_err().to_string();
        assert!(
            error.starts_with("everyone may write `") && error.contains("chmod go-w"),
            "{error}"
        );
        assert!(open(folder.path()).is_err());
    }

    #[test]
    fn link_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|it| folder.path().join(it));
        fs::write(&file, "precious").unwrap();
        symlink(&file, &link).unwrap();
        symlink(folder.path().join("none"), &dangling).unwrap();
        let open =
            |path: &Path| open_own(File::options().write(true).create(true).truncate(true), path);
        for link in [&link, &dangling] {
            let error = open(link).unwrap_err().to_string();
            assert!(error.contains("is a link"), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        assert!(!folder.path().join("none").exists());
        assert!(open(folder.path()).is_err());
        assert!(open(&file).is_ok());
    }
}
