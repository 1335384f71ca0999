//! Bridges in front of a real daemon, which they start only once.

use std::fs;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};
use xy_testkit::Home;

use crate::fixtures::{Client, INITIALIZE, home};

fn pid_of_daemon(home: &Home) -> Option<u32> {
    let ran = home.xy(&["info", "--json"]);
    let info: Value = serde_json::from_str(&ran.stdout).ok()?;
    u32::try_from(info["pid"].as_u64()?).ok()
}

#[test]
fn started_daemon_is_detached_from_the_client() {
    let home = home().with_env("NODE_OPTIONS", "--inspect").with_env("SOME_TOKEN", "secret");
    let mut client = Client::start(&home, &["--within", "15s"]);
    client.send(INITIALIZE);
    let pid = home.wait_until("a daemon runs", || pid_of_daemon(&home));
    client.kill();
    assert!(xy_testkit::is_alive(pid));
    #[cfg(target_os = "linux")]
    {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("HOME=") && environment.contains("XDG_STATE_HOME="));
        assert!(!environment.contains("NODE_OPTIONS") && !environment.contains("secret"));
        let (_, session) = xy_testkit::group_and_session(pid).unwrap();
        assert_eq!(session, pid, "a session of its own");
    }
    home.finish();
}

#[test]
fn several_bridges_start_one_daemon() {
    let home = home();
    let clients: Vec<Client> = (0..4).map(|_| Client::start(&home, &["--within", "15s"])).collect();
    let pid = home.wait_until("a daemon runs", || pid_of_daemon(&home));
    for client in clients {
        client.kill();
    }
    let log = fs::read_to_string(home.root().join("state/xy/daemon.log")).unwrap();
    assert_eq!(log.matches("ready pid=").count(), 1, "{log}");
    assert!(log.contains(&format!("ready pid={pid}")), "{log}");
    home.finish();
}

#[test]
fn concurrent_bridges_start_one_daemon_and_all_can_call() {
    const COUNT: usize = 12;
    let home = home();
    home.mcp_server("one", &[]);
    let start = Barrier::new(COUNT);
    thread::scope(|scope| {
        for number in 0..COUNT {
            let (home, start) = (&home, &start);
            scope.spawn(move || {
                start.wait();
                let client = home.mcp_connect(&["--within", "20s"]);
                assert_eq!(client.initialize()["serverInfo"]["name"], "xy");
                let own = number.to_string();
                assert_eq!(client.call_text("one__echo", json!({ "message": own })), own);
                client.close();
            });
        }
    });
    let pid = pid_of_daemon(&home).expect("a daemon runs");
    let log = fs::read_to_string(home.root().join("state/xy/daemon.log")).unwrap();
    assert_eq!(log.matches("ready pid=").count(), 1, "{log}");
    assert!(log.contains(&format!("ready pid={pid}")), "{log}");
    home.finish();
}

/// Returns the names of a process's threads.
#[cfg(target_os = "linux")]
fn threads(pid: u32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |path: PathBuf| fs::read_to_string(path.join("comm")).ok();
    let mut names: Vec<String> =
        all.filter_map(|it| name(it.path())).map(|name| name.trim_end().to_owned()).collect();
    names.sort();
    names
}

#[test]
#[cfg(target_os = "linux")]
fn bridge_has_two_forwarding_threads_and_the_main_thread() {
    let home = home();
    home.mcp_server("one", &[]);
    home.daemon();
    home.wait_for_state("one", "running");
    let mut client = Client::start(&home, &[]);
    client.send(INITIALIZE);
    client.receive();
    for id in 1..=50 {
        let params = json!({ "name": "one__slow_echo", "arguments": { "message": "x", "ms": 5 } });
        let method = "tools/call";
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        client.send(&call.to_string());
    }
    for _ in 1..=50 {
        client.receive();
        assert_eq!(threads(client.pid()), ["downward", "upward", "xy"]);
    }
    client.kill();
    home.finish();
}

#[test]
fn daemon_that_cannot_start_fails_the_bridge_at_once() {
    let home = home();
    home.write_config("xy.kdl", "this is not { a setting");
    let mut client = Client::start(&home, &["--within", "15s"]);
    client.send(INITIALIZE);
    let answer = client.receive_json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&0.into(), &(-32005).into()));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("xy.kdl"), "{message}");
    let (status, _, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(2));
    assert!(stderr.contains("could not be started") && stderr.contains("xy.kdl"), "{stderr}");
    home.finish();
}

