//! Errors that keep a daemon from starting, with messages that a user can act on.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::{home, home_with_one, refusal, shown};

#[test]
fn file_in_place_of_servers_folder_is_invalid() {
    let home = home();
    let servers = home.root().join("config/xy/servers");
    fs::remove_dir(&servers).unwrap();
    fs::write(&servers, "precious").unwrap();
    assert_snapshot!(refusal(&home));
    assert_eq!(fs::read_to_string(&servers).unwrap(), "precious");
    home.expect_left("config/xy/servers");
    home.finish();
}

#[test]
fn deleted_socket_does_not_admit_a_second_daemon() {
    let home = home_with_one();
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let mut connected = home.connect();
    fs::remove_file(home.socket()).unwrap();
    assert_eq!(home.xy(&["list"]).code, 2);
    let second = home.daemon_fails();
    let output = String::from_utf8(second.stderr).unwrap();
    assert!(
        output.contains(&format!("another daemon is already running, pid {}", daemon.pid)),
        "{output}"
    );
    let list = connected.call("list", Value::Null).unwrap();
    assert_eq!(list[0]["state"], "running", "{list:#}");
    assert!(daemon.terminate().success());
}

#[test]
fn missing_servers_folder_means_no_servers() {
    let home = home();
    fs::remove_dir_all(home.root().join("config")).unwrap();
    home.daemon();
    assert_eq!(home.call("list", Value::Null), Ok(json!([])));
    home.finish();
}

#[test]
fn file_in_place_of_state_folder_is_reported() {
    let home = home_with_one();
    fs::write(home.root().join("state/xy"), "precious").unwrap();
    assert_snapshot!(refusal(&home));
    assert_eq!(fs::read_to_string(home.root().join("state/xy")).unwrap(), "precious");
    home.expect_left("state/xy");
    home.finish();
}

#[test]
fn long_socket_path_is_reported() {
    let long = format!("/tmp/{}", "x".repeat(120));
    let home = home_with_one().with_env("XDG_RUNTIME_DIR", &long);
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn missing_runtime_folder_is_reported() {
    let home = home_with_one().with_env("XDG_RUNTIME_DIR", "/nowhere/at/all");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn file_in_place_of_socket_is_not_deleted() {
    let home = home_with_one();
    fs::write(home.socket(), "precious").unwrap();
    assert_snapshot!(refusal(&home));
    assert_eq!(fs::read_to_string(home.socket()).unwrap(), "precious");
    home.expect_left("run/xy.sock");
    home.finish();
}

#[test]
fn folder_in_place_of_socket_is_not_deleted() {
    let home = home_with_one();
    fs::create_dir(home.socket()).unwrap();
    assert!(refusal(&home).contains("exists and is not a socket"));
    assert!(home.socket().is_dir());
    home.finish();
}

#[test]
fn socket_of_another_program_is_left_alone() {
    let home = home_with_one();
    let listener = UnixListener::bind(home.socket()).unwrap();
    assert_snapshot!(refusal(&home));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_ok(), "the daemon only probed the socket");
    drop(listener);
    home.expect_left("run/xy.sock");
    home.finish();
}

#[test]
fn stale_socket_is_replaced() {
    let home = home_with_one();
    drop(UnixListener::bind(home.socket()).unwrap());
    home.daemon();
    home.wait_for_state("one", "running");
    home.finish();
}

#[test]
fn second_daemon_is_refused() {
    let home = home_with_one();
    let first = home.daemon();
    let output = refusal(&home);
    assert_snapshot!(output);
    let raw = String::from_utf8(home.daemon_fails().stderr).unwrap();
    assert!(raw.contains(&format!("pid {}", first.pid)), "{raw}");
    home.wait_for_state("one", "running");
    home.finish();
}

#[test]
fn only_one_of_many_daemons_serves() {
    let home = home_with_one();
    let mut start = home.command(&["daemon"]);
    start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemons: Vec<_> = (0..8).map(|_| start.spawn().unwrap()).collect();
    let mut ended = Vec::new();
    home.wait_until("seven have given up", || {
        daemons.retain_mut(|daemon| match daemon.try_wait().unwrap() {
            Some(status) => {
                ended.push(status.code());
                false
            }
            None => true,
        });
        daemons.len() == 1
    });
    assert_eq!(ended, [Some(1); 7]);
    crate::wait_until_serving(&home, &mut daemons[0]);
    home.wait_for_state("one", "running");
    crate::stop_daemon(&home, &mut daemons[0]);
    home.finish();
}

#[test]
fn damaged_desired_state_is_set_aside() {
    let home = home_with_one();
    fs::create_dir(home.root().join("state/xy")).unwrap();
    fs::write(home.root().join("state/xy/wishes.json"), "{\"stopped\":").unwrap();
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let output = daemon.stderr();
    let warning = output.lines().find(|line| line.contains("WARN")).unwrap();
    assert_snapshot!(crate::redact::redact(&home, warning));
    let aside = home.root().join("state/xy/wishes.json.damaged");
    assert_eq!(fs::read_to_string(aside).unwrap(), "{\"stopped\":");
    home.expect_left("state/xy/wishes.json.damaged");
    home.finish();
}

#[test]
fn invalid_log_level_is_reported() {
    let home = home_with_one().with_env("XY_LOG", "xy=loud");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn log_level_can_be_set() {
    let home = home_with_one().with_env("XY_LOG", "warn");
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    assert_eq!(daemon.stderr(), "");
    home.finish();
}

#[test]
fn all_problems_of_all_files_are_reported() {
    let home = home_with_one();
    home.server("first", "comand \"x\"\nport \"http\"\n");
    home.server("second", "command \"/bin/true\"\nrestart { policy \"allways\" }\n");
    home.write_config("servers/third.kdl", "command \"/bin/true\n");
    home.server("bad__name", "command \"/bin/true\"\n");
    home.write_config("xy.kdl", "orphan-timeout \"soon\"\n");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn port_conflict_at_start_is_invalid() {
    let home = home();
    home.server("one", "command \"/bin/true\"\nport 8421\n");
    home.server("two", "command \"/bin/true\"\nport 8421\n");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn start_failure_is_printed_as_json() {
    let home = home();
    home.server("first", "comand \"x\"\n");
    let ran = home.xy(&["daemon", "--json"]);
    assert_snapshot!(shown(&home, &ran));
    home.finish();
}

#[test]
fn missing_home_variable_is_an_error() {
    let home = home_with_one()
        .with_env("HOME", "relative")
        .with_env("XDG_CONFIG_HOME", "")
        .with_env("XDG_STATE_HOME", "");
    assert_snapshot!(refusal(&home));
    home.finish();
}
