//! Leaders that are suspended, that have closed their pipes, or whose pipes other processes hold.

use std::fs::File;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::{Home, is_alive, marked_processes};

use super::support::{ask, home, refused, running_after, signal, status, wait_for_line};
use super::{NO_RESTART_SOON, assert_only, ready, tree};

/// Longer than any test: a process that ends within it has obeyed and was not killed.
const LONG_GRACE: &str = "stop { grace \"1m\" }\n";

/// For processes that ignore the stop.
const SHORT_GRACE: &str = "stop { grace \"200ms\" }\n";

const QUICK_RESTART: &str = "restart { backoff-initial \"10ms\"; max-attempts 0 }\n";

#[track_caller]
fn stop(home: &Home, name: &str) {
    let stopped = ask(home, "stop", json!({ "name": name }));
    assert_eq!(stopped["stopped"], json!([name]));
}

/// Returns the kernel's letter for the state of a process.
fn process_state(home: &Home, pid: u32) -> Option<char> {
    marked_processes(home.mark()).into_iter().find(|it| it.pid == pid).map(|it| it.state)
}

#[test]
fn suspended_leader_receives_the_stop() {
    let home = home();
    home.server("one", &tree(&home, &["--child", "session", "--stop-self"], LONG_GRACE));
    let daemon = home.daemon();
    let leader = ready(&home, "one", 1);
    home.wait_until("it has stopped itself", || process_state(&home, leader) == Some('T'));

    stop(&home, "one");

    assert_only(&home, &[daemon.pid], "after the stop");
    assert_eq!(status(&home, "one")["last_exit"]["code"], 0);
    home.finish();
}

#[test]
fn suspended_leader_that_ignores_term_is_killed() {
    let home = home();
    let args = ["--child", "session", "--deaf", "--deaf-leader", "--stop-self"];
    home.server("one", &tree(&home, &args, SHORT_GRACE));
    let daemon = home.daemon();
    let leader = ready(&home, "one", 1);
    home.wait_until("it has stopped itself", || process_state(&home, leader) == Some('T'));

    stop(&home, "one");

    assert_only(&home, &[daemon.pid], "after the stop");
    assert_eq!(status(&home, "one")["last_exit"]["signal"], 9);
    home.finish();
}

#[test]
fn leader_with_closed_pipes_is_still_supervised() {
    // A stdio server that closed its stdout would be stopped, so this one has a port.
    for (closed, port) in [("stdin", ""), ("stdout", "port 8421\n")] {
        let home = home();
        let rules = format!("{LONG_GRACE}{NO_RESTART_SOON}{port}");
        home.server("one", &tree(&home, &["--close", closed], &rules));
        let daemon = home.daemon();
        ready(&home, "one", 1);
        assert_eq!(status(&home, "one")["state"], "running", "{closed}");

        stop(&home, "one");
        assert_only(&home, &[daemon.pid], closed);
        assert_eq!(status(&home, "one")["last_exit"]["code"], 0, "{closed}");

        ask(&home, "start", json!({ "name": "one" }));
        signal(ready(&home, "one", 2), Signal::KILL);
        let seen = home.wait_for_state("one", "restarting");
        assert_eq!(seen["last_exit"]["signal"], 9, "{closed}");
        assert_only(&home, &[daemon.pid], closed);
        home.finish();
    }
}

#[test]
fn grandchild_holding_output_delays_no_restart() {
    let home = home();
    let args = ["--child", "holds-output", "--deaf", "--then", "exit", "3"];
    home.server("one", &tree(&home, &args, &format!("{SHORT_GRACE}{QUICK_RESTART}")));
    home.daemon();

    // The process would hold the pipes for longer than any wait here.
    let seen = home.wait_until("it has been restarted twice", || {
        let status = status(&home, "one");
        (status["restarts_total"].as_u64() >= Some(2)).then_some(status)
    });

    assert_eq!(seen["last_exit"]["code"], 3);
    home.finish();
}

#[test]
fn foreign_process_holding_output_delays_no_restart() {
    for transport in ["", "port 8421\n"] {
        let home = home();
        home.server("one", &tree(&home, &[], &format!("{transport}{QUICK_RESTART}")));
        home.daemon();
        let leader = ready(&home, "one", 1);
        // The holder is a process that xy cannot end: this test itself.
        let held = [1, 2].map(|number| {
            File::options().write(true).open(format!("/proc/{leader}/fd/{number}")).unwrap()
        });

        signal(leader, Signal::KILL);

        let seen = running_after(&home, "one", 1);
        assert_eq!(seen["last_exit"]["signal"], 9);
        assert!(!is_alive(leader));
        drop(held);
        home.finish();
    }
}

#[test]
fn descendants_get_the_whole_grace() {
    let home = home();
    home.expect_left("tmp/");
    let clean = home.root().join("tmp/clean");
    let script = format!(
        "bash -c 'trap \\\"sleep 0.3; echo clean >{}; exit 0\\\" TERM; echo ready >&2; \
         while :; do sleep 0.05; done' & trap 'exit 0' TERM; wait; wait",
        clean.display()
    );
    home.server(
        "one",
        &format!("command \"bash\"\nargs \"-c\" \"{script}\"\nport 8421\n{LONG_GRACE}"),
    );
    let daemon = home.daemon();
    ready(&home, "one", 1);
    stop(&home, "one");
    assert_eq!(std::fs::read_to_string(clean).unwrap(), "clean\n");
    assert_only(&home, &[daemon.pid], "after the stop");
    home.finish();
}

