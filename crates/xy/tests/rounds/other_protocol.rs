//! Another build of xy, whose daemon and shims speak another version with each other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use xy_testkit::{Home, Ran, is_alive};

use crate::census::{is_there_once, leaders, listed};
use crate::diary;
use crate::pause;
use crate::support::{home, running};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// The other build. `./test` makes it; who runs one test alone has to.
#[track_caller]
fn other() -> PathBuf {
    let xy = Path::new(env!("CARGO_BIN_EXE_xy"));
    let other = xy.with_file_name("xy-other");
    let release = if xy.parent().unwrap().ends_with("release") { " --release" } else { "" };
    assert!(
        other.is_file(),
        "there is no {}; make it with: ./test other{release}",
        other.display()
    );
    other
}

fn home_with_servers() -> Home {
    let home = home();
    home.expect_left("home/");
    let diary = diary::folder(&home);
    for (name, port) in NAMES.into_iter().zip(["", "port 8421\n", "port 8422\n"]) {
        let args = ["--diary", diary.to_str().unwrap(), "--every", "50"];
        home.server(name, &format!("{}{port}", home.kdl_command("xy-test-diary", &args)));
    }
    home
}

#[test]
fn it_replaces_no_daemon_whose_servers_it_could_not_keep() {
    let home = home_with_servers();
    let first = home.daemon();
    let before = NAMES.map(|name| running(&home, name));
    let ran: Ran = home
        .command_of(&other(), &["daemon", "--replace"])
        .output()
        .expect("it ends by itself")
        .into();
    assert_eq!(ran.code, 1, "{ran:#?}");
    for words in [
        "the running daemon cannot be replaced by this one",
        "its servers are kept by processes that speak version",
        "end it with `xy shutdown`, then start this one",
    ] {
        assert!(ran.stderr.contains(words), "{ran:#?}");
    }
    assert!(first.is_running());
    assert_eq!(NAMES.map(|name| running(&home, name)), before);
    assert!(first.terminate().success());
    diary::nobody_was_there_twice(&home);
    assert!(NAMES.iter().all(|name| diary::pages(&home, name).len() == 1));
    home.finish();
}

#[test]
fn after_a_killed_daemon_it_says_whom_it_cannot_take_over_and_starts_them_anew_in_turn() {
    let other = other();
    let home = home_with_servers();
    home.write_config("xy.kdl", "orphan-timeout \"1h\"");
    let first = home.daemon();
    let before = NAMES.map(|name| running(&home, name));
    first.kill9();
    let second = home.daemon_of(&other, &[]);
    let words = second.stderr();
    for name in NAMES {
        let told = |line: &str| {
            line.contains(&format!("server={name}")) || line.contains(&format!("server=\"{name}\""))
        };
        let line = words.lines().find(|line| told(line) && line.contains("cannot be taken over"));
        assert!(line.is_some_and(|line| line.contains("it speaks version")), "{words}");
    }
    // They are told to end, and waited for; nobody waits for the time-out.
    home.wait_until("all have begun anew", || {
        pause(Duration::from_millis(5));
        diary::nobody_was_there_twice(&home);
        let list = listed(&home);
        let renewed = |(name, before): (&str, u32)| {
            let entry = &list[name];
            let is_another = entry["state"] == "running" && entry["pid"] != before;
            assert!(!is_another || !is_alive(before), "`{name}` is there twice");
            is_another
        };
        NAMES.into_iter().zip(before).map(renewed).filter(|it| *it).count() == NAMES.len()
    });
    let (list, leaders) = (listed(&home), leaders(&home));
    for name in NAMES {
        is_there_once(&home, name, &leaders[name], &list[name]);
        assert_eq!(diary::pages(&home, name).len(), 2);
    }
    assert!(second.terminate().success());
    diary::nobody_was_there_twice(&home);
    home.finish();
}
