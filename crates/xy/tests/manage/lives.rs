//! The life of a server from the first call to the last: servers that are added, changed, crash and
//! are removed during a session.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::Home;

use crate::permissions::OWN;
use crate::support::{home, pid_in, signal, status};
use crate::{CHANGED, add, connect, fails, home_and_client, listed, mcp_program};

#[test]
fn server_is_added_called_and_removed() {
    let (home, client) = home_and_client();
    assert_eq!(client.tool_names(), OWN);
    assert_eq!(client.call_value("list_servers", json!({})), json!({ "servers": [] }));

    let added = add(&home, &client, "dev", &["--only-tools"]);
    assert_eq!((&added["name"], &added["status"]), (&json!("dev"), &json!("running")));
    assert!(added["tools"].as_array().unwrap().contains(&json!("dev__echo")), "{added:#}");
    client.wait_notification(CHANGED);
    assert!(client.tool_names().contains(&"dev__echo".to_owned()));
    assert_eq!(client.call_text("dev__echo", json!({ "message": "hello" })), "hello");

    let dev = listed(&client, "dev").unwrap();
    assert_eq!(dev["command"], mcp_program(&home));
    assert_eq!((&dev["args"], &dev["status"]), (&json!(["--only-tools"]), &json!("running")));
    assert_eq!((&dev["pid"], &dev["tools"]), (&added["pid"], &added["tools"]));
    assert!(dev["pid"].is_u64() && dev["uptime_seconds"].is_u64(), "{dev:#}");

    let removed = client.call_value("remove_server", json!({ "name": "dev" }));
    assert_eq!(removed, json!({ "name": "dev", "removed": true }));
    client.wait_notification(CHANGED);
    assert_eq!(listed(&client, "dev"), None);
    assert_eq!(client.tool_names(), OWN);
    home.wait_until("its process has ended, and its name is unknown", || {
        let gone = client.call("dev__echo", json!({ "message": "hello" }));
        let is_stopping = gone["error"]["code"] == -32005;
        assert!(is_stopping || gone["error"]["code"] == -32602, "{gone:#}");
        !is_stopping
    });
    client.close();
    home.finish();
}

#[test]
fn all_settings_of_add_server_take_effect() {
    let (home, client) = home_and_client();
    let folder = home.root().join("tmp");
    let added = json!({
        "name": "dev", "command": mcp_program(&home), "args": ["--name", "other"],
        "env": { "COLOUR": "blue" }, "cwd": folder, "persist": true,
    });
    client.call_value("add_server", added);
    assert_eq!(client.call_text("dev__env", json!({ "name": "COLOUR" })), "blue");
    #[cfg(target_os = "linux")]
    {
        let pid = &listed(&client, "dev").unwrap()["pid"];
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), folder);
    }
    let file = home.root().join("config/xy/servers/dev.kdl");
    assert!(file.exists());
    let kept = fails(&client, "remove_server", json!({ "name": "dev" }));
    assert!(
        kept.contains("its file `servers/dev.kdl` would configure it again at the next reload"),
        "{kept}"
    );
    assert_eq!(listed(&client, "dev").unwrap()["status"], "running");
    client.call_value("remove_server", json!({ "name": "dev", "persist": true }));
    assert!(!file.exists());
    client.close();
    home.finish();
}

#[test]
fn null_arguments_count_as_absent() {
    let (home, client) = home_and_client();
    let added = json!({
        "name": "dev", "command": mcp_program(&home), "args": null, "env": null, "cwd": null,
        "url": null, "headers": null, "transport": null, "persist": null,
    });
    assert_eq!(client.call_value("add_server", added)["status"], "running");
    assert_eq!(listed(&client, "dev").unwrap()["args"], json!([]));
    client.call_value("remove_server", json!({ "name": "dev", "persist": null }));
    client.close();
    home.finish();
}

#[test]
fn server_with_a_deleted_file_is_removed() {
    let (home, client) = home_and_client();
    let added = json!({ "name": "dev", "command": mcp_program(&home), "persist": true });
    client.call_value("add_server", added);
    fails(&client, "remove_server", json!({ "name": "dev" }));
    fs::remove_file(home.root().join("config/xy/servers/dev.kdl")).unwrap();
    let removed = client.call_value("remove_server", json!({ "name": "dev" }));
    assert_eq!(removed, json!({ "name": "dev", "removed": true }));
    assert_eq!(listed(&client, "dev"), None);
    client.close();
    home.finish();
}

#[test]
fn server_without_a_file_is_reloaded_as_added() {
    let (home, client) = home_and_client();
    let folder = home.root().join("tmp");
    let added = json!({
        "name": "dev", "command": mcp_program(&home), "args": ["--only-tools", "--v2"],
        "env": { "COLOUR": "blue" }, "cwd": folder,
    });
    let added = client.call_value("add_server", added);
    let reloaded = client.call_value("reload_server", json!({ "name": "dev" }));
    assert_ne!(reloaded["pid"], added["pid"], "another process");
    assert_eq!(reloaded["tools"], added["tools"]);
    assert_eq!(client.call_text("dev__env", json!({ "name": "COLOUR" })), "blue");
    let dev = listed(&client, "dev").unwrap();
    assert_eq!(dev["args"], json!(["--only-tools", "--v2"]));
    let note = added["note"].as_str().unwrap();
    assert!(note.starts_with("not restarted when it exits"), "{note}");
    assert_eq!(dev["note"], note);
    #[cfg(target_os = "linux")]
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", dev["pid"])).unwrap(), folder);
    client.close();
    home.finish();
}

