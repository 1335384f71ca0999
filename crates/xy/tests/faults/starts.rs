//! Programs that do not start, or that end immediately.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use xy_testkit::Home;

use super::support::{ask, changes_in, home, refused, running, status};

/// Returns the file of a server that exits immediately.
fn exits(code: usize, rules: &str) -> String {
    format!("command \"/bin/sh\"\nargs \"-c\" \"exit {code}\"\n{rules}")
}

#[test]
fn immediate_exit_is_seen_with_its_code() {
    const SERVERS: usize = 50;
    let home = home();
    let name = |number: usize| format!("server-{number}");
    let rules = "restart { policy \"always\"; backoff-initial \"10ms\"; max-attempts 1 }\n";
    for number in 0..SERVERS {
        home.server(&name(number), &exits(number, rules));
    }
    home.daemon();
    for number in 0..SERVERS {
        let failed = home.wait_for_state(&name(number), "failed");
        assert_eq!(failed["last_exit"]["code"], number);
        let exit = format!("exited with code {number}");
        let reasons: Vec<String> = changes_in(&failed)
            .into_iter()
            .filter(|change| ["restarting", "failed"].contains(&change.to.as_str()))
            .map(|change| change.reason)
            .collect();
        assert_eq!(
            reasons,
            [exit.clone(), format!("{exit}; gave up after 1 restart (max-attempts)")]
        );
    }
    home.finish();
}

#[test]
fn unexecutable_program_differs_from_exit_127() {
    let home = home();
    let script = home.root().join("home/script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    home.expect_left("home/script");
    home.server("cannot", &format!("command \"{}\"\n", script.display()));
    home.server("exits", &exits(127, "restart { policy \"never\" }\n"));
    home.daemon();

    let cannot = home.wait_for_state("cannot", "failed");
    assert_eq!(cannot["reason"], format!("`{}` cannot be executed", script.display()));
    assert_eq!((&cannot["last_exit"], &cannot["restarts_total"]), (&Value::Null, &json!(0)));
    let error = refused(&home, "start", json!({ "name": "cannot" }));
    assert_eq!(error["data"]["kind"], "SpawnFailed");

    let exits = home.wait_for_state("exits", "failed");
    assert_eq!(exits["reason"], "exited with code 127");
    assert_eq!(exits["last_exit"]["code"], 127);
    home.finish();
}

#[test]
fn daemon_with_a_replaced_program_starts_servers() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("xy");
    fs::copy(env!("CARGO_BIN_EXE_xy"), &program).unwrap();
    let home = Home::new(&program);
    home.server("one", "command \"/bin/sh\"\nargs \"-c\" \"while read -r line; do :; done\"\n");
    home.daemon();
    let before = running(&home, "one");

    let other = folder.path().join("other");
    fs::write(&other, "#!/bin/false\n").unwrap();
    fs::rename(&other, &program).unwrap();
    ask(&home, "restart", json!({ "name": "one" }));

    assert_ne!(running(&home, "one"), before);
    home.finish();
}

/// Returns quotes between `begin` and `end`, up to the maximum size of a file. Each doubles on the
/// wire.
fn full_of_quotes(begin: &str, end: &str) -> String {
    // The lines that a home adds to its `xy.kdl` must fit too.
    const LARGEST_FILE: usize = 1024 * 1024 - 64;
    let quotes = "\"".repeat(LARGEST_FILE - begin.len() - end.len());
    [begin, &quotes, end].concat()
}

#[test]
fn oversized_server_fails_alone() {
    let home = home();
    home.write_config(
        "servers/huge.kdl",
        &full_of_quotes("command \"/bin/true\"\nargs #\"\\", "\"#"),
    );
    home.write_config("xy.kdl", &full_of_quotes("defaults { env { A #\"\\", "\"# } }"));
    home.daemon();
    let failed = home.wait_for_state("huge", "failed");
    assert_eq!(failed["reason"], "its arguments and environment are too large");
    let error = refused(&home, "start", json!({ "name": "huge" }));
    assert_eq!(error["code"], -32006, "{error}");
    assert_eq!(status(&home, "huge")["state"], "failed");
    home.finish();
}
