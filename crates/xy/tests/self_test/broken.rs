//! Servers that are healthy, dead or hanging, or that never start.

use std::net::TcpListener;
#[cfg(target_os = "linux")]
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use xy_testkit::is_alive;

use crate::redact::redacted;
use crate::support::{ask, home, pid_in, running, signal, sleeper, status, wait_for_line};
use crate::{home_without_gateway, run_self_test, worker};

#[test]
fn healthy_daemon_is_left_unchanged() {
    let home = home();
    home.mcp_server("modern", &["--era", "modern"]);
    home.mcp_server("talks", &["--only-tools"]);
    home.server("mute", &sleeper(&home));
    home.server("stopped", &sleeper(&home));
    home.daemon();
    let before = ["modern", "talks", "mute"].map(|name| running(&home, name));
    ask(&home, "stop", json!({ "name": "stopped" }));
    home.gateway_address();

    let tested = run_self_test(&home);

    assert_eq!(["modern", "talks", "mute"].map(|name| running(&home, name)), before);
    assert_eq!(status(&home, "stopped")["state"], "stopped");
    insta::assert_snapshot!(redacted(&home, &tested));
    let ran = home.xy(&["self-test"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(
        ran.stdout.contains("all checks passed") && ran.stdout.contains("HTTP gateway"),
        "{ran:#?}"
    );
    assert_eq!(home.xy_json(&["self-test", "--no-repair"])["success"], true);
    home.finish();
}

#[test]
fn crashed_server_is_started_by_a_repair() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&["--only-tools"]) + "restart { policy \"never\" }\n";
    home.write_config("servers/dead.kdl", &kdl);
    home.mcp_server("well", &["--only-tools"]);
    home.daemon();
    let (dead, well) = (running(&home, "dead"), running(&home, "well"));
    signal(dead, Signal::KILL);
    home.wait_for_state("dead", "failed");

    let checked = home.xy(&["self-test", "--no-repair", "--json"]);
    assert_eq!(checked.code, 1, "{checked:#?}");
    assert_eq!(status(&home, "dead")["state"], "failed");

    let tested = run_self_test(&home);
    insta::assert_snapshot!(redacted(&home, &tested));
    assert_eq!(worker(&tested, "dead")["pid"], running(&home, "dead"));
    assert_eq!(running(&home, "well"), well);
    home.finish();
}

