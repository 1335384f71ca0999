//! One process under two names: whatever a client does with one of them, it gets what it would
//! get with the other. Each story is told at a home of its own, once with each name, and what
//! the clients have heard is compared word for word.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpSocket};

use super::support::{ask, home, running, running_after, signal, status};
use super::{A_WHILE, client, linger, serve, servers_alive, who};

const UPDATED: &str = "notifications/resources/updated";
const CHANGED: &str = "notifications/tools/list_changed";
const STATUS: &str = "notifications/tasks/status";
const KEY: &str = "share-key \"k\"\n";

/// A home whose process has the names `a`, which owns it, and `b`; a profile shows only `b`.
#[track_caller]
fn home_of_names(flags: &[&str], more: &str) -> Home {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, flags, &format!("{KEY}{more}"));
    }
    home.write_config("profiles/only-b.kdl", "servers \"b\"\nmanage #false\n");
    home
}

/// Waits until both names are up and known.
#[track_caller]
fn ready(home: &Home) {
    running(home, "a");
    let one = client(home);
    home.wait_until("both are known", || {
        let names = one.tool_names();
        ["a__who", "b__who"].iter().all(|name| names.iter().any(|it| it == name))
    });
}

/// Where a client comes in, and the name it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Door {
    name: &'static str,
    /// `None` shows this server alone, with nothing between.
    profile: Option<&'static str>,
}

const DOORS: [Door; 3] = [
    Door { name: "a", profile: Some("default") },
    Door { name: "b", profile: Some("default") },
    Door { name: "b", profile: Some("only-b") },
];

const PLAIN: [Door; 2] = [Door { name: "a", profile: None }, Door { name: "b", profile: None }];

impl Door {
    #[track_caller]
    fn client(self, home: &Home) -> McpSocket {
        let view = match self.profile {
            Some(profile) => json!({ "profile": profile }),
            None => json!({ "server": self.name }),
        };
        let hello = json!({ "xy": "hello", "protocol": 1, "view": view });
        let client = McpSocket::connect(&home.mcp_socket(), &hello.to_string());
        client.initialize_with(&json!({ "elicitation": {} }));
        client.answer_with(|question| {
            let said = question["params"]["message"].clone();
            Some(Ok(json!({ "action": "accept", "content": { "name": said } })))
        });
        client
    }

    fn tool(self, tool: &str) -> String {
        if self.profile.is_some() { format!("{}__{tool}", self.name) } else { tool.to_owned() }
    }

    fn uri(self, uri: &str) -> String {
        if self.profile.is_some() { format!("xy://{}/{uri}", self.name) } else { uri.to_owned() }
    }

    /// What was heard, in words that do not depend on the name.
    fn plainly(self, heard: &Value) -> String {
        let name = self.name;
        let mut text = heard.to_string();
        for (before, after) in [("", "__"), ("xy://", "/"), ("`", "`"), (" ", "`")] {
            let (from, to) = (format!("{before}{name}{after}"), format!("{before}N{after}"));
            // A name stands alone.
            text = if before.is_empty() {
                text.replace(&format!("\"{from}"), &format!("\"{to}"))
                    .replace(&format!("`{from}"), &format!("`{to}"))
                    .replace(&format!(": {from}"), &format!(": {to}"))
                    .replace(&format!(" {from}"), &format!(" {to}"))
            } else {
                text.replace(&from, &to)
            };
        }
        text
    }
}

/// Tells a story at each door, and wants to hear the same.
#[track_caller]
fn alike(doors: &[Door], tell: impl Fn(Door) -> Vec<Value>) {
    let told: Vec<(Door, Vec<String>)> = doors
        .iter()
        .map(|door| (*door, tell(*door).iter().map(|it| door.plainly(it)).collect()))
        .collect();
    let (_, first) = &told[0];
    assert!(first.len() > 3, "it is a story: {first:?}");
    for (door, heard) in &told[1..] {
        for (one, other) in first.iter().zip(heard) {
            assert_eq!(one, other, "{door:?}");
        }
        assert_eq!(first.len(), heard.len(), "{door:?}");
    }
    for (_, heard) in told.iter().filter(|(door, _)| door.profile == Some("only-b")) {
        for text in heard {
            for trace in ["a__", "xy://a/", "`a`", " a`"] {
                assert!(!text.contains(trace), "the other name is hidden: {text}");
            }
        }
    }
}

