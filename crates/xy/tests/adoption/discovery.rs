//! The entries that a daemon finds in its folder of shims, and the processes that it leaves alone.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use xy_shim::wire::{self, Report};
use xy_testkit::{Home, is_alive};

use crate::support::{home, running, status};
use crate::{renewed, sleeper};

/// A lock that the test holds in place of a shim.
struct Held {
    _lock: File,
    socket: PathBuf,
}

fn hold(home: &Home, server: &str, identity: impl FnOnce(&str) -> Value) -> Held {
    let folder = home.root().join("state/xy/shims");
    fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("0123456789abcdef.sock");
    let mut lock = File::create(folder.join(format!("{server}.lock"))).unwrap();
    lock.try_lock().unwrap();
    let text = identity(socket.to_str().unwrap()).to_string();
    lock.write_all(text.as_bytes()).unwrap();
    Held { _lock: lock, socket }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket); // It may never have been created.
    }
}

/// Returns the start time of a process, in the kernel's unit.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn identity(pid: u32, start_time: u64, boot_id: &str, socket: &str) -> Value {
    let protocol = wire::PROTOCOL;
    json!({ "protocol": protocol, "pid": pid, "began": start_time, "boot": boot_id, "life": "x-y",
            "socket": socket })
}

fn foreign_process() -> Child {
    Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap()
}

fn end(mut foreign_process: Child) {
    assert!(is_alive(foreign_process.id()), "the foreign process was killed");
    foreign_process.kill().unwrap();
    foreign_process.wait().unwrap();
}

#[test]
fn reused_pid_is_never_signalled() {
    let home = home();
    home.server("one", &sleeper(&home));
    for (began_later, boot_id) in [(1, boot_id()), (0, "another boot".to_owned())] {
        let foreign_process = foreign_process();
        let pid = foreign_process.id();
        let start_time = start_time(pid) + began_later;
        let held = hold(&home, "one", |socket| identity(pid, start_time, &boot_id, socket));
        let daemon = home.daemon();
        let waits = status(&home, "one");
        assert_eq!(waits["reason"], "waiting for the previous instance to exit", "{waits:#}");
        end(foreign_process);
        drop(held);
        running(&home, "one");
        assert!(daemon.terminate().success());
    }
}

#[test]
fn foreign_process_at_socket_is_neither_trusted_nor_signalled() {
    let home = home();
    home.server("one", &sleeper(&home));
    let foreign_process = foreign_process();
    let pid = foreign_process.id();
    let held = hold(&home, "one", |socket| identity(pid, start_time(pid), &boot_id(), socket));
    // Bound by this test rather than by that process.
    let _listens = UnixListener::bind(&held.socket).unwrap();
    let daemon = home.daemon();
    assert!(daemon.stderr().contains("another process listens at its socket"));
    assert_eq!(status(&home, "one")["state"], "stopping");
    end(foreign_process);
    drop(held);
    running(&home, "one");
}

#[test]
fn shim_of_other_version_is_stopped_and_awaited() {
    let home = home();
    home.server("one", &sleeper(&home));
    let ours = std::process::id();
    let held = hold(&home, "one", |socket| identity(ours, start_time(ours), &boot_id(), socket));
    let listener = UnixListener::bind(&held.socket).unwrap();
    let answers = std::thread::spawn(move || {
        let (mut daemon, _) = listener.accept().unwrap();
        let mut hello = [0; 256];
        let count = daemon.read(&mut hello).unwrap();
        assert!(count > 0);
        let mut refused = Vec::new();
        wire::put_report(&mut refused, &Report::Refused { protocol: 99 });
        daemon.write_all(&refused).unwrap();
    });
    let daemon = home.daemon();
    answers.join().unwrap();
    let words = daemon.stderr();
    let told = format!("it speaks version 99 and this daemon {}", wire::PROTOCOL);
    assert!(words.contains(&told), "{words}");
    assert_eq!(status(&home, "one")["state"], "stopping");
    drop(held);
    running(&home, "one");
}

#[test]
fn unreachable_shim_is_stopped_and_server_restarted() {
    let home = home();
    home.write_config("xy.kdl", "orphan-timeout \"1h\"");
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let before = running(&home, "one");
    daemon.kill9();
    for entry in fs::read_dir(home.root().join("state/xy/shims")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            fs::remove_file(path).unwrap();
        }
    }
    home.daemon();
    renewed(&home, "one", before);
}

#[test]
fn slow_shim_is_adopted_later() {
    let home = home();
    home.server("slow", &sleeper(&home));
    home.server("quick", &sleeper(&home));
    let daemon = home.daemon();
    let before = ["slow", "quick"].map(|name| running(&home, name));
    let lock = fs::read(home.root().join("state/xy/shims/slow.lock")).unwrap();
    let lock: Value = serde_json::from_slice(&lock).unwrap();
    daemon.kill9();
    // Each of these accepts connections for two seconds and never replies.
    let socket = std::path::Path::new(lock["socket"].as_str().unwrap());
    let strangers = [(); 5].map(|()| xy_shim::listener::connect(socket).unwrap());
    home.daemon();
    assert_eq!(running(&home, "quick"), before[1]);
    assert_eq!(running(&home, "slow"), before[0]);
    drop(strangers);
}

#[test]
fn foreign_files_in_shim_folder_are_ignored() {
    let home = home();
    home.server("one", &sleeper(&home));
    let folder = home.root().join("state/xy/shims");
    fs::create_dir_all(folder.join("dir.lock")).unwrap();
    fs::write(folder.join("one.lock"), "not an identity").unwrap();
    fs::write(folder.join("gone.lock"), "").unwrap();
    fs::write(folder.join("stale.sock"), "").unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("pipe.lock")).status().unwrap().success());
    home.daemon();
    running(&home, "one");
    assert!(!folder.join("gone.lock").exists() && !folder.join("stale.sock").exists());
}

#[test]
fn marked_orphans_are_killed_at_start() {
    let home = home();
    home.server("one", &sleeper(&home));
    let daemon = home.daemon();
    let mark = mark_of(running(&home, "one"));
    let (ours, _) = mark.rsplit_once('-').unwrap();
    daemon.kill9();
    let marked =
        |mark: &str| Command::new("sleep").arg("60").env("XY_INSTANCE", mark).spawn().unwrap();
    let mut left = marked(&format!("{ours}-0000000000000000"));
    let another_home = marked("0000000000000000-0000000000000000");
    let alike = marked(&format!("{ours}0-0000000000000000"));
    home.daemon();
    assert!(!left.wait().unwrap().success());
    end(another_home);
    end(alike);
    running(&home, "one");
}

fn mark_of(pid: u32) -> String {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mark = environ.split(|&byte| byte == 0).find_map(|it| it.strip_prefix(b"XY_INSTANCE="));
    String::from_utf8(mark.unwrap().to_vec()).unwrap()
}
