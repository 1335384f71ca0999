//! Tests of the harness itself: it must report every fault of a daemon.
//!
//! The xy of these tests is a script, whose daemon is this test program, started again.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
#[cfg(target_os = "linux")]
use xy_testkit::marked_processes;
use xy_testkit::standin::Wait;
use xy_testkit::{Home, WireEvent, is_alive, read_log_lines};

const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Creates a home whose xy is a script, and whose daemon has the fault `fault`. Returns the home
/// and the folder of the script.
fn home(fault: &str) -> (Home, TempDir) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let xy = folder.path().join("xy");
    let this = std::env::current_exe().unwrap();
    let script = format!(
        r#"#!/bin/sh
case $1 in
    daemon) exec "{}" --ignored --exact fake_daemon --nocapture ;;
    detach) "$0" daemon & ;;
    list) echo "[\"$2\"]" ;;
    env) env ;;
    connect) shift; exec "${{0%/*}}/xy-test-mcp" "$@" ;;
    *) echo "no $1" >&2; exit 64 ;;
esac
"#,
        this.display()
    );
    // `cp` writes the script. A fork of a parallel test could inherit a file that this process
    // has open for writing, and the script could not be executed.
    fs::write(folder.path().join("draft"), script).unwrap();
    let copied = Command::new("cp").args(["draft", "xy"]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(&xy, fs::Permissions::from_mode(0o755)).unwrap();
    (Home::new(&xy).with_env("FAULT", fault), folder)
}

#[test]
#[ignore = "not a test: the daemon of the other tests"]
fn fake_daemon() {
    let Ok(fault) = std::env::var("FAULT") else {
        return;
    };
    assert_ne!(fault, "ends at once", "ended at once");
    let run = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap());
    let mut wait = Wait::for_term_only();
    if fault == "leaves a process" {
        let left = Command::new("sh").args(["-c", "sleep 60 &"]).status();
        assert!(left.unwrap().success());
    }
    let _ = fs::remove_file(run.join("xy.sock")); // A killed daemon leaves its socket.
    let listener = UnixListener::bind(run.join("xy.sock")).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || serve(&client.unwrap()));
        }
    });
    wait.next(None);
    if fault != "leaves its socket" {
        fs::remove_file(run.join("xy.sock")).unwrap();
    }
    if fault == "leaves a file" {
        fs::write(run.with_file_name("state").join("xy.tmp"), "").unwrap();
    }
}

/// Answers the requests of the harness, and any other with an error.
fn serve(client: &UnixStream) {
    for line in BufReader::new(client).lines() {
        let Ok(line) = line else { return };
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let result = match request["method"].as_str() {
            Some("version") => json!({ "version": "0" }),
            Some("info") => json!({ "pid": std::process::id() }),
            Some("status") => json!({ "name": request["params"]["name"], "state": "running" }),
            _ => Value::Null,
        };
        let id = &request["id"];
        let answer = match result {
            Value::Null => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601 } }),
            result => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        };
        let _ = (&*client).write_all(format!("{answer}\n").as_bytes());
    }
}

#[test]
fn daemon_serves_and_ends() {
    let (home, _folder) = home("");
    let daemon = home.daemon();
    assert_eq!(home.call("info", Value::Null), Ok(json!({ "pid": daemon.pid })));
    assert_eq!(home.call("nonsense", json!({})), Err(json!({ "code": -32601 })));
    assert_eq!(home.wait_for_state("one", "running")["name"], "one");
    assert!(is_alive(daemon.pid));

    let mut wire = home.connect();
    wire.send_raw(b"{\"id\":\"x\",\"method\":\"version\"}\n");
    assert_eq!(wire.next(EVENT_TIMEOUT)["id"], "x");
    wire.send_raw(b"nonsense\n");
    assert_eq!(wire.receive(EVENT_TIMEOUT), WireEvent::Closed);

    assert!(daemon.terminate().success());
    assert!(!daemon.is_running());
    assert!(!is_alive(daemon.pid));
    home.finish();
}

#[test]
fn running_daemon_ends_with_home() {
    let (home, _folder) = home("");
    let daemon = home.daemon();
    assert_eq!(home.left_behind(), [""; 0]);
    assert!(!daemon.is_running());
}

#[test]
fn dropped_home_ends_daemon() {
    let (home, _folder) = home("");
    let daemon = home.daemon();
    drop(home);
    assert!(!daemon.is_running());
}

#[test]
fn detached_daemon_ends_with_home() {
    let (home, _folder) = home("");
    assert_eq!(home.xy(&["detach"]).code, 0);
    let pid = home.wait_until("a daemon serves", || {
        let is_there = UnixStream::connect(home.socket()).is_ok();
        is_there.then(|| home.call("info", Value::Null).unwrap()["pid"].as_u64())?
    });
    assert_eq!(home.left_behind(), [""; 0]);
    assert!(!is_alive(pid.try_into().unwrap()));
}

#[test]
#[should_panic(expected = "ended at once")]
fn failed_daemon_is_reported_with_stderr() {
    home("ends at once").0.daemon();
}

#[test]
fn daemon_failure_can_be_expected() {
    let (home, _folder) = home("ends at once");
    assert_eq!(home.daemon_fails().status.code(), Some(101));
    home.finish();
}