/// The entries of a list that are of one name.
#[track_caller]
fn listed(door: Door, client: &McpClient, method: &str, key: &str) -> Value {
    let all = client.list(method, key);
    let is_ours = |it: &&Value| {
        let text = it["name"].as_str().unwrap_or_default();
        let uri = it["uri"].as_str().or(it["uriTemplate"].as_str()).unwrap_or_default();
        let is_named = text.starts_with(&door.tool("")) && uri.is_empty();
        is_named || uri.starts_with(&door.uri("")) && !uri.is_empty()
    };
    all.iter().filter(is_ours).cloned().collect::<Vec<_>>().into()
}

/// What is said of a call, its progress and its logs included.
#[track_caller]
fn called(client: &McpClient, tool: &str, arguments: &Value) -> Value {
    let meta = json!({ "progressToken": "p" });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let answer = client.request("tools/call", params);
    json!([answer["result"], answer["error"], client.notifications()])
}

/// Everything a client with a session can do.
#[track_caller]
fn session(door: Door, home: &Home) -> Vec<Value> {
    let client = &door.client(home);
    let mut heard = Vec::new();
    for (method, key) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        heard.push(listed(door, client, method, key));
    }
    heard.push(called(client, &door.tool("echo"), &json!({ "message": "x" })));
    heard.push(called(client, &door.tool("progress"), &json!({ "steps": 2 })));
    client.request("logging/setLevel", json!({ "level": "debug" }));
    heard.push(called(client, &door.tool("log"), &json!({ "level": "error", "message": "m" })));
    let asks = [
        ("prompts/get", json!({ "name": door.tool("greet"), "arguments": { "name": "Ada" } })),
        ("resources/read", json!({ "uri": door.uri("test://static") })),
        ("resources/read", json!({ "uri": "test://item/7" })),
        ("resources/read", json!({ "uri": door.uri("test://never") })),
        (
            "completion/complete",
            json!({
                "ref": { "type": "ref/prompt", "name": door.tool("greet") },
                "argument": { "name": "name", "value": "Al" },
            }),
        ),
        (
            "completion/complete",
            json!({
                "ref": { "type": "ref/resource", "uri": door.uri("test://item/{id}") },
                "argument": { "name": "id", "value": "Al" },
            }),
        ),
        ("tools/call", json!({ "name": door.tool("ech"), "arguments": {} })),
        ("tasks/get", json!({ "taskId": "never" })),
    ];
    for (method, params) in asks {
        let answer = client.request(method, params);
        heard.push(json!([method, answer["result"], answer["error"]]));
    }
    heard.extend(watching(door, client));
    let hello = status(home, door.name)["protocol"].clone();
    if hello == "2025-11-25" {
        heard.extend(working(door, client)); // Between eras there are no tasks.
    }
    heard.push(hello);
    // A list that changes.
    called(client, &door.tool("add_tool"), &json!({ "name": "new" }));
    client.wait_notification(CHANGED);
    heard.push(listed(door, client, "tools/list", "tools"));
    // A server that asks.
    heard.push(called(client, &door.tool("ask_elicitation"), &json!({ "message": "who?" })));
    heard.push(status(home, door.name)["warnings"].clone());
    heard
}

/// Watches a resource under its name outside, and as it is.
#[track_caller]
fn watching(door: Door, client: &McpClient) -> Vec<Value> {
    let mut heard = Vec::new();
    for uri in [door.uri("test://counter"), "test://counter".to_owned()] {
        let params = json!({ "uri": uri });
        heard.push(client.request("resources/subscribe", params.clone())["result"].clone());
        client.call(&door.tool("bump"), json!({}));
        heard.push(client.wait_notification(UPDATED));
        heard.push(client.request("resources/unsubscribe", params)["result"].clone());
        client.call(&door.tool("bump"), json!({}));
        heard.push(json!(client.notifications()));
    }
    heard
}

