//! The processes of servers, as the kernel lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};

use serde_json::Value;
use xy_testkit::{Home, is_alive};

use crate::support::ask;

/// A living process of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerProcess {
    pub(crate) pid: u32,
    pub(crate) server: String,
    /// The id of its life.
    pub(crate) life: String,
    pub(crate) parent: u32,
    /// True if its parent is the shim of its server.
    pub(crate) is_leader: bool,
}

/// Returns all living processes of all servers of a home, whatever their parents are.
pub(crate) fn server_processes(home: &Home) -> Vec<ServerProcess> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| server_process(home, pid)).collect()
}

fn server_process(home: &Home, pid: u32) -> Option<ServerProcess> {
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
    Some(ServerProcess { pid, server, life, parent, is_leader })
}

/// Returns the parent of a living process.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the children of each server's shim: its leader, and orphans that the shim has inherited.
pub(crate) fn leaders(home: &Home) -> BTreeMap<String, Vec<ServerProcess>> {
    let mut leaders: BTreeMap<String, Vec<ServerProcess>> = BTreeMap::new();
    for server_process in server_processes(home).into_iter().filter(|it| it.is_leader) {
        leaders.entry(server_process.server.clone()).or_default().push(server_process);
    }
    leaders
}

/// Returns all servers in the daemon's list, by name.
#[track_caller]
pub(crate) fn list_by_name(home: &Home) -> BTreeMap<String, Value> {
    let list = ask(home, "list", Value::Null);
    let entries = list.as_array().unwrap().iter();
    entries.map(|it| (it["name"].as_str().unwrap().to_owned(), it.clone())).collect()
}

/// Checks that a server runs exactly once: one life, whose leader the daemon knows, under the shim
/// that holds its lock. Returns that leader.
#[track_caller]
pub(crate) fn assert_runs_once<'a>(
    home: &Home,
    name: &str,
    there: &'a [ServerProcess],
    entry: &Value,
) -> &'a ServerProcess {
    let lives: BTreeSet<&str> = there.iter().map(|it| it.life.as_str()).collect();
    assert_eq!(lives.len(), 1, "`{name}` has several lives, or none: {there:#?}");
    let leader = there.iter().find(|it| entry["pid"] == it.pid);
    let leader = leader.unwrap_or_else(|| {
        panic!("the daemon lists another leader of `{name}`: {entry:#} {there:#?}")
    });
    let lock = home.root().join(format!("state/xy/shims/{name}.lock"));
    let identity: Value = serde_json::from_slice(&fs::read(&lock).unwrap()).unwrap();
    assert_eq!(identity["pid"], leader.parent, "another shim holds the lock of `{name}`");
    assert_eq!(identity["life"], leader.life.as_str());
    let tried = File::open(&lock).unwrap().try_lock();
    assert!(matches!(tried, Err(TryLockError::WouldBlock)), "the lock of `{name}` is free");
    leader
}
