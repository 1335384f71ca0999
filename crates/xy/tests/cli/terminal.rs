//! Output on a terminal, and the escapes that no server may send to it.

use std::fs;
use std::os::unix::process::CommandExt;

use serde_json::Value;
use xy_testkit::{Home, Ran};

use crate::pty::Pty;
use crate::{home, home_with_one, speaker};

/// Escape sequences that change the title, the colour, the line and the clipboard.
const ESCAPES: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[31mred\u{1b}[2J\u{9b}31m\u{8}\u{8}\u{b}\u{7f}\u{90}x\u{9c}\u{202e}";

/// Returns a home whose daemon runs `one`, for a terminal with colours.
fn coloured_home() -> Home {
    let home = home().with_env("TERM", "xterm-256color");
    home.server("one", &speaker(&home));
    home.server("missing-one", "command \"/nowhere/at/all\"\n");
    home.daemon();
    home.wait_for_state("one", "running");
    home.wait_for_state("missing-one", "failed");
    home
}

/// Returns `text` without colours, which begin with `ESC [` and end with `m`.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        let after = part.trim_start_matches(|it: char| it.is_ascii_digit() || it == ';');
        kept + after.strip_prefix('m').unwrap_or(part)
    })
}

#[test]
fn terminal_gets_colours_and_columns() {
    let home = coloured_home();
    let (code, seen) = Pty::new(100).run(&mut home.command(&["list"]));
    assert_eq!(code, 0);
    assert!(seen.contains("\u{1b}["), "{seen:?}");
    let plain = without_colours(&seen);
    assert!(!plain.contains('\u{1b}'), "only colours: {seen:?}");
    // Every column begins where its heading does.
    let lines: Vec<Vec<char>> = plain.lines().map(|line| line.chars().collect()).collect();
    let heading: String = lines[0].iter().collect();
    assert!(heading.starts_with("NAME"), "{plain}");
    for word in heading.split_whitespace() {
        let column = heading.find(word).unwrap();
        for line in &lines {
            // The last column may be empty.
            let is_there = line.get(column).is_some_and(|it| *it != ' ');
            assert!(is_there || word == "NOTE", "{word}: {plain}");
            assert!(column == 0 || line.get(column - 1).is_none_or(|it| *it == ' '), "{plain}");
        }
    }
    home.finish();
}

#[test]
fn output_fits_a_narrow_terminal() {
    let home = coloured_home();
    for columns in [40, 60, 80] {
        let (_, seen) = Pty::new(columns).run(&mut home.command(&["list"]));
        for line in without_colours(&seen).lines() {
            assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
        }
    }
    home.finish();
}

#[test]
fn no_color_disables_colours() {
    let home = coloured_home();
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        for args in [&["list"][..], &["status", "missing-one"], &["status", "nobody"], &["--help"]]
        {
            let (_, seen) = Pty::new(100).run(home.command(args).env(name, value));
            assert!(!seen.contains('\u{1b}'), "{name} {args:?}: {seen:?}");
        }
    }
    home.finish();
}

#[test]
fn piped_output_has_no_colours() {
    let home = coloured_home();
    for args in [
        &["list"][..],
        &["status", "one"],
        &["status", "missing-one"],
        &["status", "nobody"],
        &["logs", "one"],
        &["check"],
        &["info"],
        &["reload"],
        &["restart", "--all"],
        &["--help"],
        &["lsit"],
    ] {
        let Ran { stdout, stderr, .. } = home.xy(args);
        assert!(
            !stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'),
            "{args:?}: {stdout}{stderr}"
        );
    }
    home.finish();
}

/// Checks that `seen` has no escapes except the colours of xy.
#[track_caller]
fn assert_no_escapes(seen: &str) {
    let without_spinner = seen.replace("\r\u{1b}[2K", "");
    let plain = without_colours(&without_spinner.replace("\u{1b}[31mred", "\u{1b}!"));
    let is_wild = |character: &char| character.is_control() && *character != '\n';
    let wild: Vec<char> = plain.chars().filter(is_wild).collect();
    assert!(wild.is_empty(), "{wild:?} in {seen:?}");
    assert!(!plain.contains('\u{202e}'), "{seen:?}");
}