/// Has something done as a task, and something that is cancelled.
#[track_caller]
fn working(door: Door, client: &McpClient) -> Vec<Value> {
    let start = |arguments: Value| {
        let params = json!({ "name": door.tool("job"), "arguments": arguments, "task": {} });
        client.request("tools/call", params)["result"].clone()
    };
    let begun = start(json!({ "message": "done" }));
    let mut heard = vec![begun.clone()];
    let task = begun["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{begun}"));
    heard.push(client.wait_notification(STATUS));
    let about = |method: &str, task: &Value| {
        let answer = client.request(method, json!({ "taskId": task }));
        json!([method, answer["result"], answer["error"]])
    };
    heard.push(about("tasks/get", &json!(task)));
    heard.push(about("tasks/result", &json!(task)));
    let long = start(json!({ "ms": 60_000 }))["task"]["taskId"].clone();
    heard.push(about("tasks/cancel", &long));
    heard.push(client.request("tasks/list", json!({}))["result"].clone());
    client.notifications();
    heard
}

#[test]
fn a_client_with_a_session_can_do_the_same_with_either_name() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        for doors in [&DOORS[..], &PLAIN] {
            alike(doors, |door| {
                let home = home_of_names(flags, "");
                home.daemon();
                ready(&home);
                let heard = session(door, &home);
                home.finish();
                heard
            });
        }
    }
}

/// Everything of a client without one that is told of later.
#[track_caller]
fn sessionless(door: Door, home: &Home) -> Vec<Value> {
    let path = match door.profile {
        Some("default") => "/mcp".to_owned(),
        Some(profile) => format!("/mcp/p/{profile}"),
        None => format!("/mcp/s/{}", door.name),
    };
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = home.mcp_modern(&path).with_capabilities(tasks);
    let outcome = |answer: Value| json!([answer["result"], answer["error"]]);
    let mut heard = vec![outcome(client.call_tool(&door.tool("echo"), json!({ "message": "x" })))];
    let begun = client.call_tool(&door.tool("job"), json!({ "message": "m", "ms": 300 }));
    let task = begun["result"]["taskId"].clone();
    heard.push(outcome(begun));
    let uri = door.uri("test://counter");
    let wanted = json!({
        "toolsListChanged": true, "resourceSubscriptions": [uri],
        "taskIds": if task.is_null() { json!([]) } else { json!([task]) },
    });
    let mut ear = client.start("subscriptions/listen", json!({ "notifications": wanted }), &[]);
    heard.push(ear.next_message().unwrap()["params"].clone());
    client.call_tool(&door.tool("bump"), json!({}));
    client.call_tool(&door.tool("add_tool"), json!({ "name": "new" }));
    let mut methods = BTreeSet::from([UPDATED, CHANGED]);
    if !task.is_null() {
        methods.insert("notifications/tasks");
    }
    let mut told = Vec::new();
    while !methods.is_empty() {
        let message = ear.next_message().unwrap();
        let is_over = message["params"].get("status").is_none_or(|it| it == "completed");
        if is_over {
            methods.remove(message["method"].as_str().unwrap());
            told.push(message);
        }
    }
    told.sort_by_key(ToString::to_string); // Which comes first is chance.
    heard.extend(told);
    for method in ["tasks/get", "tasks/cancel"] {
        heard.push(outcome(client.request(method, json!({ "taskId": task }))));
    }
    heard
}

#[test]
fn a_client_without_a_session_can_do_the_same_with_either_name() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        for doors in [&DOORS[..], &PLAIN] {
            alike(doors, |door| {
                let home = home_of_names(flags, "");
                home.daemon();
                ready(&home);
                let heard = sessionless(door, &home);
                home.finish();
                heard
            });
        }
    }
}

