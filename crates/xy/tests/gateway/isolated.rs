//! Servers with `isolation "client"`: each client has its own instance.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, is_alive};

use crate::fixtures::{
    capable_client, error_code, error_message, home, http_client, linger, local_client,
    notification_count, serve, serve_with, uninitialized_client, uninitialized_client_at, who,
    who_once_up,
};
use crate::scopes::found;
use crate::support::{ask, signal};

#[track_caller]
fn home_with_isolated_server(flags: &[&str]) -> Home {
    let home = home();
    serve(&home, "shared", &[]);
    serve_with(&home, "own", flags, "isolation \"client\"\n");
    home.daemon();
    crate::fixtures::ready(&home, &["shared"]);
    home
}

fn pid_of(who: &Value) -> u32 {
    who["pid"].as_u64().unwrap().try_into().unwrap()
}

#[test]
fn each_client_has_its_own_instance_that_ends_with_it() {
    let home = home_with_isolated_server(&[]);
    let (one, other, http) = (local_client(&home), local_client(&home), http_client(&home));
    let pids: Vec<u32> =
        [&*one, &*other, &*http].map(|client| pid_of(&who(client, "own__who"))).to_vec();
    assert!(pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2], "{pids:?}");
    assert_eq!(pid_of(&who(&one, "own__who")), pids[0], "it stays the same");
    drop(one);
    home.wait_until("the first has ended", || !is_alive(pids[0]));
    assert!(is_alive(pids[1]) && is_alive(pids[2]));
    http.close();
    home.wait_until("the third has ended", || !is_alive(pids[2]));
    assert_eq!(pid_of(&who(&other, "own__who")), pids[1]);
    drop(other);
    home.wait_until("all have ended", || !is_alive(pids[1]));
    home.finish();
}

#[test]
fn concurrent_calls_use_one_instance() {
    let home = home_with_isolated_server(&["--slow-init", "300"]);
    let client = local_client(&home);
    let ids: Vec<u64> = (0..10).map(|_| client.start_call("own__who", json!({}))).collect();
    let mut pids: Vec<Value> = ids
        .into_iter()
        .map(|id| client.wait_answer(id)["result"]["structuredContent"]["pid"].clone())
        .collect();
    pids.dedup();
    assert_eq!(pids.len(), 1, "{pids:?}");
    home.finish();
}

#[test]
fn instance_knows_its_clients_capabilities_and_may_ask_it() {
    let home = home_with_isolated_server(&[]);
    let rich = capable_client(&home);
    let plain = local_client(&home);
    let response = who(&rich, "own__who");
    assert_eq!(response["client"]["capabilities"], crate::fixtures::capabilities());
    assert_eq!(who(&plain, "own__who")["client"]["capabilities"], json!({}));
    let shared = who(&rich, "shared__who");
    assert_eq!(
        shared["client"]["capabilities"],
        json!({ "sampling": { "tools": {}, "context": {} }, "elicitation": { "form": {}, "url": {} } })
    );
    rich.answer_with(|question| {
        let roots = json!({ "roots": [{ "uri": "file:///home/ada", "name": "Ada's" }] });
        (question["method"] == "roots/list").then_some(Ok(roots))
    });
    // Calls of other clients to their own instances cause no ambiguity.
    plain.start_call("own__never", json!({}));
    let roots = rich.call_text("own__ask_roots", json!({}));
    assert!(roots.contains("file:///home/ada"), "{roots}");
    home.finish();
}

#[test]
fn roots_change_reaches_the_clients_own_instance() {
    let home = home();
    let input_log = crate::fixtures::input_log_file(&home, "own");
    let flags = ["--input-log", input_log.to_str().unwrap()];
    serve_with(&home, "own", &flags, "isolation \"client\"\n");
    home.daemon();
    let client = capable_client(&home);
    who(&client, "own__who");
    client.notify("notifications/roots/list_changed", Value::Null);
    home.wait_until("the server gets the cancellation", || {
        crate::fixtures::received_of(&home, "own", "notifications/roots/list_changed").len() == 1
    });
    home.finish();
}

#[test]
fn crash_of_an_instance_affects_only_its_client() {
    let home = home_with_isolated_server(&[]);
    let (one, other) = (local_client(&home), local_client(&home));
    let mine = pid_of(&who(&one, "own__who"));
    let other_pid = pid_of(&who(&other, "own__who"));
    one.tool_names();
    other.tool_names();
    let crash = one.call("own__crash", json!({}));
    assert_eq!(error_code(&crash), -32010, "{crash}");
    let next = pid_of(&who_once_up(&home, &one, "own__who"));
    assert_ne!(next, mine, "the server has restarted");
    assert_eq!(pid_of(&who(&other, "own__who")), other_pid);
    signal(next, Signal::KILL);
    assert_ne!(pid_of(&who_once_up(&home, &one, "own__who")), next);
    linger();
    let changed = "notifications/tools/list_changed";
    assert_eq!((notification_count(&one, changed), notification_count(&other, changed)), (0, 0));
    home.finish();
}

