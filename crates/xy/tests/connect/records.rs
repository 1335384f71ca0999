//! `xy connect --record`: a session in a file, which can be replayed.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use insta::assert_snapshot;
use serde_json::json;
use xy_testkit::{Home, Recording};

use crate::stage::{
    Client, Door, INITIALIZE, INITIALIZED, granted, hears_of_lists, home, request, result,
    welcome_again,
};

#[test]
fn a_recorded_session_is_replayed_with_equal_answers_and_without_its_secrets() {
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
fn what_the_bridge_says_and_sees_is_recorded_too() {
    let home = home();
    let door = Door::open(&home);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let mut client = Client::start(&home, &["--no-start", "--record", file.to_str().unwrap()]);
    let mut caller = door.welcome();
    caller.say(NOTE);
    assert_eq!(client.hear(), NOTE); // By now the bridge has seen the welcome.
    client.say(INITIALIZE);
    assert_eq!(caller.hear(), INITIALIZE);
    caller.say(&granted("0"));
    client.hear();
    client.say(INITIALIZED);
    assert_eq!(caller.hear(), INITIALIZED);
    client.say(&request(1, "tools/call"));
    caller.hear();
    drop(caller);
    assert_eq!(client.hear_json()["error"]["code"], -32010);
    let mut caller = welcome_again(&door);
    hears_of_lists(&client);
    client.say_raw(b"not JSON\n");
    caller.hear();
    client.say(&request(2, "ping"));
    caller.hear();
    caller.say(&result("2"));
    client.hear();
    drop(client.take_stdin());
    assert_eq!(caller.hear(), "", "the client has left");
    drop(caller);
    assert_eq!(client.ended().0.code(), Some(0));

    let recording = Recording::read(&file);
    let mut shown = String::new();
    for entry in &recording.entries {
        let who = entry.from.as_deref().or(entry.event.as_deref()).unwrap();
        let what = entry.cause.as_deref().or(entry.message.as_deref()).unwrap_or_default();
        writeln!(shown, "{who}: {what}").unwrap();
    }
    assert_snapshot!(shown);
    drop(door);
    home.finish();
}

/// Runs a bridge that must not start: its exit code and what it tells people.
fn refused(home: &Home, args: &[&str]) -> String {
    let ran = home.xy(&[&["connect", "--no-start"], args].concat());
    assert_eq!(ran.stdout, "");
    format!("exit {}\n{}", ran.code, ran.stderr)
}

#[test]
fn a_file_that_cannot_be_recorded_to_is_an_error_at_once() {
    let home = home();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("exists"), "kept").unwrap();
    symlink(at("nowhere"), at("link")).unwrap();
    let mut shown = String::new();
    for name in ["exists", "link", "no/such/folder/file", "exists/file"] {
        let told = refused(&home, &["--record", &at(name)]);
        shown += &told.replace(folder.path().to_str().unwrap(), "FOLDER");
    }
    assert_snapshot!(shown);
    assert_eq!(fs::read_to_string(at("exists")).unwrap(), "kept");
    assert!(!fs::exists(at("nowhere")).unwrap());
    home.finish();
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_may_not_be_written_is_an_error_at_once() {
    let home = home();
    // Not even root may create files here.
    let told = refused(&home, &["--record", "/sys/kernel/session.jsonl"]);
    assert!(told.starts_with("exit 1\nerror: the session cannot be recorded"), "{told}");
    assert!(told.contains("hint: name a file in a folder that you may write"), "{told}");
    home.finish();
}

#[test]
fn a_disk_that_takes_no_more_ends_the_recording_and_not_the_session() {
    let home = home();
    let door = Door::open(&home);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let bridge = home.command(&["connect", "--no-start", "--record", file.to_str().unwrap()]);
    // A file may have a few kilobytes.
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -f 4 && exec \"$0\" \"$@\""]).arg(bridge.get_program());
    limited.args(bridge.get_args()).env_clear();
    limited.envs(bridge.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut client = Client::start_command(&mut limited);
    let mut caller = door.welcome();
    let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "x".repeat(20_000));
    client.say(&long);
    assert_eq!(caller.hear(), long);
    client.tells("warning: the recording is incomplete");
    client.say(&request(1, "ping"));
    caller.hear();
    caller.say(&result("1"));
    assert_eq!(client.hear(), result("1"));
    drop(client.take_stdin());
    assert_eq!(caller.hear(), "", "the client has left");
    drop(caller);
    let (status, _, told) = client.ended();
    assert_eq!((status.code(), told.as_str()), (Some(0), ""), "one warning");
    Recording::read(&file);
    drop(door);
    home.finish();
}

#[test]
fn a_server_without_the_daemon_is_not_recorded() {
    let home = home().with_env("XY_SUPERVISOR_ENABLED", "false");
    home.mcp_server("one", &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let record = ["--record", file.to_str().unwrap()];
    let told = refused(&home, &[&["--server", "one"], &record[..]].concat());
    assert!(told.starts_with("exit 1\nerror: the session cannot be recorded\n"), "{told}");
    assert_eq!(home.xy(&[&["connect", "--direct", "one"], &record[..]].concat()).code, 64);
    assert!(!file.exists());
    home.finish();
}
