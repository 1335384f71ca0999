//! Servers with `isolation "client"`: each client has one of its own.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, is_alive};

use crate::scopes::found;
use crate::stage::{
    capable, code, home, linger, local, serve, serve_with, stranger, stranger_at, told, web, who,
    who_at_last, words,
};
use crate::support::{ask, signal};

#[track_caller]
fn home_of_own(flags: &[&str]) -> Home {
    let home = home();
    serve(&home, "shared", &[]);
    serve_with(&home, "own", flags, "isolation \"client\"\n");
    home.daemon();
    crate::stage::ready(&home, &["shared"]);
    home
}

fn pid_of(who: &Value) -> u32 {
    who["pid"].as_u64().unwrap().try_into().unwrap()
}

#[test]
fn each_client_has_its_own_and_it_ends_with_its_client() {
    let home = home_of_own(&[]);
    let (one, other, http) = (local(&home), local(&home), web(&home));
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
fn two_calls_at_once_are_to_one_instance() {
    let home = home_of_own(&["--slow-init", "300"]);
    let client = local(&home);
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
fn it_is_told_what_its_own_client_can_do_and_may_ask_it() {
    let home = home_of_own(&[]);
    let rich = capable(&home);
    let plain = local(&home);
    let told = who(&rich, "own__who");
    assert_eq!(told["client"]["capabilities"], crate::stage::capabilities());
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
    // Others that call theirs make nothing unclear.
    plain.start_call("own__never", json!({}));
    let roots = rich.call_text("own__ask_roots", json!({}));
    assert!(roots.contains("file:///home/ada"), "{roots}");
    home.finish();
}

#[test]
fn it_is_told_what_a_client_says_with_its_first_request_and_may_ask_it() {
    let home = home_of_own(&[]);
    let client = home.mcp_connect(&[]); // It is never greeted.
    let capabilities = json!({ "roots": {}, "sampling": {} });
    let params = |tool: &str| {
        json!({ "name": tool, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        } })
    };
    let told = client.request("tools/call", params("own__who"));
    let told = told["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{told}"));
    let told: Value = serde_json::from_str(told).unwrap();
    assert_eq!(told["client"]["capabilities"], capabilities);
    let wanted = client.request("tools/call", params("own__ask_roots"));
    let wanted = &wanted["result"];
    assert_eq!(wanted["inputRequests"]["q1"]["method"], "roots/list", "{wanted}");
    let mut again = params("own__ask_roots");
    again["requestState"] = wanted["requestState"].clone();
    again["inputResponses"] = json!({ "q1": { "roots": [{ "uri": "file:///home/ada" }] } });
    let roots = client.request("tools/call", again).to_string();
    assert!(roots.contains("file:///home/ada"), "{roots}");
    client.close();
    home.finish();
}

#[test]
fn a_change_of_roots_reaches_the_clients_own_instance() {
    let home = home();
    let diary = crate::stage::diary_file(&home, "own");
    let flags = ["--diary", diary.to_str().unwrap()];
    serve_with(&home, "own", &flags, "isolation \"client\"\n");
    home.daemon();
    let client = capable(&home);
    who(&client, "own__who");
    client.notify("notifications/roots/list_changed", Value::Null);
    home.wait_until("it is told", || {
        crate::stage::heard_of(&home, "own", "notifications/roots/list_changed").len() == 1
    });
    home.finish();
}

#[test]
fn one_that_dies_is_its_own_clients_trouble() {
    let home = home_of_own(&[]);
    let (one, other) = (local(&home), local(&home));
    let mine = pid_of(&who(&one, "own__who"));
    let theirs = pid_of(&who(&other, "own__who"));
    one.tool_names();
    other.tool_names();
    let crash = one.call("own__crash", json!({}));
    assert_eq!(code(&crash), -32010, "{crash}");
    let next = pid_of(&who_at_last(&home, &one, "own__who"));
    assert_ne!(next, mine, "it has come back");
    assert_eq!(pid_of(&who(&other, "own__who")), theirs);
    signal(next, Signal::KILL);
    assert_ne!(pid_of(&who_at_last(&home, &one, "own__who")), next);
    linger();
    let changed = "notifications/tools/list_changed";
    assert_eq!((told(&one, changed), told(&other, changed)), (0, 0));
    home.finish();
}

