//! Servers in the file of an MCP client, which xy reads in place.

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use support::{ask, home, refused, running, status};
use xy_testkit::{Home, is_alive};

/// Writes a client's file with these servers, each a program that only sleeps.
fn write_client(home: &Home, names: &[&str]) -> PathBuf {
    let program = home.program("xy-test-sleep-server");
    let one = |name: &&str| ((*name).to_owned(), json!({"command": program, "env": {"N": 1}}));
    let servers: serde_json::Map<String, Value> = names.iter().map(one).collect();
    let file = home.root().join("mcp.json");
    home.expect_left("mcp.json");
    fs::write(&file, json!({ "mcpServers": servers }).to_string()).expect("a folder of ours");
    // The servers speak no MCP.
    home.write_config("xy.kdl", "defaults { ready { probe \"process\" } }\n");
    file
}

fn named(home: &Home) -> Vec<String> {
    let listed = ask(home, "list", Value::Null);
    let name = |it: &Value| it["name"].as_str().unwrap_or_default().to_owned();
    listed.as_array().into_iter().flatten().map(name).collect()
}

#[test]
fn client_file_servers_follow_their_file() {
    let home = home();
    home.server("here", &support::sleeper(&home));
    let file = write_client(&home, &["kept", "gone"]);
    home.daemon_with(&["--mcp-json", file.to_str().unwrap()]);
    let (here, kept, gone) =
        (running(&home, "here"), running(&home, "kept"), running(&home, "gone"));
    assert_eq!(status(&home, "kept")["config_file"], file.to_str().unwrap());

    write_client(&home, &["kept", "new"]);
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!((&reloaded["added"], &reloaded["removed"]), (&json!(["new"]), &json!(["gone"])));
    assert_eq!((running(&home, "here"), running(&home, "kept")), (here, kept));
    running(&home, "new");
    assert!(!is_alive(gone));

    // A partly written file changes nothing.
    fs::write(&file, "{\"mcpServers\": {").unwrap();
    let error = refused(&home, "reload", Value::Null);
    assert!(error.to_string().contains("this is not JSON"), "{error}");
    fs::remove_file(&file).unwrap();
    let error = refused(&home, "reload", Value::Null);
    assert!(error.to_string().contains("the file does not exist"), "{error}");
    assert_eq!(named(&home), ["here", "kept", "new"]);
    assert_eq!(running(&home, "kept"), kept);
    home.finish();
}

