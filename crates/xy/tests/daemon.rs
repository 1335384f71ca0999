//! The daemon as the system meets it: its boot, its files, its terminal, its end.
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

/// A home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// A home with the file of one server, `one`.
fn home_with_one() -> Home {
    let home = home();
    home.server("one", &home.kdl_command("xy-test-sleep-server", &["--every", "600000"]));
    home
}

/// What a run came to, as a person sees it.
fn shown(home: &Home, ran: &Ran) -> String {
    let Ran { code, stdout, stderr } = ran;
    let text = format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}");
    redact::redact(home, &text)
}

/// A daemon that must not start, and what it says.
#[track_caller]
fn refusal(home: &Home) -> String {
    let output: Output = home.daemon_fails();
    shown(home, &Ran::from(output))
}

/// `xy daemon` started by `script`, in which it is `"$@"`.
fn daemon_by(home: &Home, script: &str) -> Command {
    let daemon = home.command(&["daemon"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(daemon.get_program()).args(daemon.get_args());
    shell.env_clear().current_dir(daemon.get_current_dir().unwrap());
    shell.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// Waits until the daemon `child` serves; one that is no child of the harness.
#[track_caller]
fn serves(home: &Home, child: &mut Child) {
    let pid = child.id();
    home.wait_until("the daemon serves", || {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        home.socket().exists() && home.call("info", Value::Null).is_ok_and(|it| it["pid"] == pid)
    });
}

/// Ends the daemon `child` as its operator would.
#[track_caller]
fn ends(home: &Home, child: &mut Child) {
    home.call("shutdown", Value::Null).unwrap();
    let status = home.wait_until("the daemon ends", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
