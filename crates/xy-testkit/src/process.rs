//! Finding all descendants of a test by a mark in their environment. Programs that clear their
//! environment carry the mark in an argument.
//!
//! Only Linux shows the environment of other processes. On other systems, no processes are found,
//! and the leak check covers only files.

#[cfg(target_os = "linux")]
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};

use rustix::process::{Pid, Signal};

/// The environment variable that holds the mark. xy removes `XY_…` variables from its servers, so
/// the name has another prefix, which `xy connect` passes on to the daemons that it starts.
pub(crate) const MARK: &str = "XDG_TESTKIT_MARK";

/// Returns a mark that no other test uses.
pub(crate) fn random_mark() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// A process that carries a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proc {
    /// The process id.
    pub pid: u32,
    /// The program and its arguments, or the bare process name in brackets if there are none.
    pub cmdline: String,
    /// The process state as in `/proc`: `S` is sleeping, `R` is running, `Z` is a zombie.
    pub state: char,
}

/// Returns all processes that carry `mark` in their environment or at the beginning of an argument.
/// Includes their zombie children, which have neither environment nor arguments.
#[cfg(target_os = "linux")]
pub fn marked_processes(mark: &str) -> Vec<Proc> {
    let all: Vec<Stat> = every_pid().into_iter().filter_map(Stat::of).collect();
    let marked: Vec<u32> =
        all.iter().map(|stat| stat.pid).filter(|&pid| carries(pid, mark)).collect();
    let unreaped = |stat: &Stat| stat.state == 'Z' && marked.contains(&stat.parent);
    all.iter()
        .filter(|stat| marked.contains(&stat.pid) || unreaped(stat))
        .map(|stat| Proc { pid: stat.pid, cmdline: stat.command(), state: stat.state })
        .collect()
}

/// Returns nothing, as this system hides the environment of processes.
#[cfg(not(target_os = "linux"))]
pub fn marked_processes(_mark: &str) -> Vec<Proc> {
    Vec::new()
}

/// Returns true if the process `pid` exists and is not a zombie.
#[cfg(target_os = "linux")]
pub fn is_alive(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Returns true if the process `pid` exists.
#[cfg(not(target_os = "linux"))]
pub fn is_alive(pid: u32) -> bool {
    known(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

/// Returns the process group and the session of `pid`. An id is 0 if it lies outside this pid
/// namespace, as for a process that has entered a container. rustix cannot represent 0, so the ids
/// are read from `/proc`.
#[cfg(target_os = "linux")]
pub fn group_and_session(pid: u32) -> Option<(u32, u32)> {
    Stat::of(pid).map(|stat| (stat.group, stat.session))
}

/// Returns the process group and the session of `pid`.
#[cfg(not(target_os = "linux"))]
pub fn group_and_session(pid: u32) -> Option<(u32, u32)> {
    let pid = Some(known(pid)?);
    let number = |it: Pid| it.as_raw_pid().unsigned_abs();
    let group = rustix::process::getpgid(pid).ok().map(number);
    group.zip(rustix::process::getsid(pid).ok().map(number))
}

/// Kills `pid` if it still carries `mark`. The check is needed as process ids are reused.
#[cfg(target_os = "linux")]
pub(crate) fn kill_marked(pid: u32, mark: &str) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let Some(process) = known(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    if carries(pid, mark) {
        let _ = pidfd_send_signal(process, Signal::KILL); // It may have ended meanwhile.
    }
}

/// Does nothing, as this system hides the environment of processes.
#[cfg(not(target_os = "linux"))]
pub(crate) fn kill_marked(_pid: u32, _mark: &str) {}

/// Sends SIGTERM to `pid`, if there is such a process.
pub(crate) fn terminate(pid: u32) {
    if let Some(pid) = known(pid) {
        let _ = rustix::process::kill_process(pid, Signal::TERM); // It may have ended.
    }
}

fn known(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(target_os = "linux")]
fn every_pid() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns true if `pid` carries `mark`. Compares bytes, as environments are not always UTF-8.
#[cfg(target_os = "linux")]
fn carries(pid: u32, mark: &str) -> bool {
    let variable = format!("{MARK}={mark}");
    let any = |what: &str, is_it: &dyn Fn(&[u8]) -> bool| {
        let shown = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        shown.split(|&byte| byte == 0).any(is_it)
    };
    any("environ", &|entry| entry == variable.as_bytes())
        || any("cmdline", &|argument| argument.starts_with(mark.as_bytes()))
}

#[cfg(target_os = "linux")]
struct Stat {
    pid: u32,
    name: String,
    state: char,
    parent: u32,
    group: u32,
    session: u32,
}

#[cfg(target_os = "linux")]
impl Stat {
    /// Reads `/proc/<pid>/stat`. Returns `None` if the process is gone.
    fn of(pid: u32) -> Option<Self> {
        let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        // The process name is in parentheses and may contain parentheses itself.
        let (head, tail) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let mut fields = tail.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        Some(Self { pid, name, state, parent, group, session })
    }

    fn command(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        if text.trim().is_empty() { format!("[{}]", self.name) } else { text.trim().to_owned() }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::wait::poll;

    const SOON: Duration = Duration::from_secs(20);

    fn marked(mark: &str, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(MARK, mark).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    #[test]
    fn only_marked_children_are_found_and_killed() {
        let mark = random_mark();
        let mut child = marked(&mark, "exec sleep 60");
        let found =
            poll(SOON, || marked_processes(&mark).pop().filter(|it| it.cmdline == "sleep 60"));
        assert_eq!(found.unwrap().pid, child.id());
        assert_eq!(marked_processes(&mark[1..]), []); // A part of a mark does not match.

        kill_marked(child.id(), &random_mark());
        assert!(is_alive(child.id()));
        kill_marked(child.id(), &mark);
        assert!(!child.wait().unwrap().success());
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn process_marked_by_argument_is_found() {
        let mark = random_mark();
        let mut command = Command::new("sh");
        command.args(["-c", "read -r line", &format!("{mark}-1")]).env_clear();
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let found = poll(SOON, || marked_processes(&mark).pop());
        assert_eq!(found.unwrap().pid, child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(marked_processes(&mark), []);
    }

    #[test]
    fn unreaped_child_of_a_marked_process_is_found() {
        let mark = random_mark();
        // `exec` replaces the shell by a program that does not reap the shell's child.
        let mut child = marked(&mark, "sleep 0 & exec sleep 60");
        let zombie = poll(SOON, || marked_processes(&mark).into_iter().find(|it| it.state == 'Z'));
        assert_eq!(zombie.unwrap().cmdline, "[sleep]");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(marked_processes(&mark), []);
    }

    #[test]
    fn dead_child_is_not_alive() {
        let mark = random_mark();
        let mut child = marked(&mark, "exit 0");
        assert!(poll(SOON, || !is_alive(child.id())).is_some());
        child.wait().unwrap();
    }
}
