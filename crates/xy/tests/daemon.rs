//! The daemon and its system: boot, files, terminal and shutdown.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::path::Path;
use std::process::{Child, Command, Output};

use serde_json::Value;
use xy_testkit::{Home, Ran};

#[path = "daemon/alone.rs"]
mod alone;
#[path = "daemon/boot.rs"]
mod boot;
#[path = "daemon/detach.rs"]
mod detach;
#[path = "daemon/found.rs"]
mod found;
#[path = "daemon/gone.rs"]
mod gone;
#[path = "daemon/lenient.rs"]
mod lenient;
#[path = "daemon/private.rs"]
mod private;
#[path = "cli/pty.rs"]
mod pty;
#[path = "control/redact.rs"]
mod redact;

/// Returns a home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// Returns a home with the file of one server, `one`.
fn home_with_one() -> Home {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    home
}

/// Formats the result of a command, as a user sees it.
fn shown(home: &Home, ran: &Ran) -> String {
    let Ran { code, stdout, stderr } = ran;
    let text = format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}");
    redact::redact(home, &text)
}

/// Runs a daemon that must not start, and formats its output.
#[track_caller]
fn refusal(home: &Home) -> String {
    let output: Output = home.daemon_fails();
    shown(home, &Ran::from(output))
}

/// Returns a command in which `script` starts `xy daemon` as `"$@"`.
fn daemon_by(home: &Home, script: &str) -> Command {
    let daemon = home.command(&["daemon"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(daemon.get_program()).args(daemon.get_args());
    shell.env_clear().current_dir(daemon.get_current_dir().unwrap());
    shell.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// Waits until the daemon `child` serves; the harness did not start it.
#[track_caller]
fn wait_until_serving(home: &Home, child: &mut Child) {
    let pid = child.id();
    home.wait_until("the daemon serves", || {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        home.socket().exists() && home.call("info", Value::Null).is_ok_and(|it| it["pid"] == pid)
    });
}

/// Stops the daemon `child` as its operator would.
#[track_caller]
fn stop_daemon(home: &Home, child: &mut Child) {
    home.call("shutdown", Value::Null).unwrap();
    let status = home.wait_until("the daemon ends", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
