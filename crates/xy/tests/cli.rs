//! Each verb as a user runs it, with a real daemon: the output and the exit code.
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

/// Timeout of a wait; nothing that works takes this long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a home for the xy under test.
fn home() -> Home {
    Home::new(Path::new(env!("CARGO_BIN_EXE_xy")))
}

/// Returns the file of a server that prints three lines and sleeps.
fn speaker(home: &Home) -> String {
    home.kdl_command("xy-test-spew", &["--lines", "3", "--then", "sleep"])
}

/// The servers speak no MCP, and no gateway listens, because its port would differ each time.
const CONFIG: &str = "gateway { listen \"off\"; }\ndefaults { ready { probe \"process\"; }; }\n";

/// Returns a home whose daemon runs the server `one`, which has printed three lines.
fn home_with_one() -> Home {
    let home = home();
    home.write_config("xy.kdl", CONFIG);
    home.server("one", &speaker(&home));
    home.daemon();
    wait_until_printed(&home, "one");
    home
}

/// Waits until the server `name` runs and has printed three lines.
#[track_caller]
fn wait_until_printed(home: &Home, name: &str) {
    home.wait_for_state(name, "running");
    home.wait_until("it has printed its lines", || {
        let mut wire = home.connect();
        wire.call("logs", json!({ "name": name, "tail": 3 })).unwrap();
        (0..3).all(|_| wire.next(TIMEOUT)["method"] == "log")
    });
}

/// Formats the result of a command, without the parts that differ between runs.
fn shown(home: &Home, ran: &Ran) -> String {
    let Ran { code, stdout, stderr } = ran;
    let text = format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}");
    plain(home, &redact::redact(home, &text))
}

/// Replaces process ids, durations and times, and removes the column widths that depend on them.
fn plain(home: &Home, text: &str) -> String {
    let pids = pids(home);
    let lines = text.lines().map(|line| {
        let words = line.split(' ').map(|word| match word {
            _ if pids.iter().any(|pid| pid == word) => "[pid]",
            _ if is_span(word) => "[span]",
            _ if is_hour(word) => "[hour]",
            _ => word,
        });
        let line = collapse_spaces(&words.collect::<Vec<_>>().join(" "));
        // The resource usage, and whether it is shown, depends on the machine.
        if line.trim_start().starts_with("uses ") { String::new() } else { line + "\n" }
    });
    lines.collect()
}

/// Returns the process ids of the daemon and of its servers; none without a daemon.
fn pids(home: &Home) -> Vec<String> {
    let Ok(mut wire) = Wire::open(&home.socket()) else {
        return Vec::new();
    };
    let daemon = wire.call("info", Value::Null).unwrap();
    let servers = wire.call("list", Value::Null).unwrap();
    let all = servers.as_array().unwrap().iter().chain([&daemon]);
    all.filter_map(|it| it["pid"].as_u64()).map(|pid| pid.to_string()).collect()
}

/// Returns true for `3s`, `120ms` or `2m`.
fn is_span(word: &str) -> bool {
    let unit = word.trim_start_matches(|character: char| character.is_ascii_digit());
    unit.len() < word.len() && ["ms", "s", "m", "h"].contains(&unit.trim_end_matches([':', ',']))
}

/// Returns true for `20:14:25Z`.
fn is_hour(word: &str) -> bool {
    word.len() == 9 && word.ends_with('Z') && word.split(':').count() == 3
}

/// Collapses runs of spaces to two, except indentation and underlined source lines.
fn collapse_spaces(line: &str) -> String {
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
