//! Folders and sockets that have vanished, or something else in their place.

use std::fs;
use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::redact::redacted;
use crate::support::{ask, running, says};
#[cfg(target_os = "linux")]
use crate::support::{disk::SmallDisk, signal};
use crate::{closed_home, tested};

#[test]
fn a_log_folder_that_vanished_is_made_again() {
    let home = closed_home();
    home.daemon(); // Without a server: the keeper of one makes the folder again by itself.
    fs::remove_dir_all(home.root().join("state/xy/logs")).unwrap();

    let looked = ask(&home, "self_test", json!({ "repair": false }));
    assert_eq!(looked["health"]["logs"]["status"], "error", "{looked:#}");
    let tested = tested(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    assert!(home.root().join("state/xy/logs").is_dir());
    home.finish();
}

#[test]
fn a_log_folder_that_is_none_is_told_and_left_alone() {
    let home = closed_home();
    home.daemon();
    let logs = home.root().join("state/xy/logs");
    fs::remove_dir_all(&logs).unwrap();
    fs::write(&logs, "precious").unwrap(); // Not even root can write into it.

    let tested = tested(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    assert_eq!(fs::read_to_string(&logs).unwrap(), "precious");
    fs::remove_file(&logs).unwrap();
    home.finish();
}

#[test]
fn a_state_folder_that_vanished_is_made_again_and_nobody_is_killed() {
    let home = closed_home();
    home.mcp_server("one", &["--only-tools"]);
    let daemon = home.daemon();
    let one = running(&home, "one");
    // Somebody may just write something there.
    home.wait_until("it is gone", || fs::remove_dir_all(home.root().join("state/xy")).is_ok());

    let tested = tested(&home);

    assert_eq!(tested["success"], true, "{tested:#}");
    // Whoever keeps something there may have made the outermost again.
    let made = tested["autoRepair"].as_array().unwrap();
    let made = made.iter().filter(|it| it["action"] == "folder_created").count();
    assert!((2..=3).contains(&made), "{tested:#}");
    assert_eq!(running(&home, "one"), one);
    let second = home.daemon_fails();
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(told.contains(&format!("another daemon runs already, pid {}", daemon.pid)), "{told}");
    home.finish();
}

#[test]
fn a_lock_that_vanished_is_taken_again_before_a_second_daemon_does() {
    let home = closed_home();
    home.mcp_server("one", &["--only-tools"]);
    let daemon = home.daemon();
    let one = running(&home, "one");
    let lock = home.root().join("state/xy/xy.pid");
    // Gone, or another file in its place that nobody holds.
    for loss in [
        |lock: &Path| fs::remove_file(lock),
        |lock: &Path| fs::remove_file(lock).and_then(|()| fs::write(lock, "1\n")),
    ] {
        loss(&lock).unwrap();
        let looked = ask(&home, "self_test", json!({ "repair": false }));
        let database = &looked["health"]["database"];
        assert_eq!((&looked["success"], &database["status"]), (&json!(false), &json!("error")));
        assert!(database["note"].as_str().unwrap().contains("a second daemon could"), "{looked:#}");

        let mended = tested(&home);
        assert_eq!(mended["success"], true, "{mended:#}");
        let repairs = mended["autoRepair"].as_array().unwrap();
        assert_eq!((repairs.len(), &repairs[0]["action"]), (1, &json!("lock_taken")));
        assert_eq!(repairs[0]["path"], lock.display().to_string());
        assert_eq!(fs::read_to_string(&lock).unwrap(), format!("{}\n", daemon.pid));
        let second = home.daemon_fails();
        let told = String::from_utf8_lossy(&second.stderr).into_owned();
        let running = format!("another daemon runs already, pid {}", daemon.pid);
        assert!(told.contains(&running), "{told}");
        assert!(tested(&home).get("autoRepair").is_none(), "there is nothing left to do");
    }
    assert_eq!(running(&home, "one"), one);
    home.finish();
}

#[test]
fn a_socket_for_clients_that_vanished_is_made_again() {
    let home = closed_home();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    running(&home, "one");
    let before = home.mcp_connect(&[]);
    before.initialize();
    fs::remove_file(home.mcp_socket()).unwrap();

    let tested = tested(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    let after = home.mcp_connect(&[]);
    after.initialize();
    for client in [&before, &after] {
        assert_eq!(client.call_text("one__echo", json!({ "message": "a" })), "a");
    }
    before.close();
    after.close();
    home.finish();
}

#[test]
fn a_control_socket_that_vanished_is_made_again_by_who_can_still_ask() {
    let home = closed_home();
    home.server("one", &home.kdl_command("xy-test-exit", &["--say", "hello", "--after", "600000"]));
    home.daemon();
    says(&home, "one", "hello");
    let client = home.mcp_connect(&[]);
    client.initialize();
    let mut before = home.connect();
    fs::remove_file(home.socket()).unwrap();
    assert_eq!(home.xy(&["list"]).code, 2);

    let answer = client.call("self_test", json!({}));

    let repaired = &answer["result"]["structuredContent"]["autoRepair"][0];
    assert_eq!(repaired["action"], "socket_created", "{answer:#}");
    assert_eq!(home.xy(&["list"]).code, 0);
    assert!(before.call("version", Value::Null).is_ok(), "who was connected still is");
    client.close();
    home.finish();
}

#[test]
fn what_is_in_the_place_of_a_socket_is_told_and_left_alone() {
    let home = closed_home();
    home.daemon();
    fs::remove_file(home.mcp_socket()).unwrap();
    fs::write(home.mcp_socket(), "precious").unwrap();
    let tested = tested(&home);
    let socket = &tested["health"]["sockets"][1];
    assert_eq!(socket["status"], "error", "{tested:#}");
    assert!(socket["note"].as_str().unwrap().contains("is not a socket"), "{tested:#}");
    assert_eq!(fs::read_to_string(home.mcp_socket()).unwrap(), "precious");
    fs::remove_file(home.mcp_socket()).unwrap();
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_keeps_nobody_from_being_repaired() {
    let home = closed_home();
    let Some(disk) = SmallDisk::mount(&home) else {
        println!("SKIPPED: no right to mount a small disk");
        return;
    };
    let kdl = home.kdl_mcp(&["--only-tools"]) + "restart { policy \"never\" }\n";
    home.write_config("servers/dead.kdl", &kdl);
    home.daemon();
    signal(running(&home, "dead"), Signal::KILL);
    home.wait_for_state("dead", "failed");
    disk.fill();

    let full = tested(&home);

    assert_eq!(full["success"], false, "{full:#}");
    for place in ["database", "logs"] {
        let note = full["health"][place]["note"].as_str().unwrap();
        assert!(note.contains("No space left on device"), "{full:#}");
    }
    assert_eq!(full["autoRepair"][0]["action"], "worker_restarted", "{full:#}");
    let history = full["diagnostics"]["restartHistory"].as_array().unwrap();
    let last = history.last().unwrap()["reason"].as_str().unwrap();
    assert!(last.starts_with("self-test: "), "what cannot be written is known: {full:#}");
    assert_eq!(home.xy_json(&["diagnostics"])["restart_history"], json!(history));
    let events = home.xy(&["events", "--history", "5", "--no-follow"]);
    assert!(events.code == 0 && events.stdout.contains("self-test: "), "{events:#?}");

    disk.make_room();
    assert_eq!(tested(&home)["success"], true);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_can_only_be_read_is_told() {
    let home = closed_home();
    let folder = home.root().join("state/xy/logs");
    fs::create_dir_all(&folder).unwrap();
    let Some(disk) = SmallDisk::mount_at(folder) else {
        println!("SKIPPED: no right to mount a small disk");
        return;
    };
    home.daemon();
    disk.remount("ro");
    let told = tested(&home);
    insta::assert_snapshot!(redacted(&home, &told));
    disk.remount("rw");
    assert_eq!(tested(&home)["success"], true);
}
