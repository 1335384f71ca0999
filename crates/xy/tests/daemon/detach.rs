//! `xy daemon --detach`: a daemon with its own session.

use std::fs;
#[cfg(target_os = "linux")]
use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, is_alive};

use crate::pty::Pty;
use crate::{home_with_one, shown};

fn pid_of_daemon(home: &Home) -> u32 {
    let info = home.call("info", Value::Null).unwrap();
    u32::try_from(info["pid"].as_u64().unwrap()).unwrap()
}

#[test]
fn detach_returns_once_the_daemon_serves() {
    let home = home_with_one();
    let ran = home.xy(&["daemon", "--detach"]);
    let pid = pid_of_daemon(&home); // No wait is needed: the daemon serves already.
    assert!(ran.stdout.contains(&pid.to_string()), "{ran:?}");
    assert_snapshot!(shown(&home, &ran));
    home.wait_for_state("one", "running");
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert!(!is_alive(pid));
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn detached_daemon_has_own_session_folder_and_log() {
    let home = home_with_one();
    let mut command = home.command(&["daemon", "--detach"]);
    command.current_dir(home.root().join("tmp"));
    assert!(command.output().unwrap().status.success());
    let pid = pid_of_daemon(&home);
    home.wait_for_state("one", "running");

    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[3], pid.to_string(), "its session");
    assert_eq!(fields[4], "0", "no terminal");
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(cwd, home.root().join("home"));
    for stream in [0, 1] {
        let target = fs::read_link(format!("/proc/{pid}/fd/{stream}")).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"));
    }
    let log = home.root().join("state/xy/daemon.log");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains(&format!("ready pid={pid}")), "{text}");
    assert!(text.contains("server=one from=starting to=running"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    home.finish();
}

#[test]
fn detached_daemon_survives_its_parent() {
    let home = home_with_one();
    // Starts the daemon from a session that ends with all its processes.
    let daemon = home.command(&["daemon", "--detach"]);
    let mut session = std::process::Command::new("setsid");
    session.args(["sh", "-c", "\"$@\" && kill -HUP 0; exit 1", "sh"]);
    session.arg(daemon.get_program()).args(daemon.get_args()).env_clear();
    session.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert!(!session.output().unwrap().status.success());
    home.wait_for_state("one", "running");
    home.call("restart", json!({ "name": "one" })).unwrap();
    home.finish();
}

#[test]
fn detached_daemon_releases_the_terminal() {
    let home = home_with_one();
    // The output is complete only when no process holds the terminal.
    let (code, seen) = Pty::new(80).run(&mut home.command(&["daemon", "--detach"]));
    let pid = pid_of_daemon(&home);
    assert_eq!(code, 0, "{seen}");
    assert!(seen.contains(&format!("xy daemon started, pid {pid}\n")), "{seen:?}");
    home.wait_for_state("one", "running");
    home.finish();
}

#[test]
fn second_detached_daemon_is_refused() {
    let home = home_with_one();
    let daemon = home.daemon();
    let ran = home.xy(&["daemon", "--detach"]);
    assert!(ran.stderr.contains(&daemon.pid.to_string()), "{ran:?}");
    assert_snapshot!(shown(&home, &ran));
    assert_eq!(home.call("info", Value::Null).unwrap()["pid"], daemon.pid);
    home.finish();
}

#[test]
fn invalid_configuration_is_reported_in_full() {
    let home = home_with_one();
    home.server("bad", "comand \"x\"\nport 0\n");
    let foreground = home.xy(&["daemon"]);
    let ran = home.xy(&["daemon", "--detach", "--strict"]);
    assert_eq!(ran, foreground);
    assert_snapshot!(shown(&home, &ran));
    home.finish();
}

#[test]
fn start_failure_is_reported() {
    let home = home_with_one();
    fs::write(home.root().join("state/xy"), "precious").unwrap();
    let ran = home.xy(&["daemon", "--detach"]);
    assert_snapshot!(shown(&home, &ran));
    home.expect_left("state/xy");
    home.finish();
}

#[test]
fn detached_daemon_identifies_itself_as_json() {
    let home = home_with_one();
    let answer = home.xy_json(&["daemon", "--detach"]);
    let info = home.call("info", Value::Null).unwrap();
    for key in ["version", "pid", "control_socket", "mcp_socket", "gateway_url"] {
        assert_eq!(answer[key], info[key], "{key}");
    }
    home.finish();
}