#[test]
fn failure_of_an_instance_affects_only_its_client() {
    let home = home();
    let kdl =
        format!("{}restart {{ policy \"never\" }}\nisolation \"client\"\n", home.kdl_mcp(&[]));
    home.write_config("servers/own.kdl", &kdl);
    home.daemon();
    let (one, other) = (local_client(&home), local_client(&home));
    who(&one, "own__who");
    let other_pid = who(&other, "own__who")["pid"].clone();
    other.tool_names();
    one.call("own__crash", json!({}));
    let refused = home.wait_until("the failure is known", || {
        let answer = one.call("own__echo", json!({ "message": "x" }));
        answer.get("error").is_some().then_some(answer)
    });
    assert_eq!(error_code(&refused), -32005, "{refused}");
    assert_eq!(who(&other, "own__who")["pid"], other_pid);
    assert!(other.tool_names().contains(&"own__echo".to_owned()));
    let newcomer = local_client(&home);
    who(&newcomer, "own__who");
    home.finish();
}

#[test]
fn stopped_isolated_server_starts_no_instance() {
    let home = home_with_isolated_server(&[]);
    let client = local_client(&home);
    let pid = pid_of(&who(&client, "own__who"));
    client.tool_names();
    ask(&home, "stop", json!({ "name": "own" }));
    home.wait_until("it has ended", || !is_alive(pid));
    let refused = client.call("own__echo", json!({ "message": "x" }));
    assert_eq!(error_code(&refused), -32005, "{refused}");
    home.wait_until("it is no longer listed", || {
        !client.tool_names().iter().any(|name| name.starts_with("own__"))
    });
    ask(&home, "start", json!({ "name": "own" }));
    home.wait_until("it is back", || client.call("own__who", json!({})).get("result").is_some());
    home.finish();
}

#[test]
fn single_server_endpoint_may_be_isolated() {
    let home = home_with_isolated_server(&["--instructions", "mine"]);
    let client = crate::fixtures::uninitialized_client_at(&home, &json!({ "server": "own" }));
    let hello = client.initialize_with(&crate::fixtures::capabilities());
    assert_eq!(hello["instructions"], "mine");
    let response = who(&client, "who");
    assert_eq!(response["client"]["capabilities"], crate::fixtures::capabilities());
    let silent = uninitialized_client(&home);
    drop(silent);
    drop(client);
    home.wait_until("it has ended", || !is_alive(pid_of(&response)));
    home.finish();
}

#[test]
fn instances_of_a_killed_daemon_end() {
    let home = home();
    serve_with(&home, "own", &[], "isolation \"client\"\n");
    let daemon = home.daemon();
    let client = crate::fixtures::bridge_client(&home);
    let before = pid_of(&who(&client, "own__who"));
    daemon.kill9();
    home.daemon();
    let after = pid_of(&who_once_up(&home, &client, "own__who"));
    assert_ne!(after, before, "the next daemon counts this as another client");
    home.wait_until("the old one has ended", || !is_alive(before));
    drop(client);
    home.wait_until("the new one has ended", || !is_alive(after));
    home.finish();
}

/// Asserts that no request reveals the tool `own__secret` of another client's instance.
#[track_caller]
fn assert_secret_hidden(client: &McpClient) {
    assert!(!client.tool_names().contains(&"own__secret".to_owned()), "it would be pinned");
    for query in ["secret", "own__secret", "Was added"] {
        let names = found(client, query);
        assert!(!names.contains(&"own__secret".to_owned()), "{query}: {names:?}");
    }
    for tool in ["describe_tool", "call_tool"] {
        let result_of = |name: &str| client.call(tool, json!({ "name": name }))["result"].clone();
        let (secret, nothing) = (result_of("own__secret"), result_of("own__unheard"));
        assert_eq!(secret["isError"], true, "{secret}");
        assert_eq!(secret.to_string().replace("own__secret", "own__unheard"), nothing.to_string());
    }
    let called = client.call("own__secret", json!({}));
    assert_eq!(
        (error_code(&called), error_message(&called)),
        (-32602, "Unknown tool: own__secret")
    );
}

