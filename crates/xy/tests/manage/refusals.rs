//! What cannot be done is said in a result that a model can read.

use serde_json::json;

use crate::support::home;
use crate::{add, connect, fails, home_and_client, listed, mcp_program};

#[test]
fn a_name_is_given_once() {
    let (home, client) = home_and_client();
    let added = add(&home, &client, "dev", &[]);
    let again = json!({ "name": "dev", "command": mcp_program(&home) });
    let told = fails(&client, "add_server", again);
    assert!(told.starts_with("server `dev` was not added\ncause: "), "{told}");
    assert!(told.contains("there is a server of that name"), "{told}");
    assert_eq!(listed(&client, "dev").unwrap()["pid"], added["pid"], "nothing happened to it");
    client.close();
    home.finish();
}

#[test]
fn a_server_that_is_not_there_is_neither_removed_nor_reloaded() {
    let (home, client) = home_and_client();
    add(&home, &client, "github", &[]);
    for tool in ["remove_server", "reload_server"] {
        let told = fails(&client, tool, json!({ "name": "gihtub" }));
        assert_eq!(told, "no server named `gihtub`\nhint: did you mean `github`?", "{tool}");
    }
    client.close();
    home.finish();
}

#[test]
fn a_server_that_does_not_start_is_not_added() {
    let (home, client) = home_and_client();
    for (command, args, why) in [
        ("/nowhere/at/all", vec![], "does not exist"),
        ("/bin/sh", vec!["-c", "echo no good >&2; exit 3"], "no good"),
        (&*mcp_program(&home), vec!["--refuse-init"], "server `dev` was not added"),
    ] {
        for persist in [false, true] {
            let ask =
                json!({ "name": "dev", "command": command, "args": args, "persist": persist });
            let told = fails(&client, "add_server", ask);
            assert!(told.contains("server `dev` was not added") && told.contains(why), "{told}");
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
fn arguments_that_do_not_fit_change_nothing() {
    let (home, client) = home_and_client();
    let program = mcp_program(&home);
    for (tool, arguments, why) in [
        ("add_server", json!({ "name": "dev" }), "give either `command` or `url`"),
        ("add_server", json!({ "name": "dev", "url": "ftp://a/" }), "it starts with `https://`"),
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
        let told = fails(&client, tool, arguments);
        assert!(told.contains(why), "{tool}: {told}");
    }
    assert_eq!(home.call("list", serde_json::Value::Null).unwrap(), json!([]));
    client.close();
    home.finish();
}

#[test]
fn a_reload_that_fails_says_why() {
    let (home, client) = home_and_client();
    home.mcp_server("one", &[]);
    home.call("reload", json!({})).unwrap();
    home.write_config("servers/one.kdl", "comand \"x\"\n");
    let told = fails(&client, "reload_server", json!({ "name": "one" }));
    assert!(told.contains("comand") && told.contains("server `one` was not reloaded"), "{told}");
    assert_eq!(listed(&client, "one").unwrap()["status"], "running");
    client.close();
    home.finish();
}

#[test]
fn a_reload_whose_server_does_not_start_says_what_that_said_last() {
    let (home, client) = home_and_client();
    home.mcp_server("one", &[]);
    home.call("reload", json!({})).unwrap();
    let said = r#"{"level":"fatal","message":"no \"token\" in C:\\keys, nor anywhere else","fields":{"user":null}}"#;
    let script = r#"command "/bin/sh"; args "-c" "printf '%s\n' \"$WORDS\" >&2; exit 3""#;
    let words = serde_json::to_string(said).unwrap();
    let kdl = format!("{script}\nenv {{ WORDS {words} }}\nrestart {{ policy \"never\" }}\n");
    home.write_config("servers/one.kdl", &kdl);
    for _ in 0..2 {
        // Once its file has changed, and once it is only begun again.
        let told = fails(&client, "reload_server", json!({ "name": "one" }));
        assert!(told.starts_with("server `one` did not start\ncause: "), "{told}");
        assert!(told.contains("\nlast lines of stderr:\n") && told.contains(said), "{told}");
    }
    client.close();
    home.finish();
}

#[test]
fn one_that_is_not_ready_in_time_is_told_what_its_asker_can_do() {
    let home = home();
    home.write_config("xy.kdl", "defaults { ready { within \"200ms\" } }\n");
    home.daemon();
    let client = connect(&home);
    let ask = json!({ "name": "dev", "command": mcp_program(&home), "args": ["--never-init"] });
    let told = fails(&client, "add_server", ask);
    assert!(told.contains("`xy add dev --ready-within 2m …` in a shell"), "{told}");
    assert!(told.contains("`ready { within \"2m\" }` in a file"), "{told}");
    client.close();
    home.finish();
}

#[test]
fn arguments_that_are_no_object_start_nothing() {
    let (home, client) = home_and_client();
    let program = mcp_program(&home);
    for arguments in [json!(["dev", program, []]), json!([]), json!(7), json!("dev")] {
        let answer = client.call("add_server", arguments);
        assert_eq!(answer["error"]["code"], -32602, "{answer:#}");
        let told = answer["error"]["message"].as_str().unwrap();
        assert!(told.starts_with("`arguments` is not an object; "), "{told}");
    }
    assert_eq!(home.call("list", serde_json::Value::Null).unwrap(), json!([]));
    client.close();
    home.finish();
}
