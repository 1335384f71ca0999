//! What servers may use, and the groups they are in.
//!
//! These need control groups and the right to make some. Where that is missing they say
//! so, because a test that shows nothing must not look green.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use xy_shim::cgroup::{self, Kept};
use xy_shim::wire::{
    Confined, Containment, KeptBy, Limit, LimitName, LimitsOrder, MemoryLimit, Oom, Problem,
    Report, Stdout,
};

use crate::daemon::{Daemon, is_gone, wait_until};

const MIB: u64 = 1 << 20;

/// Takes all the memory there is.
const HOG: &str = "exec tail /dev/zero";

#[expect(clippy::print_stdout, reason = "a test that shows nothing must say so")]
fn cannot_show(why: &str) {
    println!("SKIPPED: {why}");
}

/// Whether memory and processes can be limited by groups here.
fn has_groups() -> bool {
    let kept = cgroup::kept();
    if kept.memory == Kept::ByCgroup && kept.pids == Kept::ByCgroup {
        return true;
    }
    cannot_show(&format!("no groups for limits: {kept:?}"));
    false
}

/// Whether servers are held together by a group here.
fn is_held(daemon: &Daemon) -> bool {
    if confined(daemon).containment == Containment::Cgroup {
        return true;
    }
    cannot_show("no group of cgroup2 can be made");
    false
}

fn confined(daemon: &Daemon) -> Confined {
    let started = daemon.reports.iter().find_map(|report| match report {
        Report::Started { confined, .. } => Some(confined.clone()),
        _ => None,
    });
    started.expect("it has been started")
}

const SMALL: MemoryLimit = MemoryLimit { bytes: 64 * MIB, kept_by: KeptBy::Cgroup };

fn limited(script: &str, limits: LimitsOrder) -> Daemon {
    let mut daemon = Daemon::new();
    let mut order = daemon.script(script, Stdout::Logged);
    order.limits = limits;
    daemon.start(&order);
    daemon
}

/// All groups of a shim, in whatever hierarchy.
fn groups_of(shim: i32) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_group = |line: &&str| line.contains(" - cgroup");
    let tops = mounts.lines().filter(is_group).filter_map(|line| line.split(' ').nth(4));
    let mut found = Vec::new();
    for top in tops {
        collect(Path::new(top), &format!("xy-{shim}-"), &mut found);
    }
    found
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
                found.push(entry.path());
            }
            collect(&entry.path(), prefix, found);
        }
    }
}

#[test]
fn a_server_over_its_memory_limit_is_killed_and_that_is_told() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = limited(HOG, limits);
    let exit = daemon.exited();
    assert_eq!((exit.signal, exit.asked, exit.oom), (Some(9), false, Some(Oom::Limit)));
    let kept = Limit { name: LimitName::Memory, value: 64 * MIB, kept_by: KeptBy::Cgroup };
    assert_eq!(confined(&daemon).limits, [kept]);
    let shim = daemon.shim_pid();
    daemon.finish();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn a_child_over_the_memory_limit_is_told_too() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = limited("tail /dev/zero; exit 3", limits);
    let exit = daemon.exited();
    // Where the kernel ends the whole group, the leader is among the killed.
    assert!(exit.code == Some(3) || exit.signal == Some(9), "{exit:?}");
    assert_eq!(exit.oom, Some(Oom::Limit));
    daemon.finish();
}

#[test]
fn a_server_within_its_memory_limit_is_not_accused() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = limited("kill -9 $$", limits);
    let exit = daemon.exited();
    assert_eq!((exit.signal, exit.oom), (Some(9), None));
    daemon.finish();
}

#[test]
fn a_server_at_its_limit_of_processes_cannot_fork_and_everybody_else_can() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { pids: Some(4), ..LimitsOrder::default() };
    let script = "echo begun; while :; do sleep 60 & done";
    let mut daemon = limited(script, limits);
    daemon.line("begun");
    let exit = daemon.exited();
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.survivors.is_empty());
    daemon.finish();
    assert!(daemon.log().to_lowercase().contains("fork"), "{}", daemon.log());
    assert!(Command::new("true").status().unwrap().success());
}

#[test]
fn the_limit_of_open_files_is_what_the_server_sees() {
    let limits = LimitsOrder { nofile: Some(77), ..LimitsOrder::default() };
    let mut daemon = Daemon::new();
    let mut order = daemon.script("ulimit -Sn; ulimit -Hn", Stdout::Logged);
    order.limits = limits;
    order.open_files = Some(33); // What others get, who have no limit of their own.
    daemon.start(&order);
    daemon.exited();
    daemon.finish();
    assert_eq!(daemon.log(), "[out] 77\n[out] 77\n");
}