#[test]
fn server_without_tools_can_be_added() {
    let (home, client) = home_and_client();
    let added = add(&home, &client, "quiet", &["--no-tools"]);
    assert_eq!(added["tools"], json!([]));
    assert_eq!(listed(&client, "quiet").unwrap()["status"], "running");
    client.close();
    home.finish();
}

/// Writes a script that runs the scriptable MCP server with one more flag.
fn script(home: &Home, flag: &str) -> PathBuf {
    let file = home.root().join("home/server");
    let text = format!("#!/bin/sh\nexec '{}' --only-tools {flag}\n", mcp_program(home));
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn replaced_program_offers_its_new_tools_after_a_reload() {
    let (home, client) = home_and_client();
    home.expect_left("home/server");
    let program = script(&home, "");
    let added = client.call_value("add_server", json!({ "name": "dev", "command": program }));
    assert!(!added["tools"].as_array().unwrap().contains(&json!("dev__reverse")));
    assert!(!client.tool_names().contains(&"dev__reverse".to_owned()));

    script(&home, "--v2");
    let reloaded = client.call_value("reload_server", json!({ "name": "dev" }));
    assert_eq!(reloaded["status"], "running");
    assert_ne!(reloaded["pid"], added["pid"]);
    assert!(reloaded["tools"].as_array().unwrap().contains(&json!("dev__reverse")));
    client.wait_notification(CHANGED);
    assert!(client.tool_names().contains(&"dev__reverse".to_owned()));
    assert_eq!(client.call_text("dev__reverse", json!({ "message": "abc" })), "cba");
    client.close();
    home.finish();
}

#[test]
fn server_with_a_file_is_reloaded_from_it() {
    let home = home();
    home.mcp_server("one", &["--only-tools"]);
    home.daemon();
    let client = connect(&home);
    let before = listed(&client, "one").unwrap();
    home.mcp_server("one", &["--only-tools", "--v2"]);
    let reloaded = client.call_value("reload_server", json!({ "name": "one" }));
    assert!(reloaded["tools"].as_array().unwrap().contains(&json!("one__reverse")));
    let after = listed(&client, "one").unwrap();
    assert_eq!(after["args"], json!(["--only-tools", "--v2"]));
    assert_ne!(after["pid"], before["pid"]);
    client.close();
    home.finish();
}

#[test]
fn crashed_server_loses_its_tools_until_it_is_reloaded() {
    let (home, client) = home_and_client();
    let added = add(&home, &client, "dev", &["--only-tools"]);
    assert!(client.tool_names().contains(&"dev__echo".to_owned()));
    signal(pid_in(&added), Signal::KILL);
    home.wait_until("it is known to have crashed", || {
        listed(&client, "dev").is_some_and(|it| it["status"] == "crashed")
    });
    let crashed = listed(&client, "dev").unwrap();
    assert_eq!((&crashed["pid"], &crashed["uptime_seconds"]), (&Value::Null, &Value::Null));
    client.wait_notification(CHANGED);
    home.wait_until("its tools are gone", || {
        !client.tool_names().contains(&"dev__echo".to_owned())
    });
    let down = client.call("dev__echo", json!({ "message": "hello" }));
    assert_eq!(down["error"]["code"], -32005, "{down:#}");
    assert_eq!(listed(&client, "dev").unwrap()["tools"], json!([]));

    let reloaded = client.call_value("reload_server", json!({ "name": "dev" }));
    assert_eq!((&reloaded["status"], &reloaded["tools"]), (&json!("running"), &added["tools"]));
    assert_eq!(client.call_text("dev__echo", json!({ "message": "again" })), "again");
    client.close();
    home.finish();
}

#[test]
fn ended_server_has_crashed_and_stopped_server_has_not() {
    let (home, client) = home_and_client();
    add(&home, &client, "ended", &[]);
    add(&home, &client, "stopped", &[]);
    let crash = client.call("ended__crash", json!({ "code": 0 }));
    assert_eq!(crash["error"]["code"], -32010, "{crash:#}");
    home.wait_until("it is known to have crashed", || {
        listed(&client, "ended").is_some_and(|it| it["status"] == "crashed")
    });
    home.wait_until("its tools are gone", || {
        !client.tool_names().contains(&"ended__echo".to_owned())
    });
    assert_eq!(home.xy(&["stop", "stopped"]).code, 0);
    let stopped = listed(&client, "stopped").unwrap();
    assert_eq!((&stopped["status"], &stopped["pid"]), (&json!("stopped"), &Value::Null));
    client.close();
    home.finish();
}

#[test]
fn waiting_and_given_up_servers_count_as_crashed() {
    let home = home();
    let dies = home.kdl_mcp(&["--die-on", "initialize"]);
    let patient = "restart { backoff-initial \"1h\"; backoff-max \"1h\" }\n";
    home.write_config("servers/again.kdl", &format!("{dies}{patient}"));
    let once = "restart { max-attempts 1; backoff-initial \"0s\" }\n";
    home.write_config("servers/never.kdl", &format!("{dies}{once}"));
    home.daemon();
    home.wait_for_state("again", "restarting");
    home.wait_for_state("never", "failed");
    let client = connect(&home);
    for name in ["again", "never"] {
        let response = listed(&client, name).unwrap();
        assert_eq!(response["status"], "crashed", "{response:#}");
        assert_eq!((&response["pid"], &response["uptime_seconds"]), (&Value::Null, &Value::Null));
        assert_eq!(response["tools"], json!([]), "{response:#}");
    }
    client.close();
    home.finish();
}

#[test]
fn added_server_has_5_s_to_stop_and_is_not_restarted() {
    let home = home();
    let usual = "stop { grace \"1s\"; }; restart { policy \"always\"; }";
    home.write_config("xy.kdl", &format!("defaults {{ {usual} }}\n"));
    home.daemon();
    let client = connect(&home);
    let program = mcp_program(&home);
    client.call_value("add_server", json!({ "name": "here", "command": program }));
    let stays = json!({ "name": "stays", "command": program, "persist": true });
    client.call_value("add_server", stays);
    let kept = fs::read_to_string(home.root().join("state/xy/added.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let rules = &kept["servers"][0]["rules"];
    let file = fs::read_to_string(home.root().join("config/xy/servers/stays.kdl")).unwrap();
    assert!(file.contains("stop { grace \"5s\" }"), "{file}");
    assert!(file.contains("restart { policy \"never\" }"), "{file}");
    assert_eq!(rules["restart"]["policy"], "Never", "{kept:#}");
    assert_eq!(rules["stop"]["grace"], json!({ "secs": 5, "nanos": 0 }), "{kept:#}");
    for name in ["here", "stays"] {
        signal(pid_in(&listed(&client, name).unwrap()), Signal::KILL);
        home.wait_for_state(name, "failed");
        assert_eq!(status(&home, name)["restarts_total"], 0, "{name}");
    }
    client.close();
    home.finish();
}

#[test]
fn removal_by_another_client_answers_each_call_once() {
    let (home, client) = home_and_client();
    let other = connect(&home);
    for round in 0..3 {
        add(&home, &client, "dev", &["--only-tools"]);
        let calls: Vec<u64> = (0..40_u64)
            .map(|number| {
                let arguments = json!({ "message": number, "ms": 5 * (number % 8) });
                client.start_call("dev__slow_echo", arguments)
            })
            .collect();
        let removed = other.call_value("remove_server", json!({ "name": "dev" }));
        assert_eq!(removed["removed"], true, "{round}: {removed}");
        for (number, id) in (0_u64..).zip(calls) {
            let answer = client.wait_answer(id);
            let text = answer["result"]["content"][0]["text"].as_str();
            let code = answer["error"]["code"].as_i64();
            let is_refused = code.is_some_and(|code| [-32005, -32010, -32602].contains(&code));
            assert!(text == Some(&number.to_string()) || is_refused, "{answer:#}");
        }
        assert_eq!(client.unclaimed_answers(), [""; 0], "each was answered once");
        assert_eq!(listed(&client, "dev"), None);
    }
    client.close();
    other.close();
    home.finish();
}

#[test]
fn removal_answers_or_fails_each_open_call() {
    let (home, client) = home_and_client();
    add(&home, &client, "dev", &["--only-tools"]);
    let call = |number: u64, time: u64| {
        client.start_call("dev__slow_echo", json!({ "message": number, "ms": time }))
    };
    let text = |answer: &Value| answer["result"]["content"][0]["text"].as_str().map(str::to_owned);
    let calls: Vec<u64> = (0..10).map(|number| call(number, 100)).collect();
    for (number, id) in (0_u64..).zip(calls) {
        let answer = client.wait_answer(id);
        assert_eq!(text(&answer), Some(number.to_string()), "{answer:#}");
    }

    let calls: Vec<u64> = (0..10).map(|number| call(number, 50 * number)).collect();
    client.call_value("remove_server", json!({ "name": "dev" }));
    for (number, id) in (0_u64..).zip(calls) {
        let answer = client.wait_answer(id);
        let is_done = text(&answer) == Some(number.to_string());
        let code = answer["error"]["code"].as_i64();
        let is_refused = code.is_some_and(|code| [-32005, -32010].contains(&code));
        assert!(is_done || is_refused, "{answer:#}");
    }
    assert_eq!(client.call_value("list_servers", json!({})), json!({ "servers": [] }));
    client.close();
    home.finish();
}