#[test]
fn client_file_is_never_changed() {
    let home = home();
    let file = write_client(&home, &["theirs"]);
    let before = fs::read(&file).unwrap();
    home.daemon_with(&["--mcp-json", file.to_str().unwrap()]);
    let pid = running(&home, "theirs");
    for persist in [true, false] {
        let error = refused(&home, "remove", json!({"name": "theirs", "persist": persist}));
        assert!(error.to_string().contains("which xy does not change"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(running(&home, "theirs"), pid);
    home.finish();
}

#[test]
fn detached_daemon_finds_a_relative_file() {
    let home = home();
    write_client(&home, &["theirs"]);
    let mut command = home.command(&["daemon", "--detach", "--mcp-json", "mcp.json"]);
    assert!(command.current_dir(home.root()).output().unwrap().status.success());
    running(&home, "theirs");
    assert!(home.xy(&["shutdown"]).code == 0);
    home.finish();
}

#[test]
fn check_reads_client_file_without_a_daemon() {
    let home = home();
    let file = write_client(&home, &["a", "b"]);
    let file = file.to_str().unwrap();
    let report = home.xy_json(&["check", "--mcp-json", file]);
    assert_eq!(
        (&report["valid"], &report["servers"], &report["files"]),
        (&json!(true), &json!(2), &json!(1))
    );

    fs::write(file, "{\n \"mcpServers\": {\"a\": {\"command\": 5}, \"b\": {}}\n}").unwrap();
    let checked = home.xy(&["check", "--mcp-json", file]);
    assert_eq!(checked.code, 3);
    assert!(checked.stdout.contains("`command` must be text, not a number"), "{}", checked.stdout);
    assert!(checked.stdout.contains("server `b` has no `command` or `url`"), "{}", checked.stdout);
    home.finish();
}

#[test]
fn connect_starts_daemon_with_configured_client_files() {
    let home = home();
    let program = home.program("xy-test-mcp");
    let file = home.root().join("mcp.json");
    home.expect_left("mcp.json");
    let write = |name: &str| {
        let servers = json!({ "mcpServers": { name: { "command": program } } });
        fs::write(&file, servers.to_string()).unwrap();
    };
    write("theirs");
    home.write_config("xy.kdl", &format!("mcp-json \"{}\"\n", file.display()));
    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("theirs__echo", json!({ "message": "hello" })), "hello");

    let error = refused(&home, "remove", json!({ "name": "theirs", "persist": true }));
    assert!(error.to_string().contains("which xy does not change"), "{error}");
    write("renamed");
    let reloaded = ask(&home, "reload", Value::Null);
    assert_eq!(reloaded["added"], json!(["renamed"]));
    assert_eq!(named(&home), ["renamed"]);
    client.close();
    home.finish();
}

#[test]
fn client_file_environment_is_passed_unchanged() {
    let home = home();
    let file = home.root().join("mcp.json");
    home.expect_left("mcp.json");
    let program = home.program("xy-test-mcp");
    let env = r#"{ "TEXT": "a b=\"c\" $HOME é", "EMPTY": "", "YES": true, "NO": false, "COUNT": 7, "SHARE": 1.50 }"#;
    let text = format!(
        r#"{{ "mcpServers": {{ "theirs": {{ "command": {}, "env": {env} }} }} }}"#,
        json!(program)
    );
    fs::write(&file, text).unwrap();
    home.daemon_with(&["--mcp-json", file.to_str().unwrap()]);
    let pid = running(&home, "theirs");
    let expected = [
        ("TEXT", "a b=\"c\" $HOME é"),
        ("EMPTY", ""),
        ("YES", "true"),
        ("NO", "false"),
        ("COUNT", "7"),
        ("SHARE", "1.50"),
    ];
    let client = home.mcp_connect(&[]);
    client.initialize();
    for (name, value) in expected {
        assert_eq!(client.call_text("theirs__env", json!({ "name": name })), value, "{name}");
    }
    #[cfg(target_os = "linux")]
    {
        let all = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let all = String::from_utf8_lossy(&all);
        let variables: Vec<&str> = all.split('\0').collect();
        for (name, value) in expected {
            assert!(variables.contains(&format!("{name}={value}").as_str()), "{variables:?}");
        }
    }
    assert!(is_alive(pid));
    client.close();
    home.finish();
}

#[test]
fn replacement_reports_files_only_the_old_daemon_reads() {
    let home = home();
    let file = write_client(&home, &["one"]);
    let shown = file.to_str().unwrap();
    home.daemon_with(&["--mcp-json", shown]);
    let pid = running(&home, "one");

    let kept = home.xy(&["daemon", "--detach", "--replace", "--mcp-json", shown]);
    assert_eq!((kept.code, kept.stderr.as_str()), (0, ""));
    assert_eq!(running(&home, "one"), pid);

    let lost = home.xy(&["daemon", "--detach", "--replace"]);
    assert_eq!(lost.code, 0, "{lost:#?}");
    assert!(lost.stderr.starts_with("note: ") && lost.stderr.contains(shown), "{lost:#?}");
    assert!(lost.stderr.contains("pass `--mcp-json FILE` again"), "{lost:#?}");
    assert_eq!(named(&home), [""; 0]);

    let silent = home.xy(&["daemon", "--detach", "--replace"]);
    assert_eq!((silent.code, silent.stderr.as_str()), (0, ""));
    home.finish();
}