#[test]
fn server_cannot_send_terminal_escapes() {
    let home = home().with_env("TERM", "xterm-256color");
    let lines = ["--lines", "2", "--text", ESCAPES, "--then", "sleep"];
    // KDL requires bidirectional control characters to be escaped.
    let escape_bidi = |kdl: &str| kdl.replace('\u{202e}', "\\u{202e}");
    home.server("talks", &escape_bidi(&home.kdl_command("xy-test-spew", &lines)));
    let dies = home.kdl_command("xy-test-exit", &["--say", ESCAPES]);
    home.server("dies", &escape_bidi(&format!("{dies}restart {{ policy \"never\" }}\n")));
    home.daemon();
    home.wait_for_state("talks", "running");
    home.wait_for_state("dies", "failed");
    home.wait_until("both have printed", || {
        home.xy(&["logs", "talks"]).stdout.lines().count() == 2
            && home.xy(&["logs", "dies"]).stdout.lines().count() == 1
    });
    for args in [
        &["logs", "talks"][..],
        &["logs", "dies", "-t"],
        &["status", "talks"],
        &["status", "dies"],
        &["list"],
        &["status", ESCAPES],
        &["logs", ESCAPES],
    ] {
        let Ran { stdout, stderr, .. } = home.xy(args);
        assert_no_escapes(&stdout);
        assert_no_escapes(&stderr);
        let (_, seen) = Pty::new(200).run(&mut home.command(args));
        assert_no_escapes(&seen);
    }
    // With `--raw` the user gets the original bytes.
    assert!(home.xy(&["logs", "talks", "--raw"]).stdout.contains(ESCAPES));
    home.finish();
}

#[test]
fn file_cannot_send_terminal_escapes() {
    let home = home_with_one();
    home.server("bad", &format!("comand \"{ESCAPES}\"\nrestart {{ policy \"{ESCAPES}\" }}\n"));
    let named = format!("config/xy/servers/{}.kdl", ESCAPES.replace('\u{b}', ""));
    fs::write(home.root().join(named), "command \"x\"\n").unwrap();
    for args in [&["check"][..], &["reload"], &["daemon"]] {
        let Ran { stdout, stderr, .. } = home.xy(args);
        assert_no_escapes(&stdout);
        assert_no_escapes(&stderr);
        let (_, seen) = Pty::new(200).run(home.command(args).env("TERM", "xterm"));
        assert_no_escapes(&seen);
    }
    assert_eq!(home.call("list", Value::Null).unwrap()[0]["name"], "one");
    home.finish();
}

#[test]
fn output_ends_with_a_newline() {
    let home = coloured_home();
    for args in [&["list"][..], &["status", "one"], &["restart", "one"], &["status", "nobody"]] {
        let (_, seen) = Pty::new(100).run(home.command(args).arg0("xy"));
        assert!(seen.ends_with('\n') || seen.ends_with("\u{1b}[?25h"), "{args:?}: {seen:?}");
    }
    home.finish();
}

#[test]
fn json_on_a_terminal_is_escaped() {
    let home = home();
    home.server("bad", "command \"x\"\nport \"\\u{202e}\\u{9b}31m\\u{200b}\"\n");
    let report = home.xy(&["check", "--json"]).stdout;
    let server = home.root().join("config/xy/servers/\u{9b}\u{202e}.kdl");
    fs::write(&server, "command \"x\"\n").unwrap();
    let piped = home.xy(&["check", "--json"]).stdout;
    assert!(piped.contains('\u{202e}') && piped != report, "a pipe gets it as it is: {piped:?}");
    let (_, seen) = Pty::new(200).run(&mut home.command(&["check", "--json"]));
    assert_no_escapes(&seen);
    assert!(seen.contains("\\u202e") && seen.contains("\\u009b"), "{seen:?}");
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(read(&seen), read(&piped));
    home.finish();
}
