//! Who is there, as the kernel says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};

use serde_json::Value;
use xy_testkit::{Home, is_alive};

use crate::support::ask;

/// A living process of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) pid: u32,
    pub(crate) server: String,
    /// The mark of its life.
    pub(crate) life: String,
    pub(crate) parent: u32,
    /// Whether its parent is the shim of its server.
    pub(crate) is_leader: bool,
}

/// All living processes of all servers of a home, whoever their parents are.
pub(crate) fn residents(home: &Home) -> Vec<Resident> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| resident(home, pid)).collect()
}

fn resident(home: &Home, pid: u32) -> Option<Resident> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variable = |name: &str| {
        let wanted = format!("{name}=");
        let found =
            environ.split(|&byte| byte == 0).find_map(|it| it.strip_prefix(wanted.as_bytes()));
        found.map(|value| String::from_utf8_lossy(value).into_owned())
    };
    if variable("XDG_TESTKIT_MARK")? != home.mark() || !is_alive(pid) {
        return None;
    }
    let (server, life) = (variable("XY_SERVER")?, variable("XY_INSTANCE")?);
    let parent = parent_of(pid)?;
    let parent_line = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    let is_leader = parent_line == format!("xy\0shim\0{server}\0").as_bytes();
    Some(Resident { pid, server, life, parent, is_leader })
}

/// The parent of a process that lives.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// The leaders of each server, and what has fallen to its shim.
pub(crate) fn leaders(home: &Home) -> BTreeMap<String, Vec<Resident>> {
    let mut leaders: BTreeMap<String, Vec<Resident>> = BTreeMap::new();
    for resident in residents(home).into_iter().filter(|it| it.is_leader) {
        leaders.entry(resident.server.clone()).or_default().push(resident);
    }
    leaders
}

/// All servers as the daemon lists them, by name.
#[track_caller]
pub(crate) fn listed(home: &Home) -> BTreeMap<String, Value> {
    let list = ask(home, "list", Value::Null);
    let entries = list.as_array().unwrap().iter();
    entries.map(|it| (it["name"].as_str().unwrap().to_owned(), it.clone())).collect()
}

/// Checks that a server which shall be there is there once: one life, whose leader is the
/// one that the daemon knows, under the shim that holds its lock. Answers that leader.
#[track_caller]
pub(crate) fn is_there_once<'a>(
    home: &Home,
    name: &str,
    there: &'a [Resident],
    entry: &Value,
) -> &'a Resident {
    let lives: BTreeSet<&str> = there.iter().map(|it| it.life.as_str()).collect();
    assert_eq!(lives.len(), 1, "`{name}` has several lives, or none: {there:#?}");
    let leader = there.iter().find(|it| entry["pid"] == it.pid);
    let leader = leader.unwrap_or_else(|| panic!("which `{name}` is this? {entry:#} {there:#?}"));
    let lock = home.root().join(format!("state/xy/shims/{name}.lock"));
    let identity: Value = serde_json::from_slice(&fs::read(&lock).unwrap()).unwrap();
    assert_eq!(identity["pid"], leader.parent, "another shim holds the lock of `{name}`");
    assert_eq!(identity["life"], leader.life.as_str());
    let tried = File::open(&lock).unwrap().try_lock();
    assert!(matches!(tried, Err(TryLockError::WouldBlock)), "the lock of `{name}` is free");
    leader
}
