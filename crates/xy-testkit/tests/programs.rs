//! Tests of the flags of the test servers whose silent failure would make other tests pass wrongly.
//!
//! Reads here have no timeout. The safety limit of a test server ends one that stays silent.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xy_testkit::group_and_session;

const RUN_LOG: &str = env!("CARGO_BIN_EXE_xy-test-run-log");
const IGNORE_TERM: &str = env!("CARGO_BIN_EXE_xy-test-ignore-term");
const MIRROR: &str = env!("CARGO_BIN_EXE_xy-test-mirror");
const TREE: &str = env!("CARGO_BIN_EXE_xy-test-tree");

/// A server whose stderr is read line by line.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Server {
    fn start(program: &str, args: &[&str], stdin: Stdio) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end. Returns the remaining output, the exit code and the signal.
    fn end(mut self) -> (String, Option<i32>, Option<i32>) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        (rest, status.code(), status.signal())
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn ignore_term_ends_only_by_sigkill() {
    let mut server = Server::start(IGNORE_TERM, &[], Stdio::piped());
    assert_eq!(server.line(), "ready");
    drop(server.child.stdin.take());
    for _ in 0..2 {
        server.send(Signal::TERM);
        assert_eq!(server.line(), "got TERM");
    }
    server.send(Signal::KILL);
    assert_eq!(server.end(), (String::new(), None, Some(9)));
}

#[test]
fn mirror_prints_its_environment() {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" an-argument <&-"#, MIRROR]);
    command.env_clear().env("TESTED", "yes").current_dir("/");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut mirror = Server { child, stderr };
    let line = mirror.line();
    let Ok(seen) = serde_json::from_str::<Value>(&line) else {
        panic!("it said {line:?}, and then {:?}", mirror.end());
    };
    mirror.send(Signal::TERM);
    assert_eq!(mirror.end().1, Some(0));

    assert_eq!(seen["argv"], json!([MIRROR, "an-argument"]));
    assert_eq!(seen["cwd"], "/");
    assert_eq!(seen["env"]["TESTED"], "yes");
    assert_eq!(seen["env"].get("HOME"), None);
    assert_eq!(seen["ppid"], std::process::id());
    let (group, session) = group_and_session(std::process::id()).unwrap();
    assert_eq!((&seen["pgid"], &seen["sid"]), (&json!(group), &json!(session)));
    assert_eq!((&seen["stdin"], &seen["stdout"]), (&json!("closed"), &json!("null")));
    assert_eq!(seen["stderr"], "pipe");
    if cfg!(target_os = "linux") {
        assert_eq!(seen["fds"]["1"], "/dev/null");
        assert!(seen["fds"]["2"].as_str().unwrap().starts_with("pipe:["), "{seen}");
        // Not even SIGPIPE: the program reads the mask before the Rust runtime ignores it.
        assert_eq!(seen["signals"]["caught"], json!([]));
        assert!(!seen["signals"]["ignored"].as_array().unwrap().contains(&json!(13)), "{seen}");
    }
}

#[test]
fn childless_tree_is_ready_and_ends_on_signal() {
    let mut server = Server::start(TREE, &[], Stdio::piped());
    assert_eq!(server.line(), "ready");
    drop(server.child.stdin.take());
    assert_eq!(server.end(), (String::new(), Some(0), None));

    let mut server = Server::start(TREE, &["--close", "stdin"], Stdio::piped());
    assert_eq!(server.line(), "ready");
    drop(server.child.stdin.take()); // The server has closed its own end, and continues.
    server.send(Signal::TERM);
    assert_eq!(server.end(), (String::new(), Some(0), None));

    let mut server = Server::start(TREE, &["--deaf-leader"], Stdio::piped());
    assert_eq!(server.line(), "ready");
    drop(server.child.stdin.take());
    server.send(Signal::TERM);
    server.send(Signal::HUP);
    server.send(Signal::KILL);
    assert_eq!(server.end(), (String::new(), None, Some(9)));
}

#[cfg(target_os = "linux")]
mod trees {
    use xy_testkit::{Proc, marked_processes};

    use super::*;

    /// A process tree whose processes carry a tag.
    struct Tree {
        server: Server,
        tag: String,
    }

    impl Tree {
        fn start(args: &[&str]) -> Self {
            let tag = format!("tree-of-{}-{}", std::process::id(), args.join("-"));
            let args = [args, &["--tag", &tag]].concat();
            let mut server = Server::start(TREE, &args, Stdio::piped());
            assert_eq!(server.line(), "ready");
            Self { server, tag }
        }

        /// Returns the descendants, which carry the pid of the leader in their tag.
        fn descendants(&self) -> Vec<Proc> {
            marked_processes(&format!("{}-{}", self.tag, self.server.child.id()))
        }

        /// Kills the descendants. Looks several times, because one look can miss a hopper.
        fn kill_all(&self) {
            let mut empty_looks = 0;
            while empty_looks < 10 {
                let descendants = self.descendants();
                empty_looks = if descendants.is_empty() { empty_looks + 1 } else { 0 };
                for process in &descendants {
                    let _ = kill_process(pid(process), Signal::KILL); // It may have ended.
                }
            }
        }
    }