#[test]
fn private_tools_stay_private_for_the_next_daemon() {
    let home = home();
    serve_with(&home, "own", &[], "isolation \"client\"\n");
    let profile = "tools \"search\"\nmanage #false\npin \"own__secret\"\n";
    home.write_config("profiles/find.kdl", profile);
    let daemon = home.daemon();
    let finder = || {
        let client = uninitialized_client_at(&home, &json!({ "profile": "find" }));
        client.initialize();
        client
    };
    let instances = || ask(&home, "status", json!({ "name": "own" }))["instances"].clone();
    let (ada, without, with) = (finder(), finder(), finder());
    // By a call, without a list before it: what every new instance offers is known anyway.
    ada.call_text("own__add_tool", json!({ "name": "secret" }));
    home.wait_until("it is listed", || ada.tool_names().contains(&"own__secret".to_owned()));
    assert_eq!(found(&ada, "secret"), ["own__secret"]);
    assert_eq!(found(&ada, "own__secret")[0], "own__secret");
    let described = ada.call("describe_tool", json!({ "name": "own__secret" }));
    assert_eq!(described["result"]["structuredContent"]["tool"]["description"], "Was added");
    assert_eq!(ada.call_text("call_tool", json!({ "name": "own__secret" })), "secret");
    assert_eq!(ada.call_text("own__secret", json!({})), "secret");

    assert_secret_hidden(&without);
    assert_eq!(found(&without, "own__echo")[0], "own__echo");
    assert_eq!(instances().as_array().map(Vec::len), Some(1), "the client has no instance");
    who(&with, "own__who");
    assert_secret_hidden(&with);
    assert_eq!(instances().as_array().map(Vec::len), Some(2));

    let kept = home.root().join("state/xy/manifests/own.json");
    home.wait_until("the manifest is saved", || kept.exists());
    daemon.kill9();
    home.daemon();
    let later = finder();
    assert_eq!(found(&later, "own__echo")[0], "own__echo", "the common tools are remembered");
    assert_secret_hidden(&later);
    home.finish();
}

#[test]
fn instance_with_a_port_serves_one_client_at_a_time() {
    let home = home();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let flags = ["--http", &port.to_string()];
    let more = format!("isolation \"client\"\ntransport \"http\"\nport {port}\n");
    serve_with(&home, "own", &flags, &more);
    home.daemon();
    let (one, other) = (local_client(&home), local_client(&home));
    let pid = pid_of(&who(&one, "own__who"));
    let refused = other.wait_answer(other.start_call("own__who", json!({})));
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("port") && why.contains("another client"), "{refused}");
    drop(one);
    home.wait_until("its instance has ended", || !is_alive(pid));
    let next = home.wait_until("the other client gets an instance", || {
        let answer = other.call("own__who", json!({}));
        answer.get("result").map(|it| it["structuredContent"].clone())
    });
    assert_ne!(pid_of(&next), pid);
    home.finish();
}

/// Returns a home with an isolated server whose program writes a line to stderr and exits with code
/// 3.
fn broken_home(restart: &str) -> Home {
    let home = home();
    let kdl = format!(
        "command \"/bin/sh\"\nargs \"-c\" \"echo boom: no key >&2; exit 3\"\n\
         isolation \"client\"\nrestart {{ {restart} }}\n"
    );
    home.write_config("servers/own.kdl", &kdl);
    home.daemon();
    home
}

#[test]
fn broken_instance_answers_its_calls_and_can_be_diagnosed() {
    let home = broken_home("max-attempts 1; backoff-initial \"0s\"");
    let client = uninitialized_client_at(&home, &json!({ "server": "own" }));
    client.initialize();
    for _ in 0..2 {
        let refused = client.call("x", json!({}));
        assert_eq!(error_code(&refused), -32005, "{refused}");
        for part in ["exited with code 3", "last lines of stderr:\nboom: no key", "xy restart own"]
        {
            assert!(error_message(&refused).contains(part), "{part}: {refused}");
        }
    }
    drop(client);
    let status = home.wait_until("its client has left", || {
        let status = ask(&home, "status", json!({ "name": "own" }));
        (status["instances"] == json!([])).then_some(status)
    });
    assert_eq!((&status["state"], &status["last_exit"]["code"]), (&json!("failed"), &json!(3)));
    assert_eq!(status["last_stderr"], json!(["boom: no key", "boom: no key"]), "{status:#}");
    assert_eq!(status["last_failed"]["last_stderr"], status["last_stderr"], "{status:#}");
    let logs = home.xy(&["logs", "own"]);
    assert_eq!((logs.code, logs.stdout.matches("boom: no key").count()), (0, 2), "{logs:?}");
    let list = home.xy(&["list"]).stdout;
    assert!(list.contains("failed") && list.contains("exited with code 3"), "{list}");
    home.finish();
}

#[test]
fn request_to_a_broken_instance_reports_the_reason() {
    let home = broken_home("max-attempts 1");
    for method in ["ping", "tools/list"] {
        let output = home.xy(&["request", "own", method]);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output:?}");
        for part in ["`own` is not running", "exited with code 3", "boom: no key"] {
            assert!(output.stderr.contains(part), "{part}: {output:?}");
        }
    }
    home.finish();
}

#[test]
fn request_starts_an_instance_of_its_own() {
    let home = home_with_isolated_server(&[]);
    let answer = home.xy(&["request", "own", "ping"]);
    assert_eq!(
        (answer.code, answer.stdout.trim_end()),
        (0, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
    );
    let sent = json!({ "name": "who", "arguments": {} }).to_string();
    let who = home.xy(&["request", "own", "tools/call", "--params", &sent]).stdout;
    let who: Value = serde_json::from_str(&who).unwrap();
    let pid = pid_of(&who["result"]["structuredContent"]);
    home.wait_until("its instance has ended", || !is_alive(pid));
    let status = ask(&home, "status", json!({ "name": "own" }));
    assert_eq!((&status["state"], &status["instances"]), (&json!("stopped"), &json!([])));
    home.finish();
}