#[test]
fn bad_file_affects_only_its_own_server() {
    let home = home();
    home.mcp_server("good", &[]);
    home.server("bad", "this is not { a server");
    let client = home.mcp_connect(&["--within", "20s"]);
    assert_eq!(client.initialize()["serverInfo"]["name"], "xy");
    assert_eq!(client.call_text("good__echo", json!({ "message": "hi" })), "hi");
    assert!(!client.tool_names().iter().any(|it| it.starts_with("bad__")));
    client.close();
    assert_eq!(home.call("status", json!({ "name": "bad" })).unwrap()["state"], "failed");
    home.finish();
}

#[test]
fn daemon_that_was_shut_down_is_not_started_again() {
    let home = home();
    let daemon = home.daemon();
    let mut client = Client::start(&home, &["--within", "3s"]);
    client.send(INITIALIZE);
    assert_eq!(client.receive_json()["result"]["serverInfo"]["name"], "xy");
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert!(daemon.wait().success());
    let (status, rest, stderr) = client.wait_exit();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(pid_of_daemon(&home), None);
    home.finish();
}

#[test]
fn client_continues_with_a_restarted_daemon() {
    let home = home();
    let daemon = home.daemon();
    let mut client = Client::start(&home, &[]);
    client.send(INITIALIZE);
    client.receive();
    assert_eq!(home.xy(&["shutdown"]).code, 0);
    assert!(daemon.wait().success());
    home.daemon();
    client.send(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    let answer = std::iter::from_fn(|| Some(client.receive_json())).find(|line| line["id"] == 7);
    assert_eq!(answer.unwrap()["result"], serde_json::json!({}));
    client.kill();
    home.finish();
}

#[test]
fn only_read_only_calls_are_retried_after_a_killed_daemon() {
    let home = home();
    let input_log = home.root().join("input_log");
    home.mcp_server("one", &["--input-log", input_log.to_str().unwrap()]);
    let daemon = home.daemon();
    home.wait_for_state("one", "running");
    let mut client = Client::start(&home, &[]);
    client.send(INITIALIZE);
    client.receive();
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    client.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    client.receive();
    for (id, tool) in [(2, "one__read_only"), (3, "one__mutating")] {
        let params = json!({ "name": tool, "arguments": { "message": tool, "ms": 3000 } });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        client.send(&call.to_string());
    }
    let calls = |tool: &str| {
        let input_log = fs::read_to_string(&input_log).unwrap_or_default();
        input_log.matches(&format!(r#""name":"{tool}""#)).count()
    };
    home.wait_until("the server has both calls", || (calls("mutating") == 1).then_some(()));
    daemon.kill9();
    daemon.wait();
    home.daemon();
    let mut answers = std::iter::from_fn(|| Some(client.receive_json()));
    let lost = answers.find(|line| line["id"] == 3).unwrap();
    assert_eq!(lost["error"]["code"], -32010, "{lost}");
    let answer = answers.find(|line| line["id"] == 2).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "one__read_only", "{answer}");
    assert_eq!((calls("read_only"), calls("mutating")), (2, 1));
    client.kill();
    fs::remove_file(&input_log).unwrap();
    home.finish();
}

#[test]
fn client_sees_its_profile_and_unknown_ones_are_refused() {
    let home = home();
    home.mcp_server("one", &[]);
    home.mcp_server("two", &[]);
    let profile = "servers \"one\"\nmanage #false\nallow \"one__echo\" \"one__sum\"\n\
        tool \"one__sum\" { name \"add\" }\n";
    home.write_config("profiles/work.kdl", profile);
    home.daemon();
    let client = home.mcp_connect(&["--profile", "work"]);
    client.initialize();
    assert_eq!(client.tool_names(), ["one__echo", "add"]);
    let sum = client.call("add", json!({ "a": 1, "b": 2 }));
    assert_eq!(sum["result"]["structuredContent"]["sum"], 3.0, "{sum}");
    for hidden in ["one__sum", "one__env", "two__echo", "list_servers"] {
        let refused = client.call(hidden, json!({ "message": "m" }));
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(&format!("Unknown tool: {hidden}")), "{refused}");
    }
    client.close();
    let refused = home.xy(&["connect", "--profile", "wrok"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("wrok"), "{refused:?}");
    home.finish();
}
