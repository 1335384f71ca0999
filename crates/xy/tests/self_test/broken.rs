//! Servers that are well, dead, hang, or never come up.

use std::net::TcpListener;
#[cfg(target_os = "linux")]
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::is_alive;

use crate::redact::redacted;
use crate::support::{ask, home, pid_in, running, signal, sleeper, status};
use crate::{closed_home, tested, worker};

#[test]
fn where_all_is_well_nothing_is_changed() {
    let home = home();
    home.mcp_server("modern", &["--era", "modern"]);
    home.mcp_server("talks", &["--only-tools"]);
    home.server("mute", &sleeper(&home));
    home.server("stopped", &sleeper(&home));
    home.daemon();
    let before = ["modern", "talks", "mute"].map(|name| running(&home, name));
    ask(&home, "stop", json!({ "name": "stopped" }));
    home.gateway_address();

    let tested = tested(&home);

    assert_eq!(["modern", "talks", "mute"].map(|name| running(&home, name)), before);
    assert_eq!(status(&home, "stopped")["state"], "stopped");
    insta::assert_snapshot!(redacted(&home, &tested));
    let ran = home.xy(&["self-test"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.stdout.contains("all is well") && ran.stdout.contains("HTTP door"), "{ran:#?}");
    assert_eq!(home.xy_json(&["self-test", "--no-repair"])["success"], true);
    home.finish();
}

#[test]
fn a_crashed_server_is_started_again_unless_one_only_looks() {
    let home = closed_home();
    let kdl = home.kdl_mcp(&["--only-tools"]) + "restart { policy \"never\" }\n";
    home.write_config("servers/dead.kdl", &kdl);
    home.mcp_server("well", &["--only-tools"]);
    home.daemon();
    let (dead, well) = (running(&home, "dead"), running(&home, "well"));
    signal(dead, Signal::KILL);
    home.wait_for_state("dead", "failed");

    let looked = home.xy(&["self-test", "--no-repair", "--json"]);
    assert_eq!(looked.code, 1, "{looked:#?}");
    assert_eq!(status(&home, "dead")["state"], "failed");

    let tested = tested(&home);
    insta::assert_snapshot!(redacted(&home, &tested));
    assert_eq!(worker(&tested, "dead")["pid"], running(&home, "dead"));
    assert_eq!(running(&home, "well"), well);
    home.finish();
}

#[test]
fn a_server_that_hangs_is_replaced() {
    let home = closed_home();
    home.mcp_server("hangs", &["--only-tools"]);
    home.mcp_server("well", &["--only-tools"]);
    home.daemon();
    let (hangs, well) = (running(&home, "hangs"), running(&home, "well"));
    signal(hangs, Signal::STOP);

    let tested = tested(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    let repair = &tested["autoRepair"][0];
    assert_eq!(
        (&repair["previousPid"], &repair["newPid"]),
        (&json!(hangs), &worker(&tested, "hangs")["pid"])
    );
    assert!(!is_alive(hangs));
    assert_eq!(running(&home, "well"), well);
    home.finish();
}

#[test]
fn a_server_that_is_deadlocked_is_replaced_and_the_journal_says_by_whom() {
    let home = closed_home();
    let kdl = home.kdl_mcp(&["--only-tools", "--dull"]);
    // It is not known to answer: no probe would ever find it.
    home.server("hangs", &format!("{kdl}stop {{ grace \"1s\" }}\nhealth {{ probe \"off\" }}\n"));
    let daemon = home.daemon();
    let hangs = running(&home, "hangs");
    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("hangs__deadlock", json!({})), "done");

    let mended = tested(&home);

    let why = "it did not answer two questions in a row";
    let repair = &mended["autoRepair"][0];
    assert_eq!((&repair["previousPid"], &repair["reason"]), (&json!(hangs), &json!(why)));
    assert_eq!(repair.get("proven"), None, "what is proven is not said: {mended:#}");
    assert_eq!(mended["success"], true, "{mended:#}");
    assert!(!is_alive(hangs));
    assert_eq!(client.call_text("hangs__echo", json!({ "message": "a" })), "a");
    client.close();

    // What a later daemon tells of it.
    daemon.kill9();
    home.daemon();
    running(&home, "hangs");
    let later = tested(&home);
    let history = later["diagnostics"]["restartHistory"].as_array().unwrap();
    let told: Vec<_> = history.iter().map(|it| it["reason"].as_str().unwrap()).collect();
    assert_eq!(told, [format!("self-test: {why}")], "{later:#}");
    let report = home.xy_json(&["diagnostics"]);
    assert_eq!(&report["restart_history"], &later["diagnostics"]["restartHistory"]);
    let events = home.xy(&["events", "--history", "20", "--no-follow"]);
    assert!(events.stdout.contains(&format!("self-test: {why}")), "{events:#?}");
    home.finish();
}

#[test]
fn a_server_that_never_comes_up_has_failed_and_so_has_the_test() {
    let home = closed_home();
    let rules = "restart { max-attempts 1; backoff-initial \"2s\"; jitter #false }\n";
    let kdl = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.write_config("servers/loops.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    home.wait_for_state("loops", "failed");

    let tested = tested(&home);

    let mut shown = tested.clone();
    // How often it was tried by itself before is not the point.
    shown["diagnostics"]["restartHistory"] = json!("…");
    shown["health"]["worker"][0]["restartCount"] = json!("…");
    insta::assert_snapshot!(redacted(&home, &shown));
    let history = tested["diagnostics"]["restartHistory"].as_array().unwrap();
    assert!(history.iter().all(|it| it["server"] == "loops" && it["reason"].is_string()));
    assert!(history.len() >= 2, "{history:#?}");
    let ran = home.xy(&["self-test"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.stdout.contains("not all is well"), "{ran:#?}");
    home.finish();
}

#[test]
fn a_server_somewhere_else_that_does_not_answer_is_told_and_nothing_is_restarted() {
    let home = closed_home();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.write_config("servers/far.kdl", &format!("url \"http://127.0.0.1:{port}/mcp\"\n"));
    home.daemon();
    home.wait_for_state("far", "restarting");
    let tested = tested(&home);
    let far = worker(&tested, "far");
    assert_eq!((&far["status"], &far["health"]), (&json!("failed"), &json!("unreachable")));
    assert!(tested.get("autoRepair").is_none(), "{tested:#}");
    assert_eq!(tested["success"], false);
    home.finish();
}

#[test]
fn an_instance_for_one_client_is_tested_and_repaired_and_none_is_begun_for_it() {
    let home = closed_home();
    let kdl = home.kdl_mcp(&["--only-tools"]) + "isolation \"client\"\n";
    home.write_config("servers/own.kdl", &kdl);
    home.daemon();
    let unused = tested(&home);
    assert_eq!(worker(&unused, "own")["note"], "no client uses it now");
    assert_eq!(status(&home, "own")["instances"], json!([]));

    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("own__echo", json!({ "message": "a" })), "a");
    let pid = pid_in(&status(&home, "own")["instances"][0]);
    let well = tested(&home);
    assert_eq!(worker(&well, "own")["pid"], pid);
    assert!(worker(&well, "own")["client"].is_u64(), "{well:#}");
    signal(pid, Signal::STOP);
    let mended = tested(&home);
    assert_eq!(worker(&mended, "own")["status"], "restarted", "{mended:#}");
    assert_eq!(client.call_text("own__echo", json!({ "message": "b" })), "b");
    client.close();
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn what_no_server_owns_is_ended_and_what_one_owns_is_not() {
    let home = closed_home();
    home.mcp_server("well", &["--only-tools"]);
    home.daemon();
    let well = running(&home, "well");
    let environment = std::fs::read(format!("/proc/{well}/environ")).unwrap();
    let mut entries = environment.split(|byte| *byte == 0);
    let life = entries.find_map(|it| it.strip_prefix(b"XY_INSTANCE=")).unwrap();
    let life = String::from_utf8(life.to_vec()).unwrap();
    let home_id = life.split('-').next().unwrap();
    let start = |life: &str| {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().env("XY_INSTANCE", life).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut orphan = start(&format!("{home_id}-0123456789abcdef"));
    let mut stranger = start("ffffffffffffffff-0123456789abcdef");

    let looked = ask(&home, "self_test", json!({ "repair": false }));
    assert_eq!(looked["health"]["orphans"]["pids"], json!([orphan.id()]), "{looked:#}");
    assert_eq!(looked["success"], false);
    // It dies of this; whoever started it has to reap it.
    let reaper = std::thread::spawn(move || (orphan.id(), orphan.wait().unwrap()));
    let tested = tested(&home);
    let (pid, ended) = reaper.join().unwrap();
    assert!(!ended.success());
    assert_eq!(tested["autoRepair"][0]["action"], "processes_reaped", "{tested:#}");
    assert_eq!(tested["autoRepair"][0]["pids"], json!([pid]));
    assert_eq!(tested["success"], true);
    assert_eq!(running(&home, "well"), well);
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    home.finish();
}
