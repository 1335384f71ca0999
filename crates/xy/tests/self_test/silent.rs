//! Parts of the daemon that do not answer.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use xy_testkit::Home;
use xy_testkit::standstill::Standstill;

use crate::{closed_home, tested};

/// Whoever holds a file back, as a disk that hangs would.
struct Held {
    holder: Child,
    says: BufReader<ChildStdout>,
}

impl Held {
    fn back(home: &Home, file: &Path) -> Self {
        let mut holder = Command::new(home.program("xy-test-lease"));
        let mut holder =
            holder.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(holder.stdout.take().unwrap());
        let mut held = Self { holder, says };
        held.has_said("held");
        held
    }

    /// Waits until it has said that; it ends by itself if it never does.
    #[track_caller]
    fn has_said(&mut self, word: &str) {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    fn let_go(mut self) {
        drop(self.holder.stdin.take());
        assert!(self.holder.wait().unwrap().success());
    }
}

#[test]
fn a_part_of_the_daemon_that_is_stuck_is_named_and_the_test_is_over_all_the_same() {
    let home = closed_home();
    let daemon = home.daemon();
    assert_eq!(tested(&home)["health"]["supervisor"]["status"], "ok");
    let still = Standstill::of(daemon.pid, "gateway");
    let stuck = tested(&home);
    drop(still);

    let supervisor = &stuck["health"]["supervisor"];
    assert_eq!((&supervisor["status"], &stuck["success"]), (&json!("error"), &json!(false)));
    let note = "whoever speaks with MCP clients did not answer within 5 s";
    assert_eq!(supervisor["note"], note, "{stuck:#}");
    assert!(stuck["summary"].as_str().unwrap().contains(note), "{stuck:#}");
    assert!(stuck.get("autoRepair").is_none(), "nobody is to blame: {stuck:#}");
    let well = tested(&home);
    assert_eq!(
        (&well["health"]["supervisor"]["status"], &well["success"]),
        (&json!("ok"), &json!(true))
    );
    home.finish();
}

/// What is remembered of a server is read when that is first heard of.
#[test]
fn a_disk_that_hangs_under_what_is_remembered_holds_up_nobody_and_not_the_end_of_the_daemon() {
    let home = closed_home();
    let daemon = home.daemon();
    let file = home.root().join("state/xy/manifests/two.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "{}").unwrap();
    let mut held = Held::back(&home, &file);
    home.server("two", &format!("{}start \"lazy\"\n", home.kdl_mcp(&[])));
    home.call("reload", Value::Null).unwrap();
    held.has_said("wanted");
    let meanwhile = tested(&home);
    assert_eq!(meanwhile["health"]["supervisor"]["status"], "ok", "{meanwhile:#}");
    assert!(daemon.terminate().success());
    held.let_go();
    home.finish();
}