#[test]
fn leftover_socket_is_reported() {
    let (home, _folder) = home("leaves its socket");
    home.daemon();
    assert_eq!(home.left_behind(), ["socket run/xy.sock"]);
}

#[test]
fn only_killed_daemon_may_leave_socket() {
    let (killed, _folder) = home("");
    killed.daemon().kill9();
    assert!(killed.socket().exists());
    killed.finish();

    let (followed, _folder) = home("leaves its socket");
    followed.daemon().kill9();
    followed.daemon();
    assert_eq!(followed.left_behind(), ["socket run/xy.sock"]);
}

#[test]
fn unexpected_file_is_reported() {
    let (careless, _folder) = home("leaves a file");
    careless.daemon();
    assert_eq!(careless.left_behind(), ["file state/xy.tmp"]);

    let (expecting, _folder) = home("leaves a file");
    expecting.daemon();
    expecting.expect_left("state/xy.tmp");
    expecting.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn leftover_process_is_named_and_killed() {
    let (home, _folder) = home("leaves a process");
    let mark = home.mark().to_owned();
    let daemon = home.daemon();
    let is_sleep = |cmdline: &str| cmdline == "sleep 60";
    let left = home.wait_until("the daemon has a child", || {
        marked_processes(&mark).into_iter().find(|process| is_sleep(&process.cmdline))
    });
    assert!(daemon.terminate().success());
    let told = format!("process {} was still alive (S) and has been killed: sleep 60", left.pid);
    assert_eq!(home.left_behind(), [told]);
    assert!(!is_alive(left.pid));
}

#[test]
#[cfg(target_os = "linux")]
fn failed_test_leaves_no_process() {
    let (home, _folder) = home("leaves a process");
    let mark = home.mark().to_owned();
    let failed = thread::spawn(move || {
        home.daemon();
        panic!("the test fails");
    });
    let panic = failed.join().unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the test fails"));
    assert_eq!(marked_processes(&mark), []);
}

#[test]
fn command_runs_in_home_only() {
    let (home, _folder) = home("");
    let ran = home.xy(&["env"]);
    let root = home.root().display().to_string();
    for (name, folder) in
        [("HOME", "home"), ("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "state")]
    {
        assert!(ran.stdout.contains(&format!("{name}={root}/{folder}\n")), "{ran:?}");
    }
    assert!(ran.stdout.contains(&format!("XDG_TESTKIT_MARK={}\n", home.mark())));
    assert!(!ran.stdout.contains("CARGO"), "{ran:?}");
    assert_eq!(home.xy_json(&["list"]), json!(["--json"]));
    let refused = home.xy(&["sing"]);
    assert_eq!((refused.code, refused.stderr.as_str()), (64, "no sing\n"));
    home.finish();
}

#[test]
fn configuration_is_written_and_removed() {
    let home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy-test-spew")));
    let program = env!("CARGO_BIN_EXE_xy-test-exit");
    home.server("one", &home.kdl_command("xy-test-exit", &["--code", "3"]));
    home.write_config("xy.kdl", "orphan-timeout \"1s\"\n");
    let file = home.root().join("config/xy/servers/one.kdl");
    let kdl = fs::read_to_string(&file).unwrap();
    let ready = "ready { probe \"process\" }\n";
    assert_eq!(kdl, format!("command \"{program}\"\nargs \"--code\" \"3\"\n{ready}"));
    home.write_config("servers/one.kdl", "as it is");
    assert_eq!(fs::read_to_string(&file).unwrap(), "as it is");
    home.remove_server("one");
    assert!(!file.exists());
    home.finish();
}

#[test]
#[should_panic(expected = "cargo build --workspace --all-targets")]
fn missing_test_server_names_build_command() {
    let (home, _folder) = home("");
    home.kdl_command("xy-test-spew", &[]);
}

#[test]
fn log_lines_are_read_oldest_first() {
    let (home, _folder) = home("");
    assert_eq!(read_log_lines(&home, "one"), [""; 0]);
    let log = home.log_file("one");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(log.with_extension("log.2"), "[out] a\n").unwrap();
    fs::write(log.with_extension("log.1"), "[err] b\n").unwrap();
    fs::write(log, "[err] c\n[err] d").unwrap();
    assert_eq!(read_log_lines(&home, "one"), ["[out] a", "[err] b", "[err] c", "[err] d"]);
    home.finish();
}

#[test]
fn home_starts_mcp_servers_and_clients() {
    let (home, folder) = home("");
    let mcp = env!("CARGO_BIN_EXE_xy-test-mcp");
    std::os::unix::fs::symlink(mcp, folder.path().join("xy-test-mcp")).unwrap();
    home.mcp_server("one", &["--page", "3"]);
    let file = fs::read_to_string(home.root().join("config/xy/servers/one.kdl")).unwrap();
    let beside = folder.path().join("xy-test-mcp");
    assert!(file.starts_with(&format!("command {beside:?}\n")), "{file}");
    assert!(file.ends_with("args \"--page\" \"3\"\n"), "{file}");
    let client = home.mcp_connect(&["--name", "one"]);
    assert_eq!(client.initialize()["serverInfo"]["name"], "one");
    assert_eq!(
        client.call_text("env", json!({ "name": "HOME" })),
        home.root().join("home").to_str().unwrap()
    );
    assert!(client.close().success());
    home.finish();
}