    fn pid(process: &Proc) -> Pid {
        Pid::from_raw(process.pid.try_into().unwrap()).unwrap()
    }

    #[test]
    fn each_child_has_expected_group_and_session() {
        for (kind, count) in
            [("same-group", 1), ("session", 1), ("daemon", 1), ("storm", 64), ("holds-output", 1)]
        {
            let tree = Tree::start(&["--child", kind]);
            let (leader_group, leader_session) = group_and_session(tree.server.child.id()).unwrap();
            let descendants = tree.descendants();
            assert_eq!(descendants.len(), count, "{kind}: {descendants:#?}");
            for process in descendants.iter().map(|it| it.pid) {
                let stays = !matches!(kind, "session" | "daemon");
                let (group, session) = group_and_session(process).unwrap();
                assert_eq!(group == leader_group, stays, "{kind}");
                assert_eq!(session == leader_session, stays, "{kind}");
                assert_eq!(session == process, kind == "session", "{kind}");
            }
            tree.kill_all();
            drop(tree.server.child.stdin);
        }
    }

    #[test]
    fn hopper_changes_pid_and_ends() {
        // Slow enough that a look at all processes cannot miss every generation.
        let tree = Tree::start(&["--child", "hopper", "--hop-for", "20000", "--hop-every", "100"]);
        let mut seen: Vec<u32> = Vec::new();
        for _ in 0..5_000 {
            seen.extend(tree.descendants().iter().map(|process| process.pid));
            seen.sort_unstable();
            seen.dedup();
            if seen.len() > 1 {
                break;
            }
        }
        assert!(seen.len() > 1, "{seen:?}");
        tree.kill_all(); // A hopper is hard to catch; one that escapes ends by itself.
        drop(tree.server.child.stdin);
    }

    #[test]
    fn deaf_children_ignore_signals() {
        for args in [
            &["--child", "session", "--deaf"][..],
            &["--child", "daemon", "--deaf", "--without-environment"],
            &["--child", "same-group", "--without-environment"],
        ] {
            let tree = Tree::start(args);
            let [one] = &tree.descendants()[..] else { panic!("{args:?}") };
            let environ = fs::read(format!("/proc/{}/environ", one.pid)).unwrap();
            assert_eq!(environ.is_empty(), args.contains(&"--without-environment"), "{args:?}");
            let status = fs::read_to_string(format!("/proc/{}/status", one.pid)).unwrap();
            let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
            let [hup, term] =
                [Signal::HUP, Signal::TERM].map(|it| ignored >> (it.as_raw() - 1) & 1);
            assert_eq!([hup, term], [u64::from(args.contains(&"--deaf")); 2], "{args:?}");
            tree.kill_all();
            drop(tree.server.child.stdin);
        }
    }

    #[test]
    fn child_holds_output_of_ended_server() {
        let mut tree = Tree::start(&["--child", "holds-output", "--then", "exit", "3"]);
        assert_eq!(tree.server.child.wait().unwrap().code(), Some(3));
        let [holder] = &tree.descendants()[..] else { panic!("no process holds the output") };
        let held = fs::read_link(format!("/proc/{}/fd/2", holder.pid)).unwrap();
        assert!(held.to_str().unwrap().starts_with("pipe:["), "{held:?}");
        tree.kill_all();
        assert_eq!(tree.server.line(), ""); // End of file.
    }

    #[test]
    fn stopped_tree_continues() {
        let tree = Tree::start(&["--stop-self"]);
        let leader = tree.server.child.id();
        let state = || marked_processes(&tree.tag).into_iter().find(|it| it.pid == leader);
        while state().unwrap().state != 'T' {}
        tree.server.send(Signal::TERM);
        tree.server.send(Signal::CONT);
        assert_eq!(tree.server.end(), (String::new(), Some(0), None));
    }
}

/// Runs the server `a` once, with its run log in `folder`.
fn run_once(folder: &Path) -> Output {
    let args = ["--every", "1", "--width", "60", "--at-most", "3", "--ends-after", "20"];
    let mut command = Command::new(RUN_LOG);
    command.arg("--run-log").arg(folder).args(args).env("XY_SERVER", "a");
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn run_log_records_output_and_end_of_each_run() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=2 {
        let ended = run_once(folder.path());
        assert_eq!(ended.status.code(), Some(number));
        let lines: Vec<&str> = text(&ended.stdout).lines().collect();
        assert_eq!((lines.len(), text(&ended.stderr).lines().count()), (3, 3));
        assert!(lines.iter().all(|line| line.len() == 60 && line.ends_with('.')), "{lines:?}");
        let life = lines[0].split(' ').next().unwrap();
        let page = fs::read_to_string(folder.path().join("a").join(life)).unwrap();
        assert_eq!(page, format!("000000000003 000000000003 {number:03}\n"));
    }
    assert!(!folder.path().join("a.twice").exists());
}

#[test]
fn second_concurrent_run_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let lock = fs::File::create(folder.path().join("a.lock")).unwrap();
    lock.try_lock().unwrap();
    run_once(folder.path());
    assert!(folder.path().join("a.twice").exists());
}
