//! Files and sockets that only their user may access.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
#[cfg(target_os = "linux")]
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use serde_json::{Value, json};
use xy_testkit::{Home, Ran};

use crate::{daemon_by, home_with_one, refusal, shown, stop_daemon, wait_until_serving};

fn mode(path: &Path) -> String {
    let mode = fs::symlink_metadata(path).unwrap().permissions().mode();
    format!("{:o}", mode & 0o777)
}

#[test]
fn files_are_private_with_any_umask() {
    let home = home_with_one();
    let mut daemon = daemon_by(&home, "umask 0; exec \"$@\"");
    let mut daemon = daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until_serving(&home, &mut daemon);
    home.wait_for_state("one", "running");
    home.call("stop", json!({ "name": "one" })).unwrap();
    let state = home.root().join("state/xy");
    assert_eq!(mode(&home.socket()), "600");
    assert_eq!(mode(&state), "700");
    assert_eq!(mode(&state.join("logs")), "700");
    for file in ["xy.pid", "wishes.json", "logs/one.log"] {
        assert_eq!(mode(&state.join(file)), "600", "{file}");
    }
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
fn tokens_and_client_socket_are_private_with_any_umask() {
    let home = home_with_one();
    home.mcp_server("two", &[]);
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; auth \"token\"; }\n");
    let mut daemon = daemon_by(&home, "umask 0; exec \"$@\"");
    let mut daemon = daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until_serving(&home, &mut daemon);
    home.wait_for_state("one", "running");
    home.wait_for_state("two", "running");
    home.call("token_add", json!({ "name": "a" })).unwrap();
    let state = home.root().join("state/xy");
    home.wait_until("it is remembered", || state.join("manifests/two.json").exists());
    assert_eq!(mode(&home.mcp_socket()), "600");
    for file in
        ["token", "manage-token", "state-key", "http-sessions", "tokens.json", "manifests/two.json"]
    {
        assert_eq!(mode(&state.join(file)), "600", "{file}");
    }
    // No other file is accessible either.
    let mut folders = vec![state];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // A temporary file of an atomic write may vanish.
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            // The target of a link has its own permissions. Sockets of shims are in a closed
            // folder, and shims check the peer's credentials.
            if found.is_symlink() || found.file_type().is_socket() {
                continue;
            }
            assert_eq!(found.permissions().mode() & 0o077, 0, "{}", path.display());
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    stop_daemon(&home, &mut daemon);
    home.finish();
}

#[test]
fn readable_state_folder_is_made_private() {
    let home = home_with_one();
    let state = home.root().join("state/xy");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
    home.daemon();
    home.wait_for_state("one", "running");
    assert_eq!(mode(&state.join("logs")), "700");
    assert_eq!(mode(&state.join("xy.pid")), "600");
    home.finish();
}

/// Another user id: `nobody`.
const OTHER_USER: u32 = 65_534;