#[test]
fn leader_without_its_first_thread_is_alive() {
    let home = home();
    home.server("one", &format!("{}{LONG_GRACE}", home.kdl_command("xy-test-headless", &[])));
    let daemon = home.daemon();
    wait_for_line(&home, "one", "ready");
    let now = status(&home, "one");
    assert_eq!(now["state"], "running", "{now:#}");

    stop(&home, "one");

    assert_only(&home, &[daemon.pid], "after the stop");
    assert_eq!(status(&home, "one")["last_exit"]["code"], 5);
    home.finish();
}

#[test]
fn traced_leader_is_stopped() {
    let home = home();
    home.server("one", &tree(&home, &["--deaf-leader"], SHORT_GRACE));
    let daemon = home.daemon();
    let leader = ready(&home, "one", 1);
    // A traced child dies to its debugger first, and to its parent once the debugger has waited.
    let debugger = std::thread::spawn(move || {
        let held = debug::hold(leader);
        debug::wait_until_dead(leader);
        held
    });
    home.wait_until("the debugger holds it", || debug::is_held(leader));
    stop(&home, "one");
    assert!(debugger.join().unwrap());
    assert_only(&home, &[daemon.pid], "after the stop");
    home.finish();
}

/// A control group of version 1 in which processes hang in the kernel: they do not even die of
/// SIGKILL.
struct FrozenGroup {
    folder: std::path::PathBuf,
}

impl FrozenGroup {
    fn create(home: &Home) -> Option<Self> {
        let folder = std::path::Path::new("/sys/fs/cgroup/freezer").join(home.mark());
        std::fs::create_dir(&folder).ok()?;
        Some(Self { folder })
    }

    fn freeze(&self, pid: u32) {
        std::fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(self.folder.join("freezer.state"), "FROZEN").unwrap();
    }

    /// Removes the group, if it is empty.
    fn try_remove(&self) -> bool {
        std::fs::remove_dir(&self.folder).is_ok()
    }

    fn thaw(&self) {
        // A test that passed has removed the group before the drop.
        let _ = std::fs::write(self.folder.join("freezer.state"), "THAWED");
    }
}

impl Drop for FrozenGroup {
    fn drop(&mut self) {
        self.thaw();
    }
}

#[test]
fn leader_that_hangs_in_the_kernel_is_reported() {
    let home = home();
    let Some(group) = FrozenGroup::create(&home) else {
        println!("SKIPPED: there is no control group in which a process can be made to hang");
        return;
    };
    home.server("one", &tree(&home, &[], SHORT_GRACE));
    let daemon = home.daemon();
    let leader = ready(&home, "one", 1);
    group.freeze(leader);
    home.wait_until("it hangs", || process_state(&home, leader) == Some('D'));

    let error = refused(&home, "stop", json!({ "name": "one" }));
    assert_eq!(error["message"], "server `one` was not stopped completely", "{error:#}");
    assert!(error["data"]["cause"].as_str().unwrap().contains(&leader.to_string()), "{error:#}");
    let warned = status(&home, "one")["warnings"].to_string();
    assert!(warned.contains(&format!("process {leader} survives SIGKILL")), "{warned}");

    group.thaw();
    home.wait_until("it has died", || !is_alive(leader));
    assert!(daemon.terminate().success());
    home.wait_until("the group is empty", || group.try_remove());
}

/// The parts of a debugger that the test needs.
mod debug {
    #![expect(unsafe_code, reason = "there is no safe ptrace")]

    use libc::{PTRACE_SEIZE, WIFEXITED, WIFSIGNALED, c_int, c_void, pid_t};

    /// Traces the process for as long as this thread lives.
    pub(super) fn hold(pid: u32) -> bool {
        let nothing = std::ptr::null_mut::<c_void>();
        // SAFETY: seizing reads and writes no memory of this process.
        unsafe { libc::ptrace(PTRACE_SEIZE, pid.cast_signed(), nothing, nothing) == 0 }
    }

    /// Waits for all events of the process, until its end.
    pub(super) fn wait_until_dead(pid: u32) {
        let pid: pid_t = pid.cast_signed();
        let mut status: c_int = 0;
        // SAFETY: `waitpid` writes to `status` only; continuing touches no memory of this process.
        unsafe {
            while libc::waitpid(pid, &raw mut status, libc::__WALL) == pid
                && !WIFEXITED(status)
                && !WIFSIGNALED(status)
            {
                let nothing = std::ptr::null_mut::<c_void>();
                let signal = (status >> 8).unsigned_abs() & 0x7f; // Passes the signal on.
                let signal = std::ptr::without_provenance_mut::<c_void>(signal as usize);
                libc::ptrace(libc::PTRACE_CONT, pid, nothing, signal);
            }
        }
    }

    pub(super) fn is_held(pid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    }
}
