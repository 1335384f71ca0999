//! Parts of the daemon that do not answer.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use xy_testkit::Home;
use xy_testkit::standstill::Standstill;

use crate::{home_without_gateway, run_self_test};

/// A process that blocks access to a file, as a hanging disk would.
struct BlockedFile {
    process: Child,
    stdout: BufReader<ChildStdout>,
}

impl BlockedFile {
    fn block(home: &Home, file: &Path) -> Self {
        let mut process = Command::new(home.program("xy-test-lease"));
        let mut process =
            process.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let mut blocked = Self { process, stdout };
        blocked.wait_for_word("held");
        blocked
    }

    /// Waits until the process has printed this word; it exits if it never does.
    #[track_caller]
    fn wait_for_word(&mut self, word: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    fn release(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn stuck_part_is_reported_and_the_self_test_ends() {
    let home = home_without_gateway();
    let daemon = home.daemon();
    assert_eq!(run_self_test(&home)["health"]["supervisor"]["status"], "ok");
    let still = Standstill::of(daemon.pid, "gateway");
    let stuck = run_self_test(&home);
    drop(still);

    let supervisor = &stuck["health"]["supervisor"];
    assert_eq!((&supervisor["status"], &stuck["success"]), (&json!("error"), &json!(false)));
    let note = "the gateway did not answer within 5 s";
    assert_eq!(supervisor["note"], note, "{stuck:#}");
    assert!(stuck["summary"].as_str().unwrap().contains(note), "{stuck:#}");
    assert!(stuck.get("autoRepair").is_none(), "no repair applies: {stuck:#}");
    let well = run_self_test(&home);
    assert_eq!(
        (&well["health"]["supervisor"]["status"], &well["success"]),
        (&json!("ok"), &json!(true))
    );
    home.finish();
}

/// The daemon reads the manifest of a server when it first sees the server.
#[test]
fn hanging_state_disk_blocks_no_request_or_shutdown() {
    let home = home_without_gateway();
    let file = home.root().join("state/xy/manifests/two.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let leftover = file.with_file_name("leftover.json");
    std::fs::write(&leftover, "{}").unwrap();
    let daemon = home.daemon();
    // The daemon removes manifests without a server once, after its start.
    home.wait_until("leftover manifests are removed", || !leftover.exists());
    std::fs::write(&file, "{}").unwrap();
    let mut blocked = BlockedFile::block(&home, &file);
    home.server("two", &format!("{}start \"lazy\"\n", home.kdl_mcp(&[])));
    home.call("reload", Value::Null).unwrap();
    blocked.wait_for_word("wanted");
    let meanwhile = run_self_test(&home);
    assert_eq!(meanwhile["health"]["supervisor"]["status"], "ok", "{meanwhile:#}");
    assert!(daemon.terminate().success());
    blocked.release();
    home.finish();
}