#[test]
fn a_crash_costs_the_same_under_either_name() {
    for doors in [&DOORS[..], &PLAIN] {
        alike(doors, |door| {
            let home = home_of_names(&["--tasks"], "");
            home.daemon();
            ready(&home);
            let client = &door.client(&home);
            client.tool_names();
            let mut heard = Vec::new();
            let uri = door.uri("test://counter");
            client.request("resources/subscribe", json!({ "uri": uri }));
            let begun = json!({ "name": door.tool("job"), "arguments": {}, "task": {} });
            let task = client.request("tools/call", begun)["result"]["task"]["taskId"].clone();
            for (life, tool) in (1..).zip(["read_only", "idempotent", "mutating"]) {
                let file = home.root().join(format!("harness/{tool}"));
                let arguments = json!({ "message": "again", "die_once": file });
                let answer = client.call(&door.tool(tool), arguments);
                heard.push(json!([tool, answer["result"], answer["error"]]));
                running_after(&home, "b", life);
            }
            let lost = client.request("tasks/get", json!({ "taskId": task }));
            heard.push(lost["error"].clone());
            // What was watched still is.
            home.wait_until("it is told", || {
                let who = client.call_text(&door.tool("who"), json!({}));
                who.contains("test://counter")
            });
            client.notifications();
            client.call(&door.tool("bump"), json!({}));
            heard.push(client.wait_notification(UPDATED));
            // Who was stopped says so.
            ask(&home, "stop", json!({ "name": door.name }));
            let answer = client.call(&door.tool("echo"), json!({ "message": "x" }));
            heard.push(answer["error"].clone());
            home.finish();
            heard
        });
    }
}

#[test]
fn both_names_at_once_are_told_apart_for_one_client_and_for_two() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        let home = home_of_names(flags, "");
        home.daemon();
        ready(&home);
        let (both, hidden) = (client(&home), DOORS[2].client(&home));
        for name in ["a", "b"] {
            let uri = format!("xy://{name}/test://counter");
            let answer = both.request("resources/subscribe", json!({ "uri": uri }));
            assert!(answer.get("result").is_some(), "{answer}");
        }
        let uri = "xy://b/test://counter";
        hidden.request("resources/subscribe", json!({ "uri": uri }));
        both.call_text("a__bump", json!({}));
        let uris: BTreeSet<String> = (0..2)
            .map(|_| both.wait_notification(UPDATED)["params"]["uri"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(uris, ["a", "b"].map(|it| format!("xy://{it}/test://counter")).into());
        assert_eq!(hidden.wait_notification(UPDATED)["params"]["uri"], uri);
        // Who leaves one name keeps the other, and others keep theirs.
        both.request("resources/unsubscribe", json!({ "uri": uri }));
        hidden.call_text("b__bump", json!({}));
        assert_eq!(both.wait_notification(UPDATED)["params"]["uri"], "xy://a/test://counter");
        assert_eq!(hidden.wait_notification(UPDATED)["params"]["uri"], uri);
        both.request("resources/unsubscribe", json!({ "uri": "xy://a/test://counter" }));
        hidden.call_text("b__bump", json!({}));
        assert_eq!(hidden.wait_notification(UPDATED)["params"]["uri"], uri);
        linger(A_WHILE);
        let told = both.notifications();
        assert!(!told.iter().any(|it| it["method"] == UPDATED), "{told:?}");
        if flags.len() == 1 {
            let begin = |client: &McpClient, name: &str| {
                let params = json!({ "name": format!("{name}__job"), "arguments": {}, "task": {} });
                let begun = client.request("tools/call", params);
                begun["result"]["task"]["taskId"].as_str().unwrap().to_owned()
            };
            let mine = [begin(&both, "a"), begin(&both, "b")];
            let theirs = begin(&hidden, "b");
            let ids = |client: &McpClient| -> Vec<String> {
                let listed = client.request("tasks/list", json!({}));
                let all = listed["result"]["tasks"].as_array().unwrap();
                all.iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect()
            };
            assert_eq!(ids(&both), mine);
            assert_eq!(ids(&hidden), [theirs]);
            let other = hidden.request("tasks/get", json!({ "taskId": mine[1] }));
            assert_eq!(other["error"]["code"], -32602, "{other}");
        }
        assert_eq!(servers_alive(&home).len(), 1);
        home.finish();
    }
}

