//! Tests of limits and control groups.
//!
//! They need control groups and the right to create some. Where that is missing they print so,
//! because a test that shows nothing must not look successful.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use xy_shim::cgroup::{self, Enforcement};
use xy_shim::wire::{
    Confinement, Containment, EnforcedBy, Limit, LimitName, LimitsOrder, MemoryLimit, Oom, Problem,
    Report, Stdout,
};

use crate::daemon::{Daemon, is_gone, wait_until};

const MIB: u64 = 1 << 20;

/// Uses all the memory there is.
const USE_ALL_MEMORY: &str = "exec tail /dev/zero";

#[expect(clippy::print_stdout, reason = "a test that shows nothing must say so")]
fn print_skipped(why: &str) {
    println!("SKIPPED: {why}");
}

/// Returns true if memory and processes can be limited by groups here.
fn has_groups() -> bool {
    let limit = cgroup::limit_support();
    if limit.memory == Enforcement::ByCgroup && limit.pids == Enforcement::ByCgroup {
        return true;
    }
    print_skipped(&format!("no groups for limits: {limit:?}"));
    false
}

/// Returns true if a group contains the server.
fn is_in_cgroup(daemon: &Daemon) -> bool {
    if confinement_of(daemon).containment == Containment::Cgroup {
        return true;
    }
    print_skipped("no group of cgroup2 can be made");
    false
}

fn confinement_of(daemon: &Daemon) -> Confinement {
    let started = daemon.reports.iter().find_map(|report| match report {
        Report::Started { confined, .. } => Some(confined.clone()),
        _ => None,
    });
    started.expect("it has been started")
}

const SMALL: MemoryLimit = MemoryLimit { bytes: 64 * MIB, kept_by: EnforcedBy::Cgroup };

fn start_limited(script: &str, limits: LimitsOrder) -> Daemon {
    let mut daemon = Daemon::new();
    let mut order = daemon.script(script, Stdout::Logged);
    order.limits = limits;
    daemon.start(&order);
    daemon
}

/// Returns all groups of a shim, in every hierarchy.
fn groups_of(shim: i32) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_group = |line: &&str| line.contains(" - cgroup");
    let roots = mounts.lines().filter(is_group).filter_map(|line| line.split(' ').nth(4));
    let mut found = Vec::new();
    for root in roots {
        collect_groups(Path::new(root), &format!("xy-{shim}-"), &mut found);
    }
    found
}

fn collect_groups(folder: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
                found.push(entry.path());
            }
            collect_groups(&entry.path(), prefix, found);
        }
    }
}

#[test]
fn server_over_its_memory_limit_is_killed() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = start_limited(USE_ALL_MEMORY, limits);
    let exit = daemon.wait_exited();
    assert_eq!((exit.signal, exit.asked, exit.oom), (Some(9), false, Some(Oom::Limit)));
    let limit = Limit { name: LimitName::Memory, value: 64 * MIB, kept_by: EnforcedBy::Cgroup };
    assert_eq!(confinement_of(&daemon).limits, [limit]);
    let shim = daemon.shim_pid();
    daemon.finish();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn child_over_the_memory_limit_is_reported() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = start_limited("tail /dev/zero; exit 3", limits);
    let exit = daemon.wait_exited();
    // Where the kernel kills the whole group, the leader is among the killed.
    assert!(exit.code == Some(3) || exit.signal == Some(9), "{exit:?}");
    assert_eq!(exit.oom, Some(Oom::Limit));
    daemon.finish();
}

#[test]
fn kill_within_the_memory_limit_is_not_oom() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), ..LimitsOrder::default() };
    let mut daemon = start_limited("kill -9 $$", limits);
    let exit = daemon.wait_exited();
    assert_eq!((exit.signal, exit.oom), (Some(9), None));
    daemon.finish();
}

#[test]
fn process_limit_affects_only_the_server() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { pids: Some(4), ..LimitsOrder::default() };
    let script = "echo begun; while :; do sleep 60 & done";
    let mut daemon = start_limited(script, limits);
    daemon.wait_line("begun");
    let exit = daemon.wait_exited();
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.survivors.is_empty());
    daemon.finish();
    assert!(daemon.log().to_lowercase().contains("fork"), "{}", daemon.log());
    assert!(Command::new("true").status().unwrap().success());
}

