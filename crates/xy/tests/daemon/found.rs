//! Clients find a daemon whatever variables either of them has.
//!
//! Many MCP clients start `xy connect` without `XDG_RUNTIME_DIR`; a terminal has it.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xy_testkit::{Home, McpStdio, Ran, is_alive};

use crate::home;

/// An environment with or without `XDG_RUNTIME_DIR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Set,
    Unset,
}
use Runtime::{Set, Unset};

const COMBINATIONS: [(Runtime, Runtime); 4] =
    [(Set, Set), (Set, Unset), (Unset, Set), (Unset, Unset)];

impl Runtime {
    fn command(self, home: &Home, args: &[&str]) -> Command {
        let mut command = home.command(args);
        if self == Unset {
            command.env_remove("XDG_RUNTIME_DIR");
        }
        command
    }

    fn xy(self, home: &Home, args: &[&str]) -> Ran {
        home.run(&mut self.command(home, args))
    }

    fn info(self, home: &Home) -> Value {
        let ran = self.xy(home, &["info", "--json"]);
        assert_eq!(ran.code, 0, "{self:?}: {ran:#?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    fn pid(self, home: &Home) -> u32 {
        self.info(home)["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Returns the folder in which a daemon with this environment listens.
    fn folder(self, home: &Home) -> PathBuf {
        home.root().join(if self == Set { "run" } else { "state/xy" })
    }

    /// Runs `xy connect` in this environment, and lists the tools.
    fn list_tools(self, home: &Home) {
        let client = McpStdio::start(self.command(home, &["connect"]));
        client.initialize();
        assert!(client.tool_names().contains(&"one__echo".to_owned()), "{self:?}");
        client.close();
    }

    fn starts_daemon(self, home: &Home) -> u32 {
        let ran = self.xy(home, &["daemon", "--detach"]);
        assert_eq!(ran.code, 0, "{self:?}: {ran:#?}");
        self.pid(home)
    }

    fn ends_daemon(self, home: &Home, pid: u32) {
        let ran = self.xy(home, &["shutdown"]);
        assert_eq!(ran.code, 0, "{self:?}: {ran:#?}");
        assert!(!is_alive(pid));
    }
}

fn home_with_mcp_server() -> Home {
    let home = home();
    home.mcp_server("one", &[]);
    home
}

/// Kills the daemon `pid`, and waits until its socket is stale.
fn kill(home: &Home, pid: u32, daemon: Runtime) {
    let process = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    let socket = daemon.folder(home).join("xy.sock");
    home.wait_until("it is gone", || !is_alive(pid) && UnixStream::connect(&socket).is_err());
}

#[test]
fn daemon_is_found_from_every_environment() {
    let verbs: &[&[&str]] = &[
        &["list"],
        &["status", "one"],
        &["stop", "one"],
        &["start", "one"],
        &["restart", "one"],
        &["reload"],
        &["reload", "--dry-run"],
        &["reload", "one"],
        &["add", "two", "--", "xy-test-mcp"],
        &["remove", "two"],
        &["logs", "one"],
        &["events", "--history", "5", "--no-follow"],
        &["tools"],
        &["call", "one__echo", "message=m"],
        &["request", "one", "ping"],
        &["search", "echo"],
        &["explain", "default", "one__echo"],
        &["token", "add", "laptop"],
        &["token", "list"],
        &["token", "rotate", "laptop"],
        &["token", "rotate"],
        &["token", "remove", "laptop"],
        &["check"],
        &["self-test"],
        &["diagnostics"],
        &["version"],
        &["info"],
    ];
    for (daemon, client) in COMBINATIONS {
        let context = format!("daemon {daemon:?}, client {client:?}");
        let home = home_with_mcp_server();
        let pid = daemon.starts_daemon(&home);
        let info = client.info(&home);
        assert_eq!(info["pid"], pid, "{context}");
        for (key, name) in [("control_socket", "xy.sock"), ("mcp_socket", "xy-mcp.sock")] {
            assert_eq!(info[key], json!(daemon.folder(&home).join(name)), "{context}");
        }
        let server = home.program("xy-test-mcp").display().to_string();
        for verb in verbs {
            let verb: Vec<&str> =
                verb.iter().map(|&it| if it == "xy-test-mcp" { &*server } else { it }).collect();
            let ran = client.xy(&home, &verb);
            assert_eq!(ran.code, 0, "{context}: {verb:?}: {ran:#?}");
            assert!(!ran.stdout.contains("no daemon"), "{context}: {verb:?}: {ran:#?}");
        }
        client.list_tools(&home);

        let second = client.xy(&home, &["daemon", "--detach"]);
        let socket = daemon.folder(&home).join("xy.sock");
        let expected = format!("process {pid} listens at {}", socket.display());
        assert!(second.code != 0 && second.stderr.contains(&expected), "{context}: {second:#?}");
        let second = client.xy(&home, &["daemon"]);
        let expected = format!("another daemon is already running, pid {pid}");
        assert!(second.code != 0 && second.stderr.contains(&expected), "{context}: {second:#?}");

        // The successor has the client's environment, and clients of the first environment find it.
        let replaced = client.xy(&home, &["daemon", "--detach", "--replace"]);
        assert_eq!(replaced.code, 0, "{context}: {replaced:#?}");
        let successor = daemon.pid(&home);
        assert!(successor != pid && !is_alive(pid), "{context}");
        daemon.list_tools(&home);
        daemon.ends_daemon(&home, successor);
        home.finish();
    }
}

#[test]
fn client_continues_with_daemon_of_another_environment() {
    for (first, second) in [(Set, Unset), (Unset, Set)] {
        let home = home_with_mcp_server();
        first.starts_daemon(&home);
        let client = McpStdio::start(first.command(&home, &["connect"]));
        client.initialize();
        let ran = second.xy(&home, &["daemon", "--detach", "--replace"]);
        assert_eq!(ran.code, 0, "{ran:#?}");
        let answer = client.call("one__echo", json!({ "message": "m" }));
        assert!(answer["result"].is_object(), "{answer}");
        client.close();
        second.ends_daemon(&home, second.pid(&home));
        home.finish();
    }
}

#[test]
fn killed_daemon_is_not_found() {
    for (killed, next) in COMBINATIONS {
        let home = home_with_mcp_server();
        let pid = killed.starts_daemon(&home);
        kill(&home, pid, killed);
        for client in [Set, Unset] {
            let ran = client.xy(&home, &["list"]);
            let finds_no_daemon = ran.stderr.contains("no daemon is running");
            assert!(ran.code == 2 && finds_no_daemon, "{killed:?}, {client:?}: {ran:#?}");
        }
        let successor = next.starts_daemon(&home);
        for client in [Set, Unset] {
            assert_eq!(client.pid(&home), successor, "{killed:?}, {next:?}, {client:?}");
            client.list_tools(&home);
        }
        next.ends_daemon(&home, successor);
        // Only a daemon that binds there removes a socket in the runtime folder.
        home.expect_left("run/");
        home.finish();
    }
}

#[test]
fn stale_sockets_are_ignored() {
    for (daemon, client) in COMBINATIONS {
        let home = home_with_mcp_server();
        fs::create_dir(home.root().join("state/xy")).unwrap();
        for folder in [Set.folder(&home), Unset.folder(&home)] {
            for name in ["xy.sock", "xy-mcp.sock"] {
                drop(UnixListener::bind(folder.join(name)).unwrap());
            }
        }
        let refused = client.xy(&home, &["list"]);
        assert_eq!(refused.code, 2, "{refused:#?}");
        daemon.list_tools(&home); // This starts the daemon.
        client.list_tools(&home);
        let pid = client.pid(&home);
        assert_eq!(daemon.pid(&home), pid);
        client.ends_daemon(&home, pid);
        home.expect_left("run/");
        home.finish();
    }
}

/// A known limit of the README: daemons with different state folders are separate.
#[test]
fn daemon_elsewhere_is_found_through_the_runtime_folder() {
    let home = home();
    home.daemon();
    for state_home in [None, Some("elsewhere")] {
        for (client, code) in [(Set, 0), (Unset, 2)] {
            let mut command = client.command(&home, &["list"]);
            command.env_remove("XDG_STATE_HOME");
            command.envs(state_home.map(|it| ("XDG_STATE_HOME", home.root().join(it))));
            let ran = home.run(&mut command);
            assert_eq!(ran.code, code, "{state_home:?}, {client:?}: {ran:#?}");
        }
    }
    home.finish();
}

#[test]
fn daemon_is_found_without_its_runtime_folder() {
    let home = home();
    let daemon = home.daemon();
    // As after the last logout of the user.
    std::fs::remove_dir_all(home.root().join("run")).unwrap();
    home.wait_until("the daemon is found again", || home.xy(&["list"]).code == 0);
    let info = home.xy_json(&["info"]);
    assert_eq!(info["pid"], daemon.pid);
    assert!(info["control_socket"].as_str().unwrap().contains("state/xy/xy.sock"), "{info}");
    let client = home.mcp_connect(&[]);
    client.initialize();
    client.close();
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    std::fs::create_dir(home.root().join("run")).unwrap();
    home.finish();
}
