//! What keeps a daemon from starting, told so that a person can act on it.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::{home, home_with_one, refusal, shown};

#[test]
fn a_file_where_the_servers_folder_should_be_is_a_bad_configuration() {
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
fn a_socket_that_somebody_deletes_costs_its_daemon_nothing_and_makes_no_room_for_another() {
    let home = home_with_one();
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let mut connected = home.connect();
    fs::remove_file(home.socket()).unwrap();
    assert_eq!(home.xy(&["list"]).code, 2);
    let second = home.daemon_fails();
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains(&format!("another daemon runs already, pid {}", daemon.pid)), "{told}");
    let list = connected.call("list", Value::Null).unwrap();
    assert_eq!(list[0]["state"], "running", "{list:#}");
    assert!(daemon.terminate().success());
}

#[test]
fn no_servers_folder_at_all_means_no_servers() {
    let home = home();
    fs::remove_dir_all(home.root().join("config")).unwrap();
    home.daemon();
    assert_eq!(home.call("list", Value::Null), Ok(json!([])));
    home.finish();
}

#[test]
fn a_file_where_the_state_folder_should_be_is_told_with_the_variable() {
    let home = home_with_one();
    fs::write(home.root().join("state/xy"), "precious").unwrap();
    assert_snapshot!(refusal(&home));
    assert_eq!(fs::read_to_string(home.root().join("state/xy")).unwrap(), "precious");
    home.expect_left("state/xy");
    home.finish();
}

#[test]
fn a_socket_path_that_is_too_long_is_told_with_the_variable() {
    let long = format!("/tmp/{}", "x".repeat(120));
    let home = home_with_one().with_env("XDG_RUNTIME_DIR", &long);
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn a_runtime_folder_that_is_not_there_is_told_with_the_variable() {
    let home = home_with_one().with_env("XDG_RUNTIME_DIR", "/nowhere/at/all");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn a_file_where_the_socket_should_be_is_not_deleted() {
    let home = home_with_one();
    fs::write(home.socket(), "precious").unwrap();
    assert_snapshot!(refusal(&home));
    assert_eq!(fs::read_to_string(home.socket()).unwrap(), "precious");
    home.expect_left("run/xy.sock");
    home.finish();
}

#[test]
fn a_folder_where_the_socket_should_be_is_not_deleted() {
    let home = home_with_one();
    fs::create_dir(home.socket()).unwrap();
    assert!(refusal(&home).contains("exists and is not a socket"));
    assert!(home.socket().is_dir());
    home.finish();
}

#[test]
fn a_socket_that_somebody_else_listens_at_is_left_to_them() {
    let home = home_with_one();
    let somebody = UnixListener::bind(home.socket()).unwrap();
    assert_snapshot!(refusal(&home));
    somebody.set_nonblocking(true).unwrap();
    assert!(somebody.accept().is_ok(), "it was asked whether it is there, and nothing else");
    drop(somebody);
    home.expect_left("run/xy.sock");
    home.finish();
}

#[test]
fn a_stale_socket_is_replaced() {
    let home = home_with_one();
    drop(UnixListener::bind(home.socket()).unwrap());
    home.daemon();
    home.wait_for_state("one", "running");
    home.finish();
}

#[test]
fn a_second_daemon_is_told_who_runs() {
    let home = home_with_one();
    let first = home.daemon();
    let told = refusal(&home);
    assert_snapshot!(told);
    let raw = String::from_utf8(home.daemon_fails().stderr).unwrap();
    assert!(raw.contains(&format!("pid {}", first.pid)), "{raw}");
    home.wait_for_state("one", "running");
    home.finish();
}

#[test]
fn of_many_daemons_at_once_one_serves_and_the_others_say_so() {
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
    crate::serves(&home, &mut daemons[0]);
    home.wait_for_state("one", "running");
    crate::ends(&home, &mut daemons[0]);
    home.finish();
}

#[test]
fn damaged_wishes_are_put_aside_and_told() {
    let home = home_with_one();
    fs::create_dir(home.root().join("state/xy")).unwrap();
    fs::write(home.root().join("state/xy/wishes.json"), "{\"stopped\":").unwrap();
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let told = daemon.stderr();
    let warning = told.lines().find(|line| line.contains("WARN")).unwrap();
    assert_snapshot!(crate::redact::redact(&home, warning));
    let aside = home.root().join("state/xy/wishes.json.damaged");
    assert_eq!(fs::read_to_string(aside).unwrap(), "{\"stopped\":");
    home.expect_left("state/xy/wishes.json.damaged");
    home.finish();
}

#[test]
fn a_level_of_logging_that_is_none_is_told_with_the_variable() {
    let home = home_with_one().with_env("XY_LOG", "xy=loud");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn the_level_of_logging_can_be_set() {
    let home = home_with_one().with_env("XY_LOG", "warn");
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    assert_eq!(daemon.stderr(), "");
    home.finish();
}

#[test]
fn all_problems_of_all_files_are_told_at_once() {
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
fn two_files_with_one_port_are_a_bad_configuration_at_start() {
    let home = home();
    home.server("one", "command \"/bin/true\"\nport 8421\n");
    home.server("two", "command \"/bin/true\"\nport 8421\n");
    assert_snapshot!(refusal(&home));
    home.finish();
}

#[test]
fn a_daemon_that_cannot_start_says_so_as_json_too() {
    let home = home();
    home.server("first", "comand \"x\"\n");
    let ran = home.xy(&["daemon", "--json"]);
    assert_snapshot!(shown(&home, &ran));
    home.finish();
}

#[test]
fn without_a_home_nothing_starts_and_nothing_is_guessed() {
    let home = home_with_one()
        .with_env("HOME", "relative")
        .with_env("XDG_CONFIG_HOME", "")
        .with_env("XDG_STATE_HOME", "");
    assert_snapshot!(refusal(&home));
    home.finish();
}