#[test]
fn hanging_server_is_restarted() {
    let home = home_without_gateway();
    home.mcp_server("hangs", &["--only-tools"]);
    home.mcp_server("well", &["--only-tools"]);
    home.daemon();
    let (hangs, well) = (running(&home, "hangs"), running(&home, "well"));
    signal(hangs, Signal::STOP);

    let tested = run_self_test(&home);

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
fn deadlocked_server_is_restarted_and_journaled() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&["--only-tools", "--dull"]);
    // Without probes the monitor would never find the hanging server.
    home.server("hangs", &format!("{kdl}stop {{ grace \"1s\" }}\nhealth {{ probe \"off\" }}\n"));
    let daemon = home.daemon();
    let hangs = running(&home, "hangs");
    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("hangs__deadlock", json!({})), "done");

    let mended = run_self_test(&home);

    let why = "it did not answer two requests in a row";
    let repair = &mended["autoRepair"][0];
    assert_eq!((&repair["previousPid"], &repair["reason"]), (&json!(hangs), &json!(why)));
    assert_eq!(repair.get("proven"), None, "a proven repair has no `proven` field: {mended:#}");
    assert_eq!(mended["success"], true, "{mended:#}");
    assert!(!is_alive(hangs));
    assert_eq!(client.call_text("hangs__echo", json!({ "message": "a" })), "a");
    client.close();

    // The records that the next daemon reads.
    daemon.kill9();
    home.daemon();
    running(&home, "hangs");
    let later = run_self_test(&home);
    let history = later["diagnostics"]["restartHistory"].as_array().unwrap();
    let reasons: Vec<_> = history.iter().map(|it| it["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, [format!("self-test: {why}")], "{later:#}");
    let report = home.xy_json(&["diagnostics"]);
    assert_eq!(&report["restart_history"], &later["diagnostics"]["restartHistory"]);
    let events = home.xy(&["events", "--history", "20", "--no-follow"]);
    assert!(events.stdout.contains(&format!("self-test: {why}")), "{events:#?}");
    home.finish();
}

#[test]
fn server_that_never_starts_fails_the_self_test() {
    let home = home_without_gateway();
    // The delay between two attempts is longer than the test.
    let rules = "restart { max-attempts 1; backoff-initial \"4s\"; jitter #false }\n";
    let kdl = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.write_config("servers/loops.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    home.wait_for_state("loops", "failed");

    let tested = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    let history = tested["diagnostics"]["restartHistory"].as_array().unwrap();
    let times: Vec<_> = history.iter().map(|it| it["timestamp"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "the oldest is the first: {history:#?}");
    let ran = home.xy(&["self-test"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.stdout.contains("some checks failed"), "{ran:#?}");
    home.finish();
}

#[test]
fn crash_looping_server_is_tried_and_its_exits_reported() {
    let home = home_without_gateway();
    let rules = "restart { max-attempts 9; backoff-initial \"10m\"; backoff-max \"10m\" }\n";
    let kdl = home.kdl_command("xy-test-exit", &["--code", "3"]);
    home.write_config("servers/loops.kdl", &format!("{kdl}{rules}"));
    home.daemon();
    home.wait_for_state("loops", "restarting");

    let once = run_self_test(&home);
    assert_eq!(once["autoRepair"][0]["proven"], false, "{once:#}");
    let twice = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &twice));
    home.finish();
}

#[test]
fn calls_of_a_hanging_server_are_answered_after_repair() {
    let home = home_without_gateway();
    let input_log = home.root().join("harness/hangs.input");
    // Without probes the monitor would not find it.
    let rest = "health { probe \"off\" }\nstop { grace \"1s\" }\n";
    let flags =
        ["--only-tools", "--unbuffered", "--dull", "--input-log", input_log.to_str().unwrap()];
    home.write_config("servers/hangs.kdl", &format!("{}{rest}", home.kdl_mcp(&flags)));
    home.daemon();
    let hangs = running(&home, "hangs");
    let client = home.mcp_connect(&[]);
    client.initialize();
    client.tool_names();
    let call = |tool: &str, message: &str, ms: u64| {
        client.start_call(&format!("hangs__{tool}"), json!({ "message": message, "ms": ms }))
    };
    let outcome = |said: &str| {
        let text = std::fs::read_to_string(&input_log).unwrap_or_default();
        text.matches(&format!("\"message\":\"{said}\"")).count()
    };
    // Both calls take longer than the self-test of a server that does not answer.
    let seen = [call("read_only", "seen-look", 600_000), call("mutating", "seen-write", 600_000)];
    // From here on it reads nothing, not even after it was resumed to be stopped.
    assert_eq!(client.call_text("hangs__deadlock", json!({})), "done");
    signal(hangs, Signal::STOP);
    let unseen = call("mutating", "unseen-write", 0);

    let tested = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    let (repair, now) = (&tested["autoRepair"][0], running(&home, "hangs"));
    assert_eq!((&repair["previousPid"], &repair["newPid"]), (&json!(hangs), &json!(now)));
    assert!(!is_alive(hangs));
    let [look, write] = seen.map(|id| client.wait_answer(id));
    assert_eq!(look["error"]["code"], -32010, "it may be why the server hung: {look}");
    assert_eq!(write["error"]["code"], -32010, "the outcome is unknown: {write}");
    let unseen = client.wait_answer(unseen);
    assert_eq!(unseen["result"]["content"][0]["text"], "unseen-write", "it was not read: {unseen}");
    let outcome = ["seen-look", "seen-write", "unseen-write"].map(outcome);
    assert_eq!(outcome, [1; 3], "nothing was done twice");
    client.close();
    home.finish();
}

#[test]
fn server_with_a_long_call_is_not_restarted() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&["--only-tools", "--dull"]);
    for name in ["mutters", "spins"] {
        home.write_config(
            &format!("servers/{name}.kdl"),
            &format!("{kdl}stop {{ grace \"1s\" }}\n"),
        );
    }
    home.daemon();
    let before = ["mutters", "spins"].map(|name| running(&home, name));
    let client = home.mcp_connect(&[]);
    client.initialize();
    // Neither server reads meanwhile: one writes to its log, and one computes.
    let calls = [("mutters__mutter", "begins to mutter"), ("spins__spin", "begins to spin")].map(
        |(tool, begins)| {
            let call = client.start_call(tool, json!({ "ms": 600_000 }));
            wait_for_line(&home, tool.split_once("__").unwrap().0, begins);
            call
        },
    );

    let tested = run_self_test(&home);

    insta::assert_snapshot!(redacted(&home, &tested));
    for (name, pid) in ["mutters", "spins"].into_iter().zip(before) {
        let now = status(&home, name);
        assert_eq!((pid_in(&now), &now["restarts_total"]), (pid, &json!(0)), "{now:#}");
    }
    for call in calls {
        assert_eq!(client.answer_within(call, Duration::ZERO), None, "it goes on");
    }
    client.close();
    home.finish();
}

/// The daemon cannot see for which peer a server waits, only that it has a connection.
#[cfg(target_os = "linux")]
#[test]
fn server_waiting_in_a_call_is_left_alone() {
    let home = home_without_gateway();
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = far.local_addr().unwrap().port();
    let mcp = home.program("xy-test-mcp");
    // A connection that its parent has opened and that it inherits.
    let script =
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; exec {} --only-tools --dull", mcp.display());
    home.server(
        "waits",
        &format!("command \"bash\"\nargs \"-c\" {script:?}\nstop {{ grace \"1s\" }}\n"),
    );
    home.daemon();
    let pid = running(&home, "waits");
    let client = home.mcp_connect(&[]);
    client.initialize();
    let call = client.start_call("waits__stall", json!({ "ms": 600_000 }));
    wait_for_line(&home, "waits", "begins to stall");
    let tested = run_self_test(&home);
    assert_eq!(worker(&tested, "waits")["status"], "ok", "{tested:#}");
    assert_eq!(running(&home, "waits"), pid);
    assert_eq!(client.answer_within(call, Duration::ZERO), None, "it goes on");
    client.close();
    home.finish();
}

#[test]
fn server_deadlocked_in_a_call_is_restarted_by_a_repair() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&["--only-tools", "--dull"]);
    // Without probes the monitor would not find it.
    home.server("hangs", &format!("{kdl}stop {{ grace \"1s\" }}\nhealth {{ probe \"off\" }}\n"));
    home.daemon();
    let hangs = running(&home, "hangs");
    let client = home.mcp_connect(&[]);
    client.initialize();
    let open = client.start_call("hangs__never", json!({}));
    assert_eq!(client.call_text("hangs__deadlock", json!({})), "done");

    let why = "it did not answer two requests in a row, has a call in progress and is idle";
    let checked = ask(&home, "self_test", json!({ "repair": false }));
    let seen = worker(&checked, "hangs");
    assert_eq!((&seen["status"], &seen["note"]), (&json!("failed"), &json!(why)), "{checked:#}");
    assert_eq!(running(&home, "hangs"), hangs, "only reported");
    assert_eq!(client.answer_within(open, Duration::ZERO), None);

    let mended = run_self_test(&home);
    assert_eq!(worker(&mended, "hangs")["status"], "restarted", "{mended:#}");
    assert_eq!(mended["autoRepair"][0]["reason"], why, "{mended:#}");
    assert!(!is_alive(hangs));
    assert_eq!(client.wait_answer(open)["error"]["code"], -32010);
    assert_eq!(client.call_text("hangs__echo", json!({ "message": "a" })), "a");
    client.close();
    home.finish();
}