#[test]
fn one_that_fails_is_its_own_clients_trouble() {
    let home = home();
    let kdl =
        format!("{}restart {{ policy \"never\" }}\nisolation \"client\"\n", home.kdl_mcp(&[]));
    home.write_config("servers/own.kdl", &kdl);
    home.daemon();
    let (one, other) = (local(&home), local(&home));
    who(&one, "own__who");
    let theirs = who(&other, "own__who")["pid"].clone();
    other.tool_names();
    one.call("own__crash", json!({}));
    let refused = home.wait_until("it is known to have failed", || {
        let answer = one.call("own__echo", json!({ "message": "x" }));
        answer.get("error").is_some().then_some(answer)
    });
    assert_eq!(code(&refused), -32005, "{refused}");
    assert_eq!(who(&other, "own__who")["pid"], theirs);
    assert!(other.tool_names().contains(&"own__echo".to_owned()));
    let newcomer = local(&home);
    who(&newcomer, "own__who");
    home.finish();
}

#[test]
fn nobody_gets_one_while_it_is_stopped() {
    let home = home_of_own(&[]);
    let client = local(&home);
    let pid = pid_of(&who(&client, "own__who"));
    client.tool_names();
    ask(&home, "stop", json!({ "name": "own" }));
    home.wait_until("it has ended", || !is_alive(pid));
    let refused = client.call("own__echo", json!({ "message": "x" }));
    assert_eq!(code(&refused), -32005, "{refused}");
    home.wait_until("it is listed no more", || {
        !client.tool_names().iter().any(|name| name.starts_with("own__"))
    });
    ask(&home, "start", json!({ "name": "own" }));
    home.wait_until("it is back", || client.call("own__who", json!({})).get("result").is_some());
    home.finish();
}

#[test]
fn one_server_alone_can_be_isolated_too() {
    let home = home_of_own(&["--instructions", "mine"]);
    let client = crate::stage::stranger_at(&home, &json!({ "server": "own" }));
    let hello = client.initialize_with(&crate::stage::capabilities());
    assert_eq!(hello["instructions"], "mine");
    let told = who(&client, "who");
    assert_eq!(told["client"]["capabilities"], crate::stage::capabilities());
    let silent = stranger(&home);
    drop(silent);
    drop(client);
    home.wait_until("it has ended", || !is_alive(pid_of(&told)));
    home.finish();
}

#[test]
fn a_killed_daemon_leaves_nobodys_instance_behind() {
    let home = home();
    serve_with(&home, "own", &[], "isolation \"client\"\n");
    let daemon = home.daemon();
    let client = crate::stage::bridged(&home);
    let before = pid_of(&who(&client, "own__who"));
    daemon.kill9();
    home.daemon();
    let after = pid_of(&who_at_last(&home, &client, "own__who"));
    assert_ne!(after, before, "its client is another one to this daemon");
    home.wait_until("the old one has ended", || !is_alive(before));
    drop(client);
    home.wait_until("the new one has ended", || !is_alive(after));
    home.finish();
}

/// Nothing tells a client of the tool `own__secret`, which another client's instance has.
#[track_caller]
fn knows_no_secret(client: &McpClient) {
    assert!(!client.tool_names().contains(&"own__secret".to_owned()), "it would be pinned");
    for query in ["secret", "own__secret", "Was added"] {
        let names = found(client, query);
        assert!(!names.contains(&"own__secret".to_owned()), "{query}: {names:?}");
    }
    for tool in ["describe_tool", "call_tool"] {
        let told = |name: &str| client.call(tool, json!({ "name": name }))["result"].clone();
        let (secret, nothing) = (told("own__secret"), told("own__unheard"));
        assert_eq!(secret["isError"], true, "{secret}");
        assert_eq!(secret.to_string().replace("own__secret", "own__unheard"), nothing.to_string());
    }
    let called = client.call("own__secret", json!({}));
    assert_eq!((code(&called), words(&called)), (-32602, "Unknown tool: own__secret"));
}