#[test]
fn an_instance_of_ones_own_has_both_names() {
    let home = home_of_names(&["--tasks"], "isolation \"client\"\n");
    home.daemon();
    alike(&DOORS, |door| {
        let client = door.client(&home);
        who(&client, door.name);
        home.wait_until("what is its own is known", || {
            let listed = listed(door, &client, "resources/list", "resources");
            !listed.as_array().unwrap().is_empty()
        });
        let mut heard = vec![listed(door, &client, "resources/list", "resources")];
        heard.extend(watching(door, &client));
        heard.extend(working(door, &client));
        assert_eq!(servers_alive(&home).len(), 1);
        client.close();
        home.wait_until("it goes with its client", || servers_alive(&home).is_empty());
        heard
    });
    let one = client(&home);
    assert_eq!(who(&one, "a"), who(&one, "b"));
    home.finish();
}

#[test]
fn status_tells_the_same_of_the_process_under_either_name_and_who_waits_under_which() {
    let home = home_of_names(&[], "");
    home.daemon();
    ready(&home);
    let clients = [client(&home), DOORS[2].client(&home)];
    who(&clients[0], "a");
    who(&clients[1], "b");
    let told = |name: &str| {
        let status = status(&home, name);
        let instance = &status["instances"][0];
        assert!(instance["memory_bytes"].as_u64().unwrap() > 100_000, "{instance}");
        assert!(instance["cpu_ms"].is_u64(), "{instance}");
        let count = instance["clients"][0]["count"].clone();
        json!([
            status["protocol"],
            status["log_path"],
            instance["pid"],
            instance["log_file"],
            count
        ])
    };
    assert_eq!(told("a"), told("b"));
    assert_eq!((&told("b")[0], &told("b")[4]), (&json!("2025-11-25"), &json!(2)));
    // Each is counted under the name it was asked under.
    for name in ["a", "b"] {
        let patient = "restart { backoff-initial \"1m\"; backoff-max \"1m\" }\n";
        let kdl = format!("{}{patient}{KEY}", home.kdl_mcp(&[]));
        home.write_config(&format!("servers/{name}.kdl"), &kdl);
    }
    ask(&home, "reload", json!({}));
    signal(running(&home, "b"), Signal::KILL);
    home.wait_for_state("b", "restarting");
    let calls = [("a__echo", 0), ("b__echo", 1), ("b__echo", 1)].map(|(tool, number)| {
        let client: &McpSocket = &clients[number];
        (client, client.start_call(tool, json!({ "message": "x" })))
    });
    home.wait_until("they wait", || {
        (&status(&home, "a")["parked"], &status(&home, "b")["parked"]) == (&json!(1), &json!(2))
    });
    for (client, call) in calls {
        client.cancel(&json!(call));
    }
    home.wait_until("nobody does", || {
        (&status(&home, "a")["parked"], &status(&home, "b")["parked"]) == (&json!(0), &json!(0))
    });
    home.finish();
}

#[test]
fn a_shared_process_sleeps_when_neither_name_is_used() {
    let home = home_of_names(&["--tasks"], "start \"lazy\"\nidle-stop \"1500ms\"\n");
    home.daemon();
    let clients = DOORS.map(|door| (door, door.client(&home)));
    for (door, client) in &clients {
        let uri = door.uri("test://counter");
        client.request("resources/subscribe", json!({ "uri": uri }));
        let pid = who(client, door.name);
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home), [pid], "what {door:?} watches keeps it");
        client.request("resources/unsubscribe", json!({ "uri": uri }));
        let begun = json!({ "name": door.tool("job"), "arguments": {}, "task": { "ttl": 60_000 } });
        let call =
            client.start_call(&door.tool("slow_echo"), json!({ "message": "x", "ms": 4000 }));
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home), [pid], "a call of {door:?} keeps it");
        client.wait_answer(call);
        home.wait_for_state("a", "asleep");
        home.wait_for_state("b", "asleep");
        assert_eq!(servers_alive(&home), [] as [u32; 0]);
        let client = door.client(&home);
        let answer = client.request("tools/call", begun);
        assert!(answer["result"]["task"].is_object(), "{answer}");
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home).len(), 1, "a task of {door:?} keeps it");
        drop(client); // Nobody can ask about it any more.
        ask(&home, "restart", json!({ "name": door.name }));
    }
    home.finish();
}

