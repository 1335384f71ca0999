//! Another build of xy, whose daemon and shims use another protocol version.

use std::path::{Path, PathBuf};
use std::time::Duration;

use xy_testkit::{Home, Ran, is_alive};

use crate::pause;
use crate::processes::{assert_runs_once, leaders, list_by_name};
use crate::run_log;
use crate::support::{home, running};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// Returns the path of the other build. `./test other` builds it; a run of a single test needs that
/// first.
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
    let run_log = run_log::folder(&home);
    for (name, port) in NAMES.into_iter().zip(["", "port 8421\n", "port 8422\n"]) {
        let args = ["--run-log", run_log.to_str().unwrap(), "--every", "50"];
        home.server(name, &format!("{}{port}", home.kdl_command("xy-test-run-log", &args)));
    }
    home
}

#[test]
fn daemon_with_incompatible_shims_is_not_replaced() {
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
        "the shims of its servers speak protocol version",
        "stop it with `xy shutdown`, then start this one",
    ] {
        assert!(ran.stderr.contains(words), "{ran:#?}");
    }
    assert!(first.is_running());
    assert_eq!(NAMES.map(|name| running(&home, name)), before);
    assert!(first.terminate().success());
    run_log::assert_no_overlap(&home);
    assert!(NAMES.iter().all(|name| run_log::life_records(&home, name).len() == 1));
    home.finish();
}

#[test]
fn incompatible_servers_are_reported_and_restarted() {
    let other = other();
    let home = home_with_servers();
    home.write_config("xy.kdl", "orphan-timeout \"1h\"");
    let first = home.daemon();
    let before = NAMES.map(|name| running(&home, name));
    first.kill9();
    let second = home.daemon_of(&other, &[]);
    let words = second.stderr();
    for name in NAMES {
        let is_reported = |line: &str| {
            line.contains(&format!("server={name}")) || line.contains(&format!("server=\"{name}\""))
        };
        let line =
            words.lines().find(|line| is_reported(line) && line.contains("cannot be taken over"));
        assert!(line.is_some_and(|line| line.contains("it speaks version")), "{words}");
    }
    // The servers are asked to end, and no start waits for the timeout.
    home.wait_until("all have restarted", || {
        pause(Duration::from_millis(5));
        run_log::assert_no_overlap(&home);
        let list = list_by_name(&home);
        let renewed = |(name, before): (&str, u32)| {
            let entry = &list[name];
            let is_another = entry["state"] == "running" && entry["pid"] != before;
            assert!(!is_another || !is_alive(before), "`{name}` is there twice");
            is_another
        };
        NAMES.into_iter().zip(before).map(renewed).filter(|it| *it).count() == NAMES.len()
    });
    let (list, leaders) = (list_by_name(&home), leaders(&home));
    for name in NAMES {
        assert_runs_once(&home, name, &leaders[name], &list[name]);
        assert_eq!(run_log::life_records(&home, name).len(), 2);
    }
    assert!(second.terminate().success());
    run_log::assert_no_overlap(&home);
    home.finish();
}
