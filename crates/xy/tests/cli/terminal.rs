//! What a terminal shows, and what no server can make it do.

use std::fs;
use std::os::unix::process::CommandExt;

use serde_json::Value;
use xy_testkit::{Home, Ran};

use crate::pty::Pty;
use crate::{home, home_with_one, speaker};

/// Changes the title, the colour, the line, the clipboard: whatever a terminal obeys.
const EVIL: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[31mred\u{1b}[2J\u{9b}31m\u{8}\u{8}\u{b}\u{7f}\u{90}x\u{9c}\u{202e}";

/// A home whose daemon runs `one`, on a terminal that has colours.
fn coloured_home() -> Home {
    let home = home().with_env("TERM", "xterm-256color");
    home.server("one", &speaker(&home));
    home.server("missing-one", "command \"/nowhere/at/all\"\n");
    home.daemon();
    home.wait_for_state("one", "running");
    home.wait_for_state("missing-one", "failed");
    home
}

/// `text` without colours, which begin with `ESC [` and end with `m`.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        let after = part.trim_start_matches(|it: char| it.is_ascii_digit() || it == ';');
        kept + after.strip_prefix('m').unwrap_or(part)
    })
}

#[test]
fn a_terminal_gets_colours_and_columns() {
    let home = coloured_home();
    let (code, seen) = Pty::new(100).shows(&mut home.command(&["list"]));
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
fn nothing_is_wider_than_a_narrow_terminal() {
    let home = coloured_home();
    for columns in [40, 60, 80] {
        let (_, seen) = Pty::new(columns).shows(&mut home.command(&["list"]));
        for line in without_colours(&seen).lines() {
            assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
        }
    }
    home.finish();
}

#[test]
fn no_color_is_obeyed_on_a_terminal() {
    let home = coloured_home();
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        for args in [&["list"][..], &["status", "missing-one"], &["status", "nobody"], &["--help"]]
        {
            let (_, seen) = Pty::new(100).shows(home.command(args).env(name, value));
            assert!(!seen.contains('\u{1b}'), "{name} {args:?}: {seen:?}");
        }
    }
    home.finish();
}

#[test]
fn what_is_not_read_by_a_terminal_has_no_colours() {
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

/// Nothing in `seen` steers a terminal, but for colours of our own.
#[track_caller]
fn is_tame(seen: &str) {
    let without_spinner = seen.replace("\r\u{1b}[2K", "");
    let plain = without_colours(&without_spinner.replace("\u{1b}[31mred", "\u{1b}!"));
    let is_wild = |character: &char| character.is_control() && *character != '\n';
    let wild: Vec<char> = plain.chars().filter(is_wild).collect();
    assert!(wild.is_empty(), "{wild:?} in {seen:?}");
    assert!(!plain.contains('\u{202e}'), "{seen:?}");
}

#[test]
fn a_server_cannot_steer_the_terminal() {
    let home = home().with_env("TERM", "xterm-256color");
    let lines = ["--lines", "2", "--text", EVIL, "--then", "sleep"];
    // KDL wants a change of direction to be escaped.
    let tame = |kdl: &str| kdl.replace('\u{202e}', "\\u{202e}");
    home.server("talks", &tame(&home.kdl_command("xy-test-spew", &lines)));
    let dies = home.kdl_command("xy-test-exit", &["--say", EVIL]);
    home.server("dies", &tame(&format!("{dies}restart {{ policy \"never\" }}\n")));
    home.daemon();
    home.wait_for_state("talks", "running");
    home.wait_for_state("dies", "failed");
    home.wait_until("both have spoken", || {
        home.xy(&["logs", "talks"]).stdout.lines().count() == 2
            && home.xy(&["logs", "dies"]).stdout.lines().count() == 1
    });
    for args in [
        &["logs", "talks"][..],
        &["logs", "dies", "-t"],
        &["status", "talks"],
        &["status", "dies"],
        &["list"],
        &["status", EVIL],
        &["logs", EVIL],
    ] {
        let Ran { stdout, stderr, .. } = home.xy(args);
        is_tame(&stdout);
        is_tame(&stderr);
        let (_, seen) = Pty::new(200).shows(&mut home.command(args));
        is_tame(&seen);
    }
    // Whoever asks for raw bytes gets them.
    assert!(home.xy(&["logs", "talks", "--raw"]).stdout.contains(EVIL));
    home.finish();
}

#[test]
fn a_file_cannot_steer_the_terminal() {
    let home = home_with_one();
    home.server("bad", &format!("comand \"{EVIL}\"\nrestart {{ policy \"{EVIL}\" }}\n"));
    let named = format!("config/xy/servers/{}.kdl", EVIL.replace('\u{b}', ""));
    fs::write(home.root().join(named), "command \"x\"\n").unwrap();
    for args in [&["check"][..], &["reload"], &["daemon"]] {
        let Ran { stdout, stderr, .. } = home.xy(args);
        is_tame(&stdout);
        is_tame(&stderr);
        let (_, seen) = Pty::new(200).shows(home.command(args).env("TERM", "xterm"));
        is_tame(&seen);
    }
    assert_eq!(home.call("list", Value::Null).unwrap()[0]["name"], "one");
    home.finish();
}

#[test]
fn a_prompt_after_a_verb_starts_on_a_line_of_its_own() {
    let home = coloured_home();
    for args in [&["list"][..], &["status", "one"], &["restart", "one"], &["status", "nobody"]] {
        let (_, seen) = Pty::new(100).shows(home.command(args).arg0("xy"));
        assert!(seen.ends_with('\n') || seen.ends_with("\u{1b}[?25h"), "{args:?}: {seen:?}");
    }
    home.finish();
}

#[test]
fn json_on_a_terminal_is_escaped_and_the_same() {
    let home = home();
    home.server("bad", "command \"x\"\nport \"\\u{202e}\\u{9b}31m\\u{200b}\"\n");
    let report = home.xy(&["check", "--json"]).stdout;
    let server = home.root().join("config/xy/servers/\u{9b}\u{202e}.kdl");
    fs::write(&server, "command \"x\"\n").unwrap();
    let piped = home.xy(&["check", "--json"]).stdout;
    assert!(piped.contains('\u{202e}') && piped != report, "a pipe gets it as it is: {piped:?}");
    let (_, seen) = Pty::new(200).shows(&mut home.command(&["check", "--json"]));
    is_tame(&seen);
    assert!(seen.contains("\\u202e") && seen.contains("\\u009b"), "{seen:?}");
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(read(&seen), read(&piped));
    home.finish();
}