#[test]
fn the_process_goes_on_over_a_killed_daemon_whichever_name_is_stopped() {
    for (stopped, other) in [("a", "b"), ("b", "a")] {
        let home = home_of_names(&[], "");
        let daemon = home.daemon();
        ready(&home);
        let pid = running(&home, "a");
        ask(&home, "stop", json!({ "name": stopped }));
        daemon.kill9();
        let daemon = home.daemon();
        home.wait_for_state(stopped, "stopped");
        assert_eq!(running(&home, other), pid, "without {stopped}");
        assert_eq!(who(&client(&home), other), pid);
        // Started again it is the same process, also to the next daemon.
        ask(&home, "start", json!({ "name": stopped }));
        assert_eq!(running(&home, stopped), pid);
        daemon.kill9();
        home.daemon();
        assert_eq!((running(&home, "a"), running(&home, "b")), (pid, pid));
        home.finish();
    }
}

#[test]
fn the_process_goes_on_when_its_daemon_is_replaced_whichever_name_is_stopped() {
    for stopped in [None, Some("a"), Some("b")] {
        let home = home_of_names(&[], "");
        let first = home.daemon();
        ready(&home);
        let pid = running(&home, "a");
        if let Some(stopped) = stopped {
            ask(&home, "stop", json!({ "name": stopped }));
        }
        home.daemon_with(&["--replace"]);
        assert!(first.wait().success(), "{}", first.stderr());
        let one = client(&home);
        for name in ["a", "b"] {
            if stopped == Some(name) {
                home.wait_for_state(name, "stopped");
                assert!(one.call(&format!("{name}__who"), json!({})).get("error").is_some());
            } else {
                assert_eq!(running(&home, name), pid, "{stopped:?} is stopped");
                assert_eq!(who(&one, name), pid);
            }
        }
        assert_eq!(servers_alive(&home), [pid], "there is one, the same");
        if let Some(stopped) = stopped {
            ask(&home, "start", json!({ "name": stopped }));
            assert_eq!(running(&home, stopped), pid);
        }
        home.finish();
    }
}

#[test]
fn what_a_name_watches_and_waits_for_moves_with_it_to_its_next_process() {
    let home = home_of_names(&[], "");
    home.daemon();
    ready(&home);
    let one = client(&home);
    let uri = "xy://b/test://counter";
    one.request("resources/subscribe", json!({ "uri": uri }));
    let before = who(&one, "b");
    home.remove_server("a");
    ask(&home, "reload", json!({}));
    home.wait_until("it is another process", || {
        let answer = one.call("b__who", json!({}));
        let pid = answer["result"]["structuredContent"]["pid"].as_u64();
        pid.is_some_and(|pid| pid != u64::from(before))
    });
    home.wait_until("one is left", || servers_alive(&home).len() == 1);
    one.notifications();
    home.wait_until("it is watched there", || {
        one.call_text("b__who", json!({})).contains("test://counter")
    });
    one.call_text("b__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], uri);
    // Another key for a name that follows: it has a process of its own, and the other keeps its.
    serve(&home, "c", &[], KEY);
    ask(&home, "reload", json!({}));
    let pid = running(&home, "b");
    assert_eq!(running(&home, "c"), pid);
    one.request("resources/subscribe", json!({ "uri": "xy://c/test://counter" }));
    serve(&home, "c", &[], "share-key \"l\"\n");
    ask(&home, "reload", json!({}));
    home.wait_until("they are two", || {
        running(&home, "c") != pid && servers_alive(&home).len() == 2
    });
    assert_eq!(running(&home, "b"), pid);
    home.wait_until("it is watched there", || {
        one.call_text("c__who", json!({})).contains("test://counter")
    });
    one.notifications();
    one.call_text("c__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], "xy://c/test://counter");
    // The owner takes another key: its process goes on.
    serve(&home, "b", &[], "share-key \"m\"\n");
    ask(&home, "reload", json!({}));
    assert_eq!(running(&home, "b"), pid);
    signal(pid, Signal::KILL);
    running_after(&home, "b", 1);
    home.finish();
}