#[test]
fn silent_remote_server_is_only_reported() {
    let home = home_without_gateway();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.write_config("servers/far.kdl", &format!("url \"http://127.0.0.1:{port}/mcp\"\n"));
    home.daemon();
    home.wait_for_state("far", "restarting");
    let tested = run_self_test(&home);
    let far = worker(&tested, "far");
    assert_eq!((&far["status"], &far["health"]), (&json!("failed"), &json!("unreachable")));
    assert!(tested.get("autoRepair").is_none(), "{tested:#}");
    assert_eq!(tested["success"], false);
    home.finish();
}

#[test]
fn isolated_instance_is_tested_and_repaired() {
    let home = home_without_gateway();
    let kdl = home.kdl_mcp(&["--only-tools"]) + "isolation \"client\"\n";
    home.write_config("servers/own.kdl", &kdl);
    home.daemon();
    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("own__echo", json!({ "message": "a" })), "a");
    let pid = pid_in(&status(&home, "own")["instances"][0]);
    let well = run_self_test(&home);
    assert_eq!(worker(&well, "own")["pid"], pid);
    assert!(worker(&well, "own")["client"].is_u64(), "{well:#}");
    signal(pid, Signal::STOP);
    let mended = run_self_test(&home);
    assert_eq!(worker(&mended, "own")["status"], "restarted", "{mended:#}");
    assert_eq!(client.call_text("own__echo", json!({ "message": "b" })), "b");
    client.close();
    home.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn only_orphan_processes_are_ended() {
    let home = home_without_gateway();
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
    let mut unrelated = start("ffffffffffffffff-0123456789abcdef");

    let checked = ask(&home, "self_test", json!({ "repair": false }));
    assert_eq!(checked["health"]["orphans"]["pids"], json!([orphan.id()]), "{checked:#}");
    assert_eq!(checked["success"], false);
    // The orphan is killed; its parent must reap it.
    let reaper = std::thread::spawn(move || (orphan.id(), orphan.wait().unwrap()));
    let tested = run_self_test(&home);
    let (pid, ended) = reaper.join().unwrap();
    assert!(!ended.success());
    assert_eq!(tested["autoRepair"][0]["action"], "processes_reaped", "{tested:#}");
    assert_eq!(tested["autoRepair"][0]["pids"], json!([pid]));
    assert_eq!(tested["success"], true);
    assert_eq!(running(&home, "well"), well);
    assert!(unrelated.try_wait().unwrap().is_none());
    unrelated.kill().unwrap();
    unrelated.wait().unwrap();
    home.finish();
}