#[test]
fn server_sees_its_open_file_limit() {
    let limits = LimitsOrder { nofile: Some(77), ..LimitsOrder::default() };
    let mut daemon = Daemon::new();
    let mut order = daemon.script("ulimit -Sn; ulimit -Hn", Stdout::Logged);
    order.limits = limits;
    order.open_files = Some(33); // The default for servers without a limit of their own.
    daemon.start(&order);
    daemon.wait_exited();
    daemon.finish();
    assert_eq!(daemon.log(), "[out] 77\n[out] 77\n");
}

#[cfg(target_os = "linux")]
#[test]
fn rlimit_limits_the_memory_of_each_process() {
    let memory = Some(MemoryLimit { bytes: 64 * MIB, kept_by: EnforcedBy::Rlimit });
    let mut daemon = start_limited(
        "ulimit -d; tail /dev/zero; echo $?",
        LimitsOrder { memory, ..LimitsOrder::default() },
    );
    let exit = daemon.wait_exited();
    assert_eq!((exit.code, exit.oom), (Some(0), None));
    daemon.finish();
    let log = daemon.log();
    assert!(log.contains("[out] 65536\n") && log.ends_with("[out] 1\n"), "{log}");
}

#[test]
fn server_without_its_limits_does_not_start() {
    let nofile = Some(u64::MAX / 2); // More than any system allows, even to root.
    let mut daemon = start_limited("echo ran", LimitsOrder { nofile, ..LimitsOrder::default() });
    let fault = daemon.wait_start_failed();
    assert_eq!(fault.errno, Some(Errno::PERM.raw_os_error()));
    let Problem::System { what } = fault.problem else { panic!("{fault:?}") };
    assert!(what.contains("limits"), "{what}");
    let shim = daemon.shim_pid();
    daemon.read_to_end();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn failed_start_leaves_no_group() {
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
    assert_eq!(daemon.wait_start_failed().problem, Problem::NotExecutable);
    daemon.read_to_end();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

#[test]
fn exit_leaves_no_group_or_subgroup() {
    if !has_groups() {
        return;
    }
    let limits = LimitsOrder { memory: Some(SMALL), pids: Some(9), nofile: None };
    let mut daemon = start_limited("echo ready; exec sleep 60", limits);
    let shim = daemon.shim_pid();
    daemon.wait_line("ready");
    let groups = groups_of(shim);
    assert!(groups.len() >= 2, "{groups:?}");
    for group in &groups {
        fs::create_dir_all(group.join("own/deeper")).unwrap();
    }
    daemon.stop(Duration::from_secs(5));
    daemon.wait_exited();
    daemon.finish();
    assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
}

/// A process that is not below the shim, but in a group of its server.
struct UnrelatedProcess(Child);

impl UnrelatedProcess {
    fn in_groups(groups: &[PathBuf]) -> Self {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        for group in groups {
            fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        Self(child)
    }
}

impl Drop for UnrelatedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn process_moved_into_the_group_is_killed() {
    let mut daemon = Daemon::start_script("echo ready; exec sleep 60", Stdout::Logged);
    daemon.wait_line("ready");
    daemon.wait_started();
    if is_in_cgroup(&daemon) {
        let shim = daemon.shim_pid();
        let mut unrelated = UnrelatedProcess::in_groups(&groups_of(shim));
        daemon.stop(Duration::from_millis(200));
        let exit = daemon.wait_exited();
        assert!(exit.survivors.is_empty(), "{exit:?}");
        let status = unrelated.0.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        daemon.finish();
        assert_eq!(groups_of(shim), Vec::<PathBuf>::new());
    }
    daemon.hang_up();
}

#[test]
fn groups_of_a_killed_shim_are_removed() {
    if !has_groups() {
        return;
    }
    // The process is not killed with its shim, and is outside the leader's session.
    let script = "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 600' & \
                  while [ ! -e pid ]; do :; done; echo ready; wait";
    let limits = LimitsOrder { pids: Some(20), ..LimitsOrder::default() };
    let mut daemon = start_limited(script, limits);
    daemon.wait_line("ready");
    let escaped: i32 = fs::read_to_string(daemon.path("pid")).unwrap().trim().parse().unwrap();
    let shim = daemon.shim_pid();
    assert!(!groups_of(shim).is_empty());
    cgroup::kill_stale();
    assert!(!is_gone(escaped), "its shim lives");

    kill_process(Pid::from_raw(shim).unwrap(), Signal::KILL).unwrap();
    daemon.hang_up();
    daemon.wait_shim();
    cgroup::kill_stale();
    wait_until(move || is_gone(escaped));
    wait_until(move || {
        cgroup::remove_stale();
        groups_of(shim).is_empty()
    });
}
