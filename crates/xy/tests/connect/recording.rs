//! `xy connect --record`: a session in a file, which can be replayed.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use insta::assert_snapshot;
use serde_json::json;
use xy_testkit::{Home, Recording};

use crate::fixtures::{
    Client, FakeDaemon, INITIALIZE, INITIALIZED, expect_list_changes, home, initialize_result,
    request, result, welcome_reconnected,
};

#[test]
fn recorded_session_replays_with_equal_answers_and_without_secrets() {
    let home = home();
    home.mcp_server("one", &[]);
    home.daemon();
    home.wait_for_state("one", "running");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let client = home.mcp_connect(&["--record", file.to_str().unwrap()]);
    client.initialize();
    client.start_request_as("\"f00dfeed-0123-4567-89ab-cdef01234567\"", "tools/list", json!({}));
    client.wait_answer("\"f00dfeed-0123-4567-89ab-cdef01234567\"");
    let arguments = json!({ "message": "plain words", "api_key": "key-of-mine-1" });
    assert_eq!(client.call_text("one__echo", arguments), "plain words");
    let spoken = "key-of-mine-1, Authorization: Bearer abc123";
    assert_eq!(client.call_text("one__echo", json!({ "message": spoken })), spoken);
    assert!(client.request("no/such", json!({}))["error"].is_object());
    assert!(client.close().success());

    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("key-of-mine-1") && !text.contains("abc123"), "{text}");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let recording = Recording::read(&file);
    assert_eq!(recording.header["args"], json!(["connect", "--record", file]));
    assert!(recording.entries.is_sorted_by_key(|entry| entry.at_ms));
    assert_eq!(recording.client_messages().count(), 6);
    assert_eq!(recording.events(), ["daemon connected", "client closed stdin", "session ended"]);

    let client = home.mcp_connect(&[]);
    let responses = recording.replay(&client);
    assert_eq!(responses.len(), 5);
    assert_eq!(recording.responses(), responses);
    client.close();
    home.finish();
}

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;

#[test]
fn bridge_messages_and_events_are_recorded() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let mut client = Client::start(&home, &["--no-start", "--record", file.to_str().unwrap()]);
    let mut bridge = daemon.welcome();
    bridge.send(NOTE);
    assert_eq!(client.receive(), NOTE); // By now the bridge has received the welcome.
    client.send(INITIALIZE);
    assert_eq!(bridge.receive(), INITIALIZE);
    bridge.send(&initialize_result("0"));
    client.receive();
    client.send(INITIALIZED);
    assert_eq!(bridge.receive(), INITIALIZED);
    client.send(&request(1, "tools/call"));
    bridge.receive();
    drop(bridge);
    assert_eq!(client.receive_json()["error"]["code"], -32010);
    let mut bridge = welcome_reconnected(&daemon);
    expect_list_changes(&client);
    client.send_raw(b"not JSON\n");
    bridge.receive();
    client.send(&request(2, "ping"));
    bridge.receive();
    bridge.send(&result("2"));
    client.receive();
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), "", "the client has left");
    drop(bridge);
    assert_eq!(client.wait_exit().0.code(), Some(0));

    let recording = Recording::read(&file);
    let mut shown = String::new();
    for entry in &recording.entries {
        let who = entry.from.as_deref().or(entry.event.as_deref()).unwrap();
        let what = entry.cause.as_deref().or(entry.message.as_deref()).unwrap_or_default();
        writeln!(shown, "{who}: {what}").unwrap();
    }
    assert_snapshot!(shown);
    drop(daemon);
    home.finish();
}

/// Runs a bridge that must not start, and returns its exit code and stderr.
fn run_failing(home: &Home, args: &[&str]) -> String {
    let ran = home.xy(&[&["connect", "--no-start"], args].concat());
    assert_eq!(ran.stdout, "");
    format!("exit {}\n{}", ran.code, ran.stderr)
}

#[test]
fn unusable_recording_file_is_an_error_at_once() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("exists"), "kept").unwrap();
    symlink(at("nowhere"), at("link")).unwrap();
    let mut shown = String::new();
    for name in ["exists", "link", "no/such/folder/file", "exists/file"] {
        let stderr = run_failing(&home, &["--record", &at(name)]);
        shown += &stderr.replace(folder.path().to_str().unwrap(), "FOLDER");
    }
    assert_snapshot!(shown);
    assert_eq!(fs::read_to_string(at("exists")).unwrap(), "kept");
    assert!(!fs::exists(at("nowhere")).unwrap());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn unwritable_recording_folder_is_an_error_at_once() {
    let home = home();
    // Not even root may create files here.
    let stderr = run_failing(&home, &["--record", "/sys/kernel/session.jsonl"]);
    assert!(stderr.starts_with("exit 1\nerror: the session cannot be recorded"), "{stderr}");
    assert!(stderr.contains("hint: name a file in a folder that you may write"), "{stderr}");
    home.finish();
}

#[test]
fn full_disk_ends_the_recording_and_not_the_session() {
    let home = home();
    let daemon = FakeDaemon::open(&home);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let command = home.command(&["connect", "--no-start", "--record", file.to_str().unwrap()]);
    // A file size limit of a few kilobytes.
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -f 4 && exec \"$0\" \"$@\""]).arg(command.get_program());
    limited.args(command.get_args()).env_clear();
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut client = Client::start_command(&mut limited);
    let mut bridge = daemon.welcome();
    let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "x".repeat(20_000));
    client.send(&long);
    assert_eq!(bridge.receive(), long);
    client.wait_stderr("warning: the recording is incomplete");
    client.send(&request(1, "ping"));
    bridge.receive();
    bridge.send(&result("1"));
    assert_eq!(client.receive(), result("1"));
    drop(client.take_stdin());
    assert_eq!(bridge.receive(), "", "the client has left");
    drop(bridge);
    let (status, _, stderr) = client.wait_exit();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "one warning");
    Recording::read(&file);
    drop(daemon);
    home.finish();
}

#[test]
fn direct_server_is_not_recorded() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.mcp_server("one", &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let record = ["--record", file.to_str().unwrap()];
    let stderr = run_failing(&home, &[&["--server", "one"], &record[..]].concat());
    assert!(stderr.starts_with("exit 1\nerror: the session cannot be recorded\n"), "{stderr}");
    assert_eq!(home.xy(&[&["connect", "--direct", "one"], &record[..]].concat()).code, 64);
    assert!(!file.exists());
    home.finish();
}
