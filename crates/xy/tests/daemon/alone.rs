//! A daemon that loses its folder, its log or its terminal.

use std::fs;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::process::Stdio;

use serde_json::{Value, json};
use xy_testkit::{Home, is_alive, read_log_lines};

#[cfg(target_os = "linux")]
use crate::pty::Pty;
use crate::{daemon_by, home_with_one, stop_daemon, wait_until_serving};

/// Checks that a killed server is restarted, and that its lines are logged.
#[track_caller]
fn assert_works(home: &Home) {
    let before = home.wait_for_state("one", "running")["pid"].clone();
    home.call("restart", json!({ "name": "one" })).unwrap();
    let after = home.wait_for_state("one", "running")["pid"].clone();
    assert_ne!(before, after);
    let expected = format!("[err] started {after}");
    home.wait_until("its log has what it said", || read_log_lines(home, "one").contains(&expected));
}

#[test]
fn daemon_works_without_standard_streams() {
    let home = home_with_one();
    let mut daemon = daemon_by(&home, "exec \"$@\" <&- >&- 2>&-").spawn().unwrap();
    wait_until_serving(&home, &mut daemon);
    assert_works(&home);
    let words = ["started", "stopping"];
    for line in read_log_lines(&home, "one") {
        assert!(words.iter().any(|word| line.contains(word)), "not from the server: {line}");
    }
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
fn closed_log_pipe_does_not_stop_the_daemon() {
    let home = home_with_one();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = home.command(&["daemon"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut daemon = command.spawn().unwrap();
    drop((command, reader));
    wait_until_serving(&home, &mut daemon);
    assert_works(&home);
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn unread_log_does_not_block_the_daemon() {
    let home = home_with_one();
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut command = home.command(&["daemon"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut daemon = command.spawn().unwrap();
    drop(command);
    wait_until_serving(&home, &mut daemon);
    for _ in 0..30 {
        assert_works(&home); // Each check adds a few lines to the log.
    }
    drop(reader);
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn lost_terminal_reloads_the_daemon() {
    let home = home_with_one();
    let terminal = Pty::new(80);
    let daemon = home.command(&["daemon"]);
    // Runs in a session of its own, with this controlling terminal.
    let mut command = Command::new("setsid");
    command.arg("-c").arg(daemon.get_program()).args(daemon.get_args()).env_clear();
    command.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let mut daemon = command.spawn().unwrap();
    drop(command);
    wait_until_serving(&home, &mut daemon);
    let pid = home.wait_for_state("one", "running")["pid"].clone();
    let terminal_of = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
    let has_terminal = terminal_of.rsplit_once(") ").unwrap().1.split(' ').nth(4) != Some("0");
    assert!(has_terminal, "{terminal_of}");

    home.server("two", &home.kdl_command("xy-test-sleep-server", &[]));
    drop(terminal.watch());
    home.wait_until("SIGHUP has caused a reload", || {
        home.call("status", json!({ "name": "two" })).is_ok()
    });
    home.wait_for_state("two", "running");
    assert_eq!(home.wait_for_state("one", "running")["pid"], pid);
    assert_works(&home);
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
fn daemon_does_not_use_its_start_folder() {
    let home = home_with_one();
    let folder = home.root().join("tmp/gone");
    fs::create_dir(&folder).unwrap();
    let mut command = home.command(&["daemon"]);
    command.current_dir(&folder).stdin(Stdio::null()).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    wait_until_serving(&home, &mut daemon);
    fs::remove_dir(&folder).unwrap();
    assert_works(&home);
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
fn shutdown_stops_servers_before_the_daemon() {
    let home = home_with_one();
    home.server("two", &home.kdl_command("xy-test-sleep-server", &[]));
    let daemon = home.daemon();
    let pids = ["one", "two"].map(|name| {
        u32::try_from(home.wait_for_state(name, "running")["pid"].as_u64().unwrap()).unwrap()
    });
    let ran = home.xy(&["shutdown"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, format!("daemon {} has ended\n", daemon.pid));
    assert!(daemon.wait().success());
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert!(!home.socket().exists());
    assert_eq!(home.xy(&["shutdown"]).code, 2);
    home.finish();
}

#[test]
fn sighup_with_bad_files_is_logged_and_changes_nothing() {
    let home = home_with_one();
    let daemon = home.daemon();
    let pid = home.wait_for_state("one", "running")["pid"].clone();
    home.server("one", "comand \"x\"\n");
    let process = rustix::process::Pid::from_raw(i32::try_from(daemon.pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    home.wait_until("it is told", || daemon.stderr().contains("did you mean `command`?"));
    assert_eq!(home.call("list", Value::Null).unwrap()[0]["pid"], pid);
    home.finish();
}

#[test]
fn low_open_file_limit_is_raised_only_for_the_daemon() {
    let home = Home::new(std::path::Path::new(env!("CARGO_BIN_EXE_xy")));
    let says_its_limit = "command \"sh\"\nargs \"-c\" \"ulimit -Sn >&2; exec sleep 600\"\n";
    for n in 0..40 {
        home.server(&format!("s{n}"), &format!("{says_its_limit}stop {{ grace \"200ms\" }}\n"));
    }
    let mut daemon = daemon_by(&home, "ulimit -Sn 64; exec \"$@\"").spawn().unwrap();
    wait_until_serving(&home, &mut daemon);
    home.wait_until("all have said it", || {
        (0..40).all(|n| read_log_lines(&home, &format!("s{n}")) == ["[err] 64"])
    });
    stop_daemon(&home, &mut daemon);
    home.finish();
}