#[test]
fn isolated_server_is_started_for_the_self_test() {
    let home = home_without_gateway();
    let isolated = "isolation \"client\"\n";
    home.write_config("servers/good.kdl", &(home.kdl_mcp(&["--only-tools"]) + isolated));
    let broken = "command \"/bin/sh\"\nargs \"-c\" \"echo boom >&2; exit 3\"\n";
    home.write_config("servers/bad.kdl", &format!("{broken}{isolated}"));
    home.daemon();
    let tested = run_self_test(&home);
    let (good, bad) = (worker(&tested, "good"), worker(&tested, "bad"));
    assert_eq!((&good["status"], &good["pid"]), (&json!("ok"), &json!(null)), "{tested:#}");
    assert!(good["roundTripMs"].is_u64(), "{tested:#}");
    assert_eq!((&bad["status"], &bad["state"]), (&json!("failed"), &json!("failed")));
    let note = bad["note"].as_str().unwrap();
    assert!(note.contains("exited with code 3; last line of stderr: boom"), "{note}");
    assert_eq!(tested["success"], false);
    for name in ["good", "bad"] {
        assert_eq!(status(&home, name)["instances"], json!([]), "nothing is left of it");
    }
    assert_eq!(status(&home, "bad")["last_failed"]["last_stderr"], json!(["boom"]));
    home.finish();
}
