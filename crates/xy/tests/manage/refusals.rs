//! Refusals of xy's own tools, as results that a model can read.

use serde_json::json;

use crate::support::home;
use crate::{add, connect, fails, home_and_client, listed, mcp_program};

#[test]
fn server_name_must_be_unique() {
    let (home, client) = home_and_client();
    let added = add(&home, &client, "dev", &[]);
    let again = json!({ "name": "dev", "command": mcp_program(&home) });
    let text = fails(&client, "add_server", again);
    assert!(text.starts_with("server `dev` was not added\ncause: "), "{text}");
    assert!(text.contains("there is a server of that name"), "{text}");
    assert_eq!(listed(&client, "dev").unwrap()["pid"], added["pid"], "nothing happened to it");
    client.close();
    home.finish();
}

#[test]
fn unknown_server_is_neither_removed_nor_reloaded() {
    let (home, client) = home_and_client();
    add(&home, &client, "github", &[]);
    for tool in ["remove_server", "reload_server"] {
        let text = fails(&client, tool, json!({ "name": "gihtub" }));
        assert_eq!(text, "no server named `gihtub`\nhint: did you mean `github`?", "{tool}");
    }
    client.close();
    home.finish();
}

#[test]
fn server_that_does_not_start_is_not_added() {
    let (home, client) = home_and_client();
    for (command, args, why) in [
        ("/nowhere/at/all", vec![], "does not exist"),
        ("/bin/sh", vec!["-c", "echo no good >&2; exit 3"], "no good"),
        (&*mcp_program(&home), vec!["--refuse-init"], "server `dev` was not added"),
    ] {
        for persist in [false, true] {
            let ask =
                json!({ "name": "dev", "command": command, "args": args, "persist": persist });
            let text = fails(&client, "add_server", ask);
            assert!(text.contains("server `dev` was not added") && text.contains(why), "{text}");
            assert_eq!(listed(&client, "dev"), None);
            let files = ["config/xy/servers/dev.kdl", "state/xy/added.json"];
            let left: Vec<_> = files.iter().filter(|it| home.root().join(it).exists()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
    client.close();
    home.finish();
}

#[test]
fn invalid_arguments_change_nothing() {
    let (home, client) = home_and_client();
    let program = mcp_program(&home);
    for (tool, arguments, why) in [
        ("add_server", json!({ "name": "dev" }), "give either `command` or `url`"),
        ("add_server", json!({ "name": "dev", "url": "ftp://a/" }), "starts with `https://`"),
        (
            "add_server",
            json!({ "name": "dev", "url": "http://a/", "args": ["b"] }),
            "has no `args`",
        ),
        ("add_server", json!({ "name": 7, "command": program }), "expected a string"),
        ("add_server", json!({ "name": "a__b", "command": program }), "cannot contain `__`"),
        ("add_server", json!({ "name": "", "command": program }), "cannot be empty"),
        ("add_server", json!({ "name": "dev", "command": program, "x": 1 }), "unknown field `x`"),
        ("add_server", json!({ "name": "dev", "command": program, "cwd": "here" }), "here"),
        ("remove_server", json!({}), "missing field `name`"),
        ("reload_server", json!({ "name": [] }), "expected a string"),
        ("list_servers", json!({ "all": true }), "unknown field `all`"),
    ] {
        let text = fails(&client, tool, arguments);
        assert!(text.contains(why), "{tool}: {text}");
    }
    assert_eq!(home.call("list", serde_json::Value::Null).unwrap(), json!([]));
    client.close();
    home.finish();
}

#[test]
fn failed_reload_reports_the_reason() {
    let (home, client) = home_and_client();
    home.mcp_server("one", &[]);
    home.call("reload", json!({})).unwrap();
    home.write_config("servers/one.kdl", "comand \"x\"\n");
    let text = fails(&client, "reload_server", json!({ "name": "one" }));
    assert!(text.contains("comand") && text.contains("server `one` was not reloaded"), "{text}");
    assert_eq!(listed(&client, "one").unwrap()["status"], "running");
    client.close();
    home.finish();
}

#[test]
fn failed_reload_reports_the_last_stderr_lines() {
    let (home, client) = home_and_client();
    home.mcp_server("one", &[]);
    home.call("reload", json!({})).unwrap();
    let last_line = r#"{"level":"fatal","message":"no \"token\" in C:\\keys, nor anywhere else","fields":{"user":null}}"#;
    let script = r#"command "/bin/sh"; args "-c" "printf '%s\n' \"$WORDS\" >&2; exit 3""#;
    let words = serde_json::to_string(last_line).unwrap();
    let kdl = format!("{script}\nenv {{ WORDS {words} }}\nrestart {{ policy \"never\" }}\n");
    home.write_config("servers/one.kdl", &kdl);
    for _ in 0..2 {
        // First with a changed file, then as a plain restart.
        let text = fails(&client, "reload_server", json!({ "name": "one" }));
        assert!(text.starts_with("server `one` did not start\ncause: "), "{text}");
        assert!(text.contains("\nlast lines of stderr:\n") && text.contains(last_line), "{text}");
    }
    client.close();
    home.finish();
}

#[test]
fn server_not_ready_in_time_gets_a_hint() {
    let home = home();
    home.write_config("xy.kdl", "defaults { ready { within \"200ms\" } }\n");
    home.daemon();
    let client = connect(&home);
    let ask = json!({ "name": "dev", "command": mcp_program(&home), "args": ["--never-init"] });
    let text = fails(&client, "add_server", ask);
    assert!(text.contains("`xy add dev --ready-within 2m …` in a shell"), "{text}");
    assert!(text.contains("`ready { within \"2m\" }` in a file"), "{text}");
    client.close();
    home.finish();
}

#[test]
fn non_object_arguments_start_nothing() {
    let (home, client) = home_and_client();
    let program = mcp_program(&home);
    for arguments in [json!(["dev", program, []]), json!([]), json!(7), json!("dev")] {
        let answer = client.call("add_server", arguments);
        assert_eq!(answer["error"]["code"], -32602, "{answer:#}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.starts_with("`arguments` is not an object; "), "{text}");
    }
    assert_eq!(home.call("list", serde_json::Value::Null).unwrap(), json!([]));
    client.close();
    home.finish();
}