#[test]
fn what_one_clients_instance_adds_is_nobody_elses_nor_of_the_next_daemon() {
    let home = home();
    serve_with(&home, "own", &[], "isolation \"client\"\n");
    let profile = "tools \"search\"\nmanage #false\npin \"own__secret\"\n";
    home.write_config("profiles/find.kdl", profile);
    let daemon = home.daemon();
    let finder = || {
        let client = stranger_at(&home, &json!({ "profile": "find" }));
        client.initialize();
        client
    };
    let instances = || ask(&home, "status", json!({ "name": "own" }))["instances"].clone();
    let (ada, without, with) = (finder(), finder(), finder());
    // By a call, not by a list: it is known all the same what anybody would get.
    ada.call_text("own__add_tool", json!({ "name": "secret" }));
    home.wait_until("it is listed", || ada.tool_names().contains(&"own__secret".to_owned()));
    assert_eq!(found(&ada, "secret"), ["own__secret"]);
    assert_eq!(found(&ada, "own__secret")[0], "own__secret");
    let described = ada.call("describe_tool", json!({ "name": "own__secret" }));
    assert_eq!(described["result"]["structuredContent"]["tool"]["description"], "Was added");
    assert_eq!(ada.call_text("call_tool", json!({ "name": "own__secret" })), "secret");
    assert_eq!(ada.call_text("own__secret", json!({})), "secret");

    knows_no_secret(&without);
    assert_eq!(found(&without, "own__echo")[0], "own__echo");
    assert_eq!(instances().as_array().map(Vec::len), Some(1), "it has none of its own");
    who(&with, "own__who");
    knows_no_secret(&with);
    assert_eq!(instances().as_array().map(Vec::len), Some(2));

    let kept = home.root().join("state/xy/manifests/own.json");
    home.wait_until("it is remembered", || kept.exists());
    daemon.kill9();
    home.daemon();
    let later = finder();
    assert_eq!(found(&later, "own__echo")[0], "own__echo", "what anybody gets is remembered");
    knows_no_secret(&later);
    home.finish();
}

#[test]
fn one_that_listens_on_a_port_is_for_one_client_at_a_time() {
    let home = home();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let flags = ["--http", &port.to_string()];
    let more = format!("isolation \"client\"\ntransport \"http\"\nport {port}\n");
    serve_with(&home, "own", &flags, &more);
    home.daemon();
    let (one, other) = (local(&home), local(&home));
    let pid = pid_of(&who(&one, "own__who"));
    let refused = other.wait_answer(other.start_call("own__who", json!({})));
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("port") && why.contains("another client"), "{refused}");
    drop(one);
    home.wait_until("its instance has ended", || !is_alive(pid));
    let next = home.wait_until("the other gets one", || {
        let answer = other.call("own__who", json!({}));
        answer.get("result").map(|it| it["structuredContent"].clone())
    });
    assert_ne!(pid_of(&next), pid);
    home.finish();
}

/// A server for each client whose program writes a line to stderr and exits with code 3.
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
    let client = stranger_at(&home, &json!({ "server": "own" }));
    client.initialize();
    for _ in 0..2 {
        let refused = client.call("x", json!({}));
        assert_eq!(code(&refused), -32005, "{refused}");
        for told in ["exited with code 3", "last lines of stderr:\nboom: no key", "xy restart own"]
        {
            assert!(words(&refused).contains(told), "{told}: {refused}");
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
fn request_to_broken_instance_tells_why() {
    let home = broken_home("max-attempts 1");
    for method in ["ping", "tools/list"] {
        let asked = home.xy(&["request", "own", method]);
        assert_eq!((asked.code, asked.stdout.as_str()), (1, ""), "{asked:?}");
        for told in ["`own` is not running", "exited with code 3", "boom: no key"] {
            assert!(asked.stderr.contains(told), "{told}: {asked:?}");
        }
    }
    home.finish();
}

#[test]
fn request_starts_instance_for_itself() {
    let home = home_of_own(&[]);
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