#[cfg(target_os = "linux")]
#[test]
fn without_groups_each_process_has_its_own_limit_of_memory() {
    let memory = Some(MemoryLimit { bytes: 64 * MIB, kept_by: KeptBy::Rlimit });
    let mut daemon = limited(
        "ulimit -d; tail /dev/zero; echo $?",
        LimitsOrder { memory, ..LimitsOrder::default() },
    );
    let exit = daemon.exited();
    assert_eq!((exit.code, exit.oom), (Some(0), None));
    daemon.finish();
    let log = daemon.log();
    assert!(log.contains("[out] 65536\n") && log.ends_with("[out] 1\n"), "{log}");
}

#[test]
fn a_server_that_cannot_be_limited_does_not_start() {
    let nofile = Some(u64::MAX / 2); // More than any system allows, even to root.
    let mut daemon = limited("echo ran", LimitsOrder { nofile, ..LimitsOrder::default() });
    let fault = daemon.start_failed();
    assert_eq!(fault.errno, Some(Errno::PERM.raw_os_error()));
    let Problem::System { what } = fault.problem else { panic!("{fault:?}") };
    assert!(what.contains("limits"), "{what}");
    let shim = daemon.shim_pid();
    daemon.hear_the_end();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn no_group_is_left_after_a_start_that_failed() {
    if !has_groups() {
        return;
    }
    let mut daemon = Daemon::new();
    fs::write(daemon.path("orphan"), "#!/nowhere/interpreter\n").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(daemon.path("orphan"), open).unwrap();
    let mut order = daemon.script("", Stdout::Logged);
    order.program = "./orphan".to_owned();
    order.limits = LimitsOrder { memory: Some(SMALL), pids: Some(9), nofile: None };
    let shim = daemon.shim_pid();
    daemon.start(&order);
    assert_eq!(daemon.start_failed().problem, Problem::NotExecutable);
    daemon.hear_the_end();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn no_group_is_left_after_a_life_also_if_the_server_has_made_some_below() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), pids: Some(9), nofile: None };
    let mut daemon = limited("echo ready; exec sleep 60", limits);
    let shim = daemon.shim_pid();
    daemon.line("ready");
    let groups = groups_of(shim);
    assert!(groups.len() >= 2, "{groups:?}");
    for group in &groups {
        fs::create_dir_all(group.join("own/deeper")).unwrap();
    }
    daemon.stop(Duration::from_secs(5));
    daemon.exited();
    daemon.finish();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

/// A process that is not below the shim, but in a group of its server.
struct Stranger(Child);

impl Stranger {
    fn in_groups(groups: &[PathBuf]) -> Self {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        for group in groups {
            fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_in_the_group_but_not_below_the_shim_is_ended_too() {
    let mut daemon = Daemon::running("echo ready; exec sleep 60", Stdout::Logged);
    daemon.line("ready");
    daemon.started();
    if is_held(&daemon) {
        let shim = daemon.shim_pid();
        let mut stranger = Stranger::in_groups(&groups_of(shim));
        daemon.stop(Duration::from_millis(200));
        let exit = daemon.exited();
        assert!(exit.survivors.is_empty(), "{exit:?}");
        let status = stranger.0.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        daemon.finish();
        assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
    }
    daemon.hang_up();
}

#[test]
fn the_groups_of_a_killed_shim_are_ended_and_removed() {
    if !has_groups() {
        return;
    }
    // Not killed with its shim, and out of the leader's session.
    let script = "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 600' & \
                  while [ ! -e pid ]; do :; done; echo ready; wait";
    let limits = LimitsOrder { pids: Some(20), ..LimitsOrder::default() };
    let mut daemon = limited(script, limits);
    daemon.line("ready");
    let escaped: i32 = fs::read_to_string(daemon.path("pid")).unwrap().trim().parse().unwrap();
    let shim = daemon.shim_pid();
    assert!(!groups_of(shim).is_empty());
    cgroup::end_stale();
    assert!(!is_gone(escaped), "its shim lives");

    kill_process(Pid::from_raw(shim).unwrap(), Signal::KILL).unwrap();
    daemon.hang_up();
    daemon.shim_ends();
    cgroup::end_stale();
    wait_until(move || is_gone(escaped));
    wait_until(move || {
        cgroup::remove_stale();
        groups_of(shim).is_empty()
    });
}
