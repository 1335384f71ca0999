//! A daemon whose surroundings go away.

use std::fs;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::process::Stdio;

use serde_json::{Value, json};
use xy_testkit::{Home, is_alive, read_log_lines};

#[cfg(target_os = "linux")]
use crate::pty::Pty;
use crate::{daemon_by, ends, home_with_one, serves};

/// The servers are supervised: one that dies comes back, and what it says is kept.
#[track_caller]
fn does_its_work(home: &Home) {
    let before = home.wait_for_state("one", "running")["pid"].clone();
    home.call("restart", json!({ "name": "one" })).unwrap();
    let after = home.wait_for_state("one", "running")["pid"].clone();
    assert_ne!(before, after);
    let said = format!("[err] started {after}");
    home.wait_until("its log has what it said", || read_log_lines(home, "one").contains(&said));
}

#[test]
fn a_daemon_without_any_of_its_three_streams_does_its_work() {
    let home = home_with_one();
    let mut daemon = daemon_by(&home, "exec \"$@\" <&- >&- 2>&-").spawn().unwrap();
    serves(&home, &mut daemon);
    does_its_work(&home);
    let words = ["started", "stopping"];
    for line in read_log_lines(&home, "one") {
        assert!(words.iter().any(|word| line.contains(word)), "not from the server: {line}");
    }
    ends(&home, &mut daemon);
    home.finish();
}

#[test]
fn a_daemon_whose_log_nobody_reads_any_more_does_its_work() {
    let home = home_with_one();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = home.command(&["daemon"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut daemon = command.spawn().unwrap();
    drop((command, reader));
    serves(&home, &mut daemon);
    does_its_work(&home);
    ends(&home, &mut daemon);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_daemon_whose_log_is_not_read_is_not_held_up() {
    let home = home_with_one();
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut command = home.command(&["daemon"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut daemon = command.spawn().unwrap();
    drop(command);
    serves(&home, &mut daemon);
    for _ in 0..30 {
        does_its_work(&home); // Each time a few lines of log.
    }
    drop(reader);
    ends(&home, &mut daemon);
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_daemon_whose_terminal_goes_away_reads_its_files_again_and_lives_on() {
    let home = home_with_one();
    let terminal = Pty::new(80);
    let daemon = home.command(&["daemon"]);
    // In a session of its own, whose terminal this is.
    let mut command = Command::new("setsid");
    command.arg("-c").arg(daemon.get_program()).args(daemon.get_args()).env_clear();
    command.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let mut daemon = command.spawn().unwrap();
    drop(command);
    serves(&home, &mut daemon);
    let pid = home.wait_for_state("one", "running")["pid"].clone();
    let terminal_of = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
    let has_terminal = terminal_of.rsplit_once(") ").unwrap().1.split(' ').nth(4) != Some("0");
    assert!(has_terminal, "{terminal_of}");

    home.server("two", &home.kdl_command("xy-test-sleep-server", &[]));
    drop(terminal.watch());
    home.wait_until("the hang-up has been taken as a wish to reload", || {
        home.call("status", json!({ "name": "two" })).is_ok()
    });
    home.wait_for_state("two", "running");
    assert_eq!(home.wait_for_state("one", "running")["pid"], pid);
    does_its_work(&home);
    ends(&home, &mut daemon);
    home.finish();
}

#[test]
fn a_daemon_is_not_bound_to_the_folder_it_was_started_in() {
    let home = home_with_one();
    let folder = home.root().join("tmp/gone");
    fs::create_dir(&folder).unwrap();
    let mut command = home.command(&["daemon"]);
    command.current_dir(&folder).stdin(Stdio::null()).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    serves(&home, &mut daemon);
    fs::remove_dir(&folder).unwrap();
    does_its_work(&home);
    ends(&home, &mut daemon);
    home.finish();
}

#[test]
fn shutdown_ends_every_server_and_then_the_daemon() {
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
fn a_hang_up_with_bad_files_changes_nothing_and_is_told_in_the_log() {
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
fn few_open_files_are_enough_for_many_servers_which_keep_the_limit_they_were_given() {
    let home = Home::new(std::path::Path::new(env!("CARGO_BIN_EXE_xy")));
    let says_its_limit = "command \"sh\"\nargs \"-c\" \"ulimit -Sn >&2; exec sleep 600\"\n";
    for n in 0..40 {
        home.server(&format!("s{n}"), &format!("{says_its_limit}stop {{ grace \"200ms\" }}\n"));
    }
    let mut daemon = daemon_by(&home, "ulimit -Sn 64; exec \"$@\"").spawn().unwrap();
    serves(&home, &mut daemon);
    home.wait_until("all have said it", || {
        (0..40).all(|n| read_log_lines(&home, &format!("s{n}")) == ["[err] 64"])
    });
    ends(&home, &mut daemon);
    home.finish();
}