/// Runs `xy` as another user; `None` without the right to do so.
fn xy_as_another_user(home: &Home, args: &[&str]) -> Option<Ran> {
    if !rustix::process::geteuid().is_root() {
        return print_skipped("only root can become another user");
    }
    // The other user may enter the home, so that only xy's own protection is tested.
    for folder in ["", "run", "home"] {
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(home.root().join(folder), open).unwrap();
    }
    // A copy, because the build folder may be closed to others.
    let own = home.command(args);
    let copy = home.root().join("home/xy");
    fs::copy(own.get_program(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(args).env_clear().current_dir("/").uid(OTHER_USER).stdin(Stdio::null());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    fs::remove_file(copy).unwrap();
    Some(output.into())
}

#[expect(clippy::print_stdout, reason = "a skipped test must print its reason")]
fn print_skipped<T>(why: &str) -> Option<T> {
    println!("SKIPPED: {why}");
    None
}

#[test]
fn another_user_cannot_reach_the_socket() {
    let home = home_with_one();
    home.daemon();
    if let Some(ran) = xy_as_another_user(&home, &["list"]) {
        assert_snapshot!(shown(&home, &ran));
    }
    home.finish();
}

/// Returns the daemon's message to another user who connects; `None` without the right to try.
#[cfg(target_os = "linux")]
fn message_to_another_user(home: &Home) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return print_skipped("only root can become another user");
    }
    for path in [home.root().to_owned(), home.root().join("run")] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let socket = home.socket();
    let listening = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(OTHER_USER)).unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut message = String::new();
        stream.read_to_string(&mut message).unwrap();
        message
    });
    Some(listening.join().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn another_user_is_refused_at_an_open_socket() {
    let home = home_with_one();
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    fs::set_permissions(home.socket(), Permissions::from_mode(0o666)).unwrap();
    if let Some(message) = message_to_another_user(&home) {
        assert!(message.contains("this daemon serves another user"), "{message}");
        assert!(daemon.stderr().contains("rejected a connection"), "{}", daemon.stderr());
    }
    home.wait_for_state("one", "running");
    home.finish();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn writable_runtime_folder_is_refused() {
    let home = home_with_one();
    let run = home.root().join("run");
    set_mode(&run, 0o1777);
    assert_snapshot!("open_runtime_daemon", refusal(&home));
    set_mode(&run, 0o700);
    let daemon = home.daemon();
    set_mode(&run, 0o777);
    let refused = home.xy(&["list"]);
    assert_snapshot!("open_runtime_client", shown(&home, &refused));
    let refused = home.xy(&["connect"]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.stderr.contains("others could listen in the daemon's place"), "{refused:#?}");
    set_mode(&run, 0o700);
    assert!(daemon.terminate().success());
    home.finish();
}

#[test]
fn writable_state_folder_is_refused() {
    let home = home_with_one();
    let state = home.root().join("state/xy");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o777);
    assert_snapshot!(refusal(&home));
    set_mode(&state, 0o755);
    fs::create_dir(state.join("logs")).unwrap();
    set_mode(&state.join("logs"), 0o777);
    assert!(refusal(&home).contains("state/xy/logs"));
    set_mode(&state.join("logs"), 0o700);
    home.daemon();
    home.finish();
}

#[test]
fn writable_files_are_not_used() {
    let home = home_with_one();
    let file = home.root().join("config/xy/servers/one.kdl");
    set_mode(&file, 0o666);
    let ran = home.xy(&["check"]);
    assert_snapshot!(shown(&home, &ran));
    set_mode(&file, 0o644);
    let added = home.root().join("state/xy/added.json");
    fs::create_dir(added.parent().unwrap()).unwrap();
    fs::write(&added, "{}").unwrap();
    set_mode(&added, 0o666);
    let text = refusal(&home);
    assert!(text.contains("everyone may write") && text.contains("chmod go-w"), "{text}");
    home.expect_left("state/xy/added.json");
    home.finish();
}

#[test]
fn symlinks_are_not_followed() {
    let home = home_with_one();
    let state = home.root().join("state/xy");
    fs::create_dir(&state).unwrap();
    let target = home.root().join("home/precious");
    fs::write(&target, "precious").unwrap();
    for file in ["events.jsonl", "wishes.json", "token", "daemon.log"] {
        symlink(&target, state.join(file)).unwrap();
    }
    symlink(&target, state.join("xy.pid")).unwrap();
    let text = refusal(&home);
    assert!(text.contains("is a link"), "{text}");
    fs::remove_file(state.join("xy.pid")).unwrap();
    assert_eq!(home.xy(&["daemon", "--detach"]).code, 0);
    home.wait_for_state("one", "running");
    home.call("stop", json!({ "name": "one" })).unwrap();
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    home.expect_left("home/precious");
    home.expect_left("state/xy/");
    home.finish();
}

#[test]
fn environment_secret_is_in_no_answer() {
    let home = home_with_one();
    let sleeper = home.kdl_command("xy-test-sleep-server", &[]);
    home.server("one", &format!("{sleeper}env {{ API_TOKEN \"hush-hush\" }}\n"));
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    for (method, params) in [
        ("list", Value::Null),
        ("status", json!({ "name": "one" })),
        ("info", Value::Null),
        ("check", Value::Null),
    ] {
        let answer = home.call(method, params).unwrap().to_string();
        assert!(!answer.contains("hush-hush"), "{answer}");
    }
    assert!(!daemon.stderr().contains("hush-hush"));
    let mut pid = String::new();
    fs::File::open(home.root().join("state/xy/xy.pid")).unwrap().read_to_string(&mut pid).unwrap();
    assert_eq!(pid, format!("{}\n", daemon.pid));
    home.finish();
}
