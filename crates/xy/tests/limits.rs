//! Limits of servers: enforced, shown, and refused where they cannot be enforced.
#![cfg_attr(target_os = "linux", expect(clippy::unwrap_used, reason = "everything here is a test"))]

mod support;

use serde_json::json;
use support::{home, running, status};

#[test]
fn open_file_limit_is_enforced_and_shown() {
    let home = home();
    let script = "ulimit -Hn >&2; exec sleep 60";
    let args = format!("command \"sh\"\nargs \"-c\" \"{script}\"\nport 8421\n");
    home.server("one", &format!("{args}limits {{ nofile 77 }}\n"));
    home.daemon();
    running(&home, "one");
    support::wait_for_line(&home, "one", "77");
    let limits = json!([{ "name": "nofile", "value": 77, "kept_by": "rlimit" }]);
    assert_eq!(status(&home, "one")["limits"], limits);
    let shown = home.xy(&["status", "one"]).stdout;
    assert!(shown.contains("nofile 77 (each process)"), "{shown}");

    support::ask(&home, "stop", json!({ "name": "one" }));
    let stopped = status(&home, "one");
    assert_eq!(stopped["limits"], json!([{ "name": "nofile", "value": 77 }]));
    assert_eq!(stopped.get("containment"), None);
    home.finish();
}

#[test]
fn unenforceable_limit_is_an_error() {
    let home = home();
    home.server("one", "command \"true\"\nlimits { nofile 4294967295 }\n");
    let checked = home.xy(&["check"]);
    assert_eq!(checked.code, 3);
    assert!(checked.stdout.contains("`nofile` cannot be more than"), "{}", checked.stdout);
    assert!(checked.stdout.contains("ulimit -Hn"), "{}", checked.stdout);
    let refused = home.daemon_fails();
    assert_eq!(refused.status.code(), Some(3));
    home.finish();
}

/// Tests that need the right to create control groups. Each prints a message if the right is
/// missing.
#[cfg(target_os = "linux")]
mod cgroups {
    use rustix::process::Signal;
    use serde_json::Value;
    use xy_shim::cgroup::{self, Enforcement};
    use xy_testkit::{Home, marked_processes};

    use super::support::signal;
    use super::*;

    const MEMORY: u64 = 64 << 20;

    /// Returns true if groups can enforce limits here; otherwise prints a message.
    #[expect(clippy::print_stdout, reason = "a skipped test must print its reason")]
    fn are_supported() -> bool {
        let support = cgroup::limit_support();
        let can = support.memory == Enforcement::ByCgroup && support.pids == Enforcement::ByCgroup;
        if !can {
            println!("SKIPPED: no control groups for limits: {support:?}");
        }
        can
    }

    fn limited(home: &Home, script: &str) {
        let text = format!(
            "command \"sh\"\nargs \"-c\" \"{script}\"\nport 8421\n\
             limits {{ memory \"64MiB\"; pids 20 }}\nrestart {{ policy \"never\" }}\n"
        );
        home.server("one", &text);
    }

    fn shown(home: &Home) -> String {
        home.xy(&["status", "one"]).stdout
    }

    #[test]
    fn limits_and_containment_are_shown() {
        if !are_supported() {
            return;
        }
        let home = home();
        limited(&home, "exec sleep 60");
        home.daemon();
        running(&home, "one");
        let status = status(&home, "one");
        let limits = json!([
            { "name": "memory", "value": MEMORY, "kept_by": "cgroup" },
            { "name": "pids", "value": 20, "kept_by": "cgroup" },
        ]);
        assert_eq!(status["limits"], limits);
        assert_eq!(status["containment"], "cgroup");
        let shown = shown(&home);
        assert!(shown.contains("tracked by cgroup + subreaper"), "{shown}");
        assert!(shown.contains("memory 64 MiB (all together), pids 20 (all together)"), "{shown}");
        home.finish();
    }

    #[test]
    fn out_of_memory_kill_is_reported() {
        if !are_supported() {
            return;
        }
        let home = home();
        limited(&home, "exec tail /dev/zero");
        home.daemon();
        let ended = home.wait_until("the kernel has killed it", || {
            let status = status(&home, "one");
            (!status["last_exit"].is_null()).then_some(status)
        });
        assert_eq!(ended["last_exit"]["signal"], 9);
        assert_eq!(ended["last_exit"]["oom"], "limit");
        let reason = ended["reason"].as_str().unwrap();
        assert!(reason.contains("it used more than its memory limit (64 MiB)"), "{reason}");
        let shown = shown(&home);
        assert!(shown.contains("signal 9 (unexpected), over its memory limit"), "{shown}");
        home.finish();
    }

    /// Returns the cgroup2 path of a process.
    fn group_of(pid: u32) -> String {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        own.unwrap().to_owned()
    }

    /// Returns the process id of a server's shim, which is in the name of its group.
    fn shim_of(group: &str) -> Option<u32> {
        group.rsplit('/').next()?.split('-').nth(1)?.parse().ok()
    }

    /// Returns the group of a server's leader, and its shim.
    #[track_caller]
    fn group_and_shim(home: &Home, pid: u32) -> (String, u32) {
        home.wait_until("it is in its group", || {
            let group = group_of(pid);
            shim_of(&group).map(|shim| (group, shim))
        })
    }

    #[test]
    fn next_daemon_ends_processes_of_a_killed_shim() {
        if !are_supported() {
            return;
        }
        let home = home();
        limited(&home, "setsid sleep 601 & exec sleep 60");
        let daemon = home.daemon();
        let (_, shim) = group_and_shim(&home, running(&home, "one"));
        let escaped = home.wait_until("it has escaped", || {
            let all = marked_processes(home.mark());
            all.into_iter().find(|it| it.cmdline.contains("sleep 601")).map(|it| it.pid)
        });
        signal(shim, Signal::STOP); // Keeps it from noticing the daemon's end.
        daemon.kill9();
        signal(shim, Signal::KILL);
        let is_left = |pid| marked_processes(home.mark()).iter().any(|it| it.pid == pid);
        home.wait_until("the shim is dead", || !is_left(shim));
        home.daemon();
        running(&home, "one");
        home.wait_until("it is gone", || !is_left(escaped));
        home.finish();
    }

    #[test]
    fn killed_shim_leaves_its_group_empty() {
        if !are_supported() {
            return;
        }
        let home = home();
        limited(&home, "setsid sleep 60 & exec sleep 60");
        home.daemon();
        let pid = running(&home, "one");
        let (group, shim) = group_and_shim(&home, pid);
        let name = group.rsplit('/').next().unwrap().to_owned();
        signal(shim, Signal::KILL);
        home.wait_until("its end is seen", || {
            status(&home, "one").get("last_exit").is_some_and(|exit: &Value| !exit.is_null())
        });
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        for mount in mounts.lines().filter(|line| line.contains(" - cgroup")) {
            let folder = format!("{}/{name}", mount.split(' ').nth(4).unwrap());
            assert!(!std::path::Path::new(&folder).exists(), "{folder}");
        }
        home.finish();
    }
}
