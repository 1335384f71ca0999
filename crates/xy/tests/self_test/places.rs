//! Missing folders and sockets, and other files in their place.

use std::fs;
use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::redact::redacted;
#[cfg(target_os = "linux")]
use crate::support::disk::SmallDisk;
use crate::support::{ask, running, signal, wait_for_line};
use crate::{home_without_gateway, run_self_test};

#[test]
fn missing_log_folder_is_recreated() {
    let home = home_without_gateway();
    home.daemon(); // Without a server, whose log writer would recreate the folder.
    fs::remove_dir_all(home.root().join("state/xy/logs")).unwrap();

    let checked = ask(&home, "self_test", json!({ "repair": false }));
    assert_eq!(checked["health"]["logs"]["status"], "error", "{checked:#}");
    let tested = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    assert!(home.root().join("state/xy/logs").is_dir());
    home.finish();
}

#[test]
fn file_in_place_of_log_folder_is_reported() {
    let home = home_without_gateway();
    home.daemon();
    let logs = home.root().join("state/xy/logs");
    fs::remove_dir_all(&logs).unwrap();
    fs::write(&logs, "precious").unwrap(); // Not even root can write into a file as a folder.

    let tested = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    assert_eq!(fs::read_to_string(&logs).unwrap(), "precious");
    fs::remove_file(&logs).unwrap();
    home.finish();
}

#[test]
fn missing_state_folder_is_recreated_without_a_restart() {
    let home = home_without_gateway();
    home.mcp_server("one", &["--only-tools"]);
    let daemon = home.daemon();
    let one = running(&home, "one");
    // The daemon may be writing there at the moment.
    home.wait_until("it is gone", || fs::remove_dir_all(home.root().join("state/xy")).is_ok());

    let tested = run_self_test(&home);

    assert_eq!(tested["success"], true, "{tested:#}");
    // Writers may have recreated some of the folders before the test did.
    let made = tested["autoRepair"].as_array().unwrap();
    assert!(made.iter().any(|it| it["action"] == "folder_created"), "{tested:#}");
    for folder in ["", "logs", "shims"] {
        assert!(home.root().join("state/xy").join(folder).is_dir(), "{folder} {tested:#}");
    }
    assert_eq!(running(&home, "one"), one);
    let second = home.daemon_fails();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        text.contains(&format!("another daemon is already running, pid {}", daemon.pid)),
        "{text}"
    );
    home.finish();
}

#[test]
fn missing_lock_is_retaken() {
    let home = home_without_gateway();
    home.mcp_server("one", &["--only-tools"]);
    let daemon = home.daemon();
    let one = running(&home, "one");
    let lock = home.root().join("state/xy/xy.pid");
    // The file is missing, or replaced by one without a lock.
    for loss in [
        |lock: &Path| fs::remove_file(lock),
        |lock: &Path| fs::remove_file(lock).and_then(|()| fs::write(lock, "1\n")),
    ] {
        loss(&lock).unwrap();
        let checked = ask(&home, "self_test", json!({ "repair": false }));
        let database = &checked["health"]["database"];
        assert_eq!((&checked["success"], &database["status"]), (&json!(false), &json!("error")));
        assert!(
            database["note"].as_str().unwrap().contains("a second daemon could"),
            "{checked:#}"
        );

        let mended = run_self_test(&home);
        assert_eq!(mended["success"], true, "{mended:#}");
        let repairs = mended["autoRepair"].as_array().unwrap();
        assert_eq!((repairs.len(), &repairs[0]["action"]), (1, &json!("lock_taken")));
        assert_eq!(repairs[0]["path"], lock.display().to_string());
        assert_eq!(fs::read_to_string(&lock).unwrap(), format!("{}\n", daemon.pid));
        let second = home.daemon_fails();
        let text = String::from_utf8_lossy(&second.stderr).into_owned();
        let running = format!("another daemon is already running, pid {}", daemon.pid);
        assert!(text.contains(&running), "{text}");
        assert!(run_self_test(&home).get("autoRepair").is_none(), "there is nothing left to do");
    }
    assert_eq!(running(&home, "one"), one);
    home.finish();
}

#[test]
fn missing_client_socket_is_recreated() {
    let home = home_without_gateway();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    running(&home, "one");
    let before = home.mcp_connect(&[]);
    before.initialize();
    fs::remove_file(home.mcp_socket()).unwrap();

    let tested = run_self_test(&home);

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
fn missing_control_socket_is_recreated() {
    let home = home_without_gateway();
    home.server("one", &home.kdl_command("xy-test-exit", &["--say", "hello", "--after", "600000"]));
    home.daemon();
    wait_for_line(&home, "one", "hello");
    let client = home.mcp_connect(&[]);
    client.initialize();
    let mut before = home.connect();
    fs::remove_file(home.socket()).unwrap();
    assert_eq!(home.xy(&["list"]).code, 2);

    let answer = client.call("self_test", json!({}));

    let repaired = &answer["result"]["structuredContent"]["autoRepair"][0];
    assert_eq!(repaired["action"], "socket_created", "{answer:#}");
    assert_eq!(home.xy(&["list"]).code, 0);
    assert!(before.call("version", Value::Null).is_ok(), "connections stay open");
    client.close();
    home.finish();
}

#[test]
fn file_in_place_of_socket_is_reported() {
    let home = home_without_gateway();
    home.daemon();
    fs::remove_file(home.mcp_socket()).unwrap();
    fs::write(home.mcp_socket(), "precious").unwrap();
    let tested = run_self_test(&home);
    let socket = &tested["health"]["sockets"][1];
    assert_eq!(socket["status"], "error", "{tested:#}");
    assert!(socket["note"].as_str().unwrap().contains("is not a socket"), "{tested:#}");
    assert_eq!(fs::read_to_string(home.mcp_socket()).unwrap(), "precious");
    fs::remove_file(home.mcp_socket()).unwrap();
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported_and_blocks_no_repair() {
    let home = home_without_gateway();
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

    let full = run_self_test(&home);

    assert_eq!(full["success"], false, "{full:#}");
    for place in ["database", "logs"] {
        let note = full["health"][place]["note"].as_str().unwrap();
        assert!(note.contains("No space left on device"), "{full:#}");
    }
    assert_eq!(full["autoRepair"][0]["action"], "worker_restarted", "{full:#}");
    let history = full["diagnostics"]["restartHistory"].as_array().unwrap();
    let last = history.last().unwrap()["reason"].as_str().unwrap();
    assert!(last.starts_with("self-test: "), "the unwritable files are reported: {full:#}");
    assert_eq!(home.xy_json(&["diagnostics"])["restart_history"], json!(history));
    let events = home.xy(&["events", "--history", "5", "--no-follow"]);
    assert!(events.code == 0 && events.stdout.contains("self-test: "), "{events:#?}");

    disk.make_room();
    assert_eq!(run_self_test(&home)["success"], true);
}

#[cfg(target_os = "linux")]
#[test]
fn readonly_disk_is_reported() {
    let home = home_without_gateway();
    let folder = home.root().join("state/xy/logs");
    fs::create_dir_all(&folder).unwrap();
    let Some(disk) = SmallDisk::mount_at(folder) else {
        println!("SKIPPED: no right to mount a small disk");
        return;
    };
    home.daemon();
    disk.remount("ro");
    let text = run_self_test(&home);
    insta::assert_snapshot!(redacted(&home, &text));
    disk.remount("rw");
    assert_eq!(run_self_test(&home)["success"], true);
}
