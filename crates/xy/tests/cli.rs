//! Each verb as a person uses it, with a real daemon: what is printed, and the exit code.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::{Home, Ran, Wire};

#[path = "cli/exits.rs"]
mod exits;
#[path = "cli/pty.rs"]
mod pty;
#[path = "control/redact.rs"]
mod redact;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/verbs.rs"]
mod verbs;

/// Nothing here takes this long unless it never comes.
const SOON: Duration = Duration::from_secs(20);

/// A home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// The file of a server that says three lines and sleeps.
fn speaker(home: &Home) -> String {
    home.kdl_command("xy-test-spew", &["--lines", "3", "--then", "sleep"])
}

/// These servers speak no MCP, and a port is another one each time.
const CONFIG: &str = "gateway { listen \"off\"; }\ndefaults { ready { probe \"process\"; }; }\n";

/// A home whose daemon runs the server `one`, which has said three lines.
fn home_with_one() -> Home {
    let home = home();
    home.write_config("xy.kdl", CONFIG);
    home.server("one", &speaker(&home));
    home.daemon();
    has_spoken(&home, "one");
    home
}

/// Waits until the server `name` runs and has said three lines.
#[track_caller]
fn has_spoken(home: &Home, name: &str) {
    home.wait_for_state(name, "running");
    home.wait_until("it has spoken", || {
        let mut wire = home.connect();
        wire.call("logs", json!({ "name": name, "tail": 3 })).unwrap();
        (0..3).all(|_| wire.next(SOON)["method"] == "log")
    });
}

/// What a run came to, without what only this run has.
fn shown(home: &Home, ran: &Ran) -> String {
    let Ran { code, stdout, stderr } = ran;
    let text = format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}");
    plain(home, &redact::redact(home, &text))
}

/// Takes processes, spans of time and hours out, and with them the widths of columns.
fn plain(home: &Home, text: &str) -> String {
    let pids = pids(home);
    let lines = text.lines().map(|line| {
        let words = line.split(' ').map(|word| match word {
            _ if pids.iter().any(|pid| pid == word) => "[pid]",
            _ if is_span(word) => "[span]",
            _ if is_hour(word) => "[hour]",
            _ => word,
        });
        let line = squeezed(&words.collect::<Vec<_>>().join(" "));
        // How much a server uses is up to the machine, and whether that is told.
        if line.trim_start().starts_with("uses ") { String::new() } else { line + "\n" }
    });
    lines.collect()
}

/// The processes of the daemon and of its servers; none without a daemon.
fn pids(home: &Home) -> Vec<String> {
    let Ok(mut wire) = Wire::open(&home.socket()) else {
        return Vec::new();
    };
    let daemon = wire.call("info", Value::Null).unwrap();
    let servers = wire.call("list", Value::Null).unwrap();
    let all = servers.as_array().unwrap().iter().chain([&daemon]);
    all.filter_map(|it| it["pid"].as_u64()).map(|pid| pid.to_string()).collect()
}

/// `3s`, `120ms`, `2m`.
fn is_span(word: &str) -> bool {
    let unit = word.trim_start_matches(|character: char| character.is_ascii_digit());
    unit.len() < word.len() && ["ms", "s", "m", "h"].contains(&unit.trim_end_matches([':', ',']))
}

/// `20:14:25Z`.
fn is_hour(word: &str) -> bool {
    word.len() == 9 && word.ends_with('Z') && word.split(':').count() == 3
}

/// At most two blanks in a row, but for those a line begins with, and in what is underlined.
fn squeezed(line: &str) -> String {
    let text = line.trim_start();
    if text.starts_with('|') {
        return line.to_owned();
    }
    let start = &line[..line.len() - text.len()];
    let mut text = text.to_owned();
    while text.contains("   ") {
        text = text.replace("   ", "  ");
    }
    format!("{start}{text}").trim_end().to_owned()
}
