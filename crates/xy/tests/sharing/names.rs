//! One process with two names: clients get the same with either name. Each scenario runs in its own
//! home once per name, and the received messages are compared.

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

/// Returns a home whose process has the names `a`, which owns it, and `b`. A profile shows only
/// `b`.
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

/// The endpoint of a client, and the name it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoint {
    name: &'static str,
    /// `None` is the single-server endpoint.
    profile: Option<&'static str>,
}

const ENDPOINTS: [Endpoint; 3] = [
    Endpoint { name: "a", profile: Some("default") },
    Endpoint { name: "b", profile: Some("default") },
    Endpoint { name: "b", profile: Some("only-b") },
];

const PLAIN: [Endpoint; 2] =
    [Endpoint { name: "a", profile: None }, Endpoint { name: "b", profile: None }];

impl Endpoint {
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
            let name = question["params"]["message"].clone();
            Some(Ok(json!({ "action": "accept", "content": { "name": name } })))
        });
        client
    }

    fn tool(self, tool: &str) -> String {
        if self.profile.is_some() { format!("{}__{tool}", self.name) } else { tool.to_owned() }
    }

    fn uri(self, uri: &str) -> String {
        if self.profile.is_some() { format!("xy://{}/{uri}", self.name) } else { uri.to_owned() }
    }

    /// Returns a received message with the name replaced.
    fn normalized(self, received: &Value) -> String {
        let name = self.name;
        let mut text = received.to_string();
        for (before, after) in [("", "__"), ("xy://", "/"), ("`", "`"), (" ", "`")] {
            let (from, to) = (format!("{before}{name}{after}"), format!("{before}N{after}"));
            // Without a prefix, the name must be a whole word.
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

/// Runs a scenario at each endpoint, and asserts equal results.
#[track_caller]
fn assert_same_at(endpoints: &[Endpoint], scenario: impl Fn(Endpoint) -> Vec<Value>) {
    let results: Vec<(Endpoint, Vec<String>)> = endpoints
        .iter()
        .map(|endpoint| {
            (*endpoint, scenario(*endpoint).iter().map(|it| endpoint.normalized(it)).collect())
        })
        .collect();
    let (_, first) = &results[0];
    assert!(first.len() > 3, "the scenario has results: {first:?}");
    for (endpoint, received) in &results[1..] {
        for (one, other) in first.iter().zip(received) {
            assert_eq!(one, other, "{endpoint:?}");
        }
        assert_eq!(first.len(), received.len(), "{endpoint:?}");
    }
    for (_, received) in results.iter().filter(|(endpoint, _)| endpoint.profile == Some("only-b")) {
        for text in received {
            for trace in ["a__", "xy://a/", "`a`", " a`"] {
                assert!(!text.contains(trace), "the other name is hidden: {text}");
            }
        }
    }
}

/// Returns the list entries of one name.
#[track_caller]
fn listed(endpoint: Endpoint, client: &McpClient, method: &str, key: &str) -> Value {
    let all = client.list(method, key);
    let is_ours = |it: &&Value| {
        let text = it["name"].as_str().unwrap_or_default();
        let uri = it["uri"].as_str().or(it["uriTemplate"].as_str()).unwrap_or_default();
        let is_named = text.starts_with(&endpoint.tool("")) && uri.is_empty();
        is_named || uri.starts_with(&endpoint.uri("")) && !uri.is_empty()
    };
    all.iter().filter(is_ours).cloned().collect::<Vec<_>>().into()
}

/// Returns everything received for a call, including progress and logs.
#[track_caller]
fn call_results(client: &McpClient, tool: &str, arguments: &Value) -> Value {
    let meta = json!({ "progressToken": "p" });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let answer = client.request("tools/call", params);
    json!([answer["result"], answer["error"], client.notifications()])
}

/// Runs everything that a client with a session can do.
#[track_caller]
fn session_results(endpoint: Endpoint, home: &Home) -> Vec<Value> {
    let client = &endpoint.client(home);
    let mut received = Vec::new();
    for (method, key) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        received.push(listed(endpoint, client, method, key));
    }
    received.push(call_results(client, &endpoint.tool("echo"), &json!({ "message": "x" })));
    received.push(call_results(client, &endpoint.tool("progress"), &json!({ "steps": 2 })));
    client.request("logging/setLevel", json!({ "level": "debug" }));
    received.push(call_results(
        client,
        &endpoint.tool("log"),
        &json!({ "level": "error", "message": "m" }),
    ));
    let requests = [
        ("prompts/get", json!({ "name": endpoint.tool("greet"), "arguments": { "name": "Ada" } })),
        ("resources/read", json!({ "uri": endpoint.uri("test://static") })),
        ("resources/read", json!({ "uri": "test://item/7" })),
        ("resources/read", json!({ "uri": endpoint.uri("test://never") })),
        (
            "completion/complete",
            json!({
                "ref": { "type": "ref/prompt", "name": endpoint.tool("greet") },
                "argument": { "name": "name", "value": "Al" },
            }),
        ),
        (
            "completion/complete",
            json!({
                "ref": { "type": "ref/resource", "uri": endpoint.uri("test://item/{id}") },
                "argument": { "name": "id", "value": "Al" },
            }),
        ),
        ("tools/call", json!({ "name": endpoint.tool("ech"), "arguments": {} })),
        ("tasks/get", json!({ "taskId": "never" })),
    ];
    for (method, params) in requests {
        let answer = client.request(method, params);
        received.push(json!([method, answer["result"], answer["error"]]));
    }
    received.extend(subscription_results(endpoint, client));
    let hello = status(home, endpoint.name)["protocol"].clone();
    if hello == "2025-11-25" {
        received.extend(task_results(endpoint, client)); // Tasks are not translated between eras.
    }
    received.push(hello);
    // A list change.
    call_results(client, &endpoint.tool("add_tool"), &json!({ "name": "new" }));
    client.wait_notification(CHANGED);
    received.push(listed(endpoint, client, "tools/list", "tools"));
    // A server request.
    received.push(call_results(
        client,
        &endpoint.tool("ask_elicitation"),
        &json!({ "message": "who?" }),
    ));
    received.push(status(home, endpoint.name)["warnings"].clone());
    received
}

/// Subscribes to a resource by its public and its own URI.
#[track_caller]
fn subscription_results(endpoint: Endpoint, client: &McpClient) -> Vec<Value> {
    let mut received = Vec::new();
    for uri in [endpoint.uri("test://counter"), "test://counter".to_owned()] {
        let params = json!({ "uri": uri });
        received.push(client.request("resources/subscribe", params.clone())["result"].clone());
        client.call(&endpoint.tool("bump"), json!({}));
        received.push(client.wait_notification(UPDATED));
        received.push(client.request("resources/unsubscribe", params)["result"].clone());
        client.call(&endpoint.tool("bump"), json!({}));
        received.push(json!(client.notifications()));
    }
    received
}

/// Runs a task to its end, and cancels another.
#[track_caller]
fn task_results(endpoint: Endpoint, client: &McpClient) -> Vec<Value> {
    let start = |arguments: Value| {
        let params = json!({ "name": endpoint.tool("job"), "arguments": arguments, "task": {} });
        client.request("tools/call", params)["result"].clone()
    };
    let begun = start(json!({ "message": "done" }));
    let mut received = vec![begun.clone()];
    let task = begun["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{begun}"));
    received.push(client.wait_notification(STATUS));
    let about = |method: &str, task: &Value| {
        let answer = client.request(method, json!({ "taskId": task }));
        json!([method, answer["result"], answer["error"]])
    };
    received.push(about("tasks/get", &json!(task)));
    received.push(about("tasks/result", &json!(task)));
    let long = start(json!({ "ms": 60_000 }))["task"]["taskId"].clone();
    received.push(about("tasks/cancel", &long));
    received.push(client.request("tasks/list", json!({}))["result"].clone());
    client.notifications();
    received
}

#[test]
fn session_client_gets_the_same_with_either_name() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        for endpoints in [&ENDPOINTS[..], &PLAIN] {
            assert_same_at(endpoints, |endpoint| {
                let home = home_of_names(flags, "");
                home.daemon();
                ready(&home);
                let received = session_results(endpoint, &home);
                home.finish();
                received
            });
        }
    }
}

/// Runs everything that a stateless client can do.
#[track_caller]
fn stateless_results(endpoint: Endpoint, home: &Home) -> Vec<Value> {
    let path = match endpoint.profile {
        Some("default") => "/mcp".to_owned(),
        Some(profile) => format!("/mcp/p/{profile}"),
        None => format!("/mcp/s/{}", endpoint.name),
    };
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = home.mcp_modern(&path).with_capabilities(tasks);
    let outcome = |answer: Value| json!([answer["result"], answer["error"]]);
    let mut results =
        vec![outcome(client.call_tool(&endpoint.tool("echo"), json!({ "message": "x" })))];
    let begun = client.call_tool(&endpoint.tool("job"), json!({ "message": "m", "ms": 300 }));
    let task = begun["result"]["taskId"].clone();
    results.push(outcome(begun));
    let uri = endpoint.uri("test://counter");
    let filter = json!({
        "toolsListChanged": true, "resourceSubscriptions": [uri],
        "taskIds": if task.is_null() { json!([]) } else { json!([task]) },
    });
    let mut subscription =
        client.start("subscriptions/listen", json!({ "notifications": filter }), &[]);
    results.push(subscription.next_message().unwrap()["params"].clone());
    client.call_tool(&endpoint.tool("bump"), json!({}));
    client.call_tool(&endpoint.tool("add_tool"), json!({ "name": "new" }));
    let mut methods = BTreeSet::from([UPDATED, CHANGED]);
    if !task.is_null() {
        methods.insert("notifications/tasks");
    }
    let mut notifications = Vec::new();
    while !methods.is_empty() {
        let message = subscription.next_message().unwrap();
        let is_over = message["params"].get("status").is_none_or(|it| it == "completed");
        if is_over {
            methods.remove(message["method"].as_str().unwrap());
            notifications.push(message);
        }
    }
    notifications.sort_by_key(ToString::to_string); // The order is random.
    results.extend(notifications);
    for method in ["tasks/get", "tasks/cancel"] {
        results.push(outcome(client.request(method, json!({ "taskId": task }))));
    }
    results
}

#[test]
fn stateless_client_gets_the_same_with_either_name() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        for endpoints in [&ENDPOINTS[..], &PLAIN] {
            assert_same_at(endpoints, |endpoint| {
                let home = home_of_names(flags, "");
                home.daemon();
                ready(&home);
                let received = stateless_results(endpoint, &home);
                home.finish();
                received
            });
        }
    }
}

#[test]
fn crash_has_the_same_results_with_either_name() {
    for endpoints in [&ENDPOINTS[..], &PLAIN] {
        assert_same_at(endpoints, |endpoint| {
            let home = home_of_names(&["--tasks"], "");
            home.daemon();
            ready(&home);
            let client = &endpoint.client(&home);
            client.tool_names();
            let mut received = Vec::new();
            let uri = endpoint.uri("test://counter");
            client.request("resources/subscribe", json!({ "uri": uri }));
            let begun = json!({ "name": endpoint.tool("job"), "arguments": {}, "task": {} });
            let task = client.request("tools/call", begun)["result"]["task"]["taskId"].clone();
            for (life, tool) in (1..).zip(["read_only", "idempotent", "mutating"]) {
                let file = home.root().join(format!("harness/{tool}"));
                let arguments = json!({ "message": "again", "die_once": file });
                let answer = client.call(&endpoint.tool(tool), arguments);
                received.push(json!([tool, answer["result"], answer["error"]]));
                running_after(&home, "b", life);
            }
            let lost = client.request("tasks/get", json!({ "taskId": task }));
            received.push(lost["error"].clone());
            // The subscription still exists.
            home.wait_until("the server gets the cancellation", || {
                let who = client.call_text(&endpoint.tool("who"), json!({}));
                who.contains("test://counter")
            });
            client.notifications();
            client.call(&endpoint.tool("bump"), json!({}));
            received.push(client.wait_notification(UPDATED));
            // The error names the stopped server.
            ask(&home, "stop", json!({ "name": endpoint.name }));
            let answer = client.call(&endpoint.tool("echo"), json!({ "message": "x" }));
            received.push(answer["error"].clone());
            home.finish();
            received
        });
    }
}

#[test]
fn names_used_at_once_are_kept_apart() {
    for flags in [&["--tasks"][..], &["--tasks", "--era", "modern"]] {
        let home = home_of_names(flags, "");
        home.daemon();
        ready(&home);
        let (both, hidden) = (client(&home), ENDPOINTS[2].client(&home));
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
        // Unsubscribing one name keeps the other, and other clients.
        both.request("resources/unsubscribe", json!({ "uri": uri }));
        hidden.call_text("b__bump", json!({}));
        assert_eq!(both.wait_notification(UPDATED)["params"]["uri"], "xy://a/test://counter");
        assert_eq!(hidden.wait_notification(UPDATED)["params"]["uri"], uri);
        both.request("resources/unsubscribe", json!({ "uri": "xy://a/test://counter" }));
        hidden.call_text("b__bump", json!({}));
        assert_eq!(hidden.wait_notification(UPDATED)["params"]["uri"], uri);
        linger(A_WHILE);
        let notifications = both.notifications();
        assert!(!notifications.iter().any(|it| it["method"] == UPDATED), "{notifications:?}");
        if flags.len() == 1 {
            let begin = |client: &McpClient, name: &str| {
                let params = json!({ "name": format!("{name}__job"), "arguments": {}, "task": {} });
                let begun = client.request("tools/call", params);
                begun["result"]["task"]["taskId"].as_str().unwrap().to_owned()
            };
            let mine = [begin(&both, "a"), begin(&both, "b")];
            let other_task = begin(&hidden, "b");
            let ids = |client: &McpClient| -> Vec<String> {
                let listed = client.request("tasks/list", json!({}));
                let all = listed["result"]["tasks"].as_array().unwrap();
                all.iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect()
            };
            assert_eq!(ids(&both), mine);
            assert_eq!(ids(&hidden), [other_task]);
            let other = hidden.request("tasks/get", json!({ "taskId": mine[1] }));
            assert_eq!(other["error"]["code"], -32602, "{other}");
        }
        assert_eq!(servers_alive(&home).len(), 1);
        home.finish();
    }
}

#[test]
fn isolated_instance_has_both_names() {
    let home = home_of_names(&["--tasks"], "isolation \"client\"\n");
    home.daemon();
    assert_same_at(&ENDPOINTS, |endpoint| {
        let client = endpoint.client(&home);
        who(&client, endpoint.name);
        home.wait_until("the lists of the own instance are known", || {
            let listed = listed(endpoint, &client, "resources/list", "resources");
            !listed.as_array().unwrap().is_empty()
        });
        let mut received = vec![listed(endpoint, &client, "resources/list", "resources")];
        received.extend(subscription_results(endpoint, &client));
        received.extend(task_results(endpoint, &client));
        assert_eq!(servers_alive(&home).len(), 1);
        client.close();
        home.wait_until("it goes with its client", || servers_alive(&home).is_empty());
        received
    });
    let one = client(&home);
    assert_eq!(who(&one, "a"), who(&one, "b"));
    home.finish();
}

#[test]
fn status_shows_one_process_and_waiting_calls_per_name() {
    let home = home_of_names(&[], "");
    home.daemon();
    ready(&home);
    let clients = [client(&home), ENDPOINTS[2].client(&home)];
    who(&clients[0], "a");
    who(&clients[1], "b");
    let message_of = |name: &str| {
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
    assert_eq!(message_of("a"), message_of("b"));
    assert_eq!((&message_of("b")[0], &message_of("b")[4]), (&json!("2025-11-25"), &json!(2)));
    // Calls are counted under the name of the call.
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
    home.wait_until("the calls wait", || {
        (&status(&home, "a")["parked"], &status(&home, "b")["parked"]) == (&json!(1), &json!(2))
    });
    for (client, call) in calls {
        client.cancel(&json!(call));
    }
    home.wait_until("no call waits", || {
        (&status(&home, "a")["parked"], &status(&home, "b")["parked"]) == (&json!(0), &json!(0))
    });
    home.finish();
}

#[test]
fn shared_process_sleeps_when_neither_name_is_used() {
    let home = home_of_names(&["--tasks"], "start \"lazy\"\nidle-stop \"1500ms\"\n");
    home.daemon();
    let clients = ENDPOINTS.map(|endpoint| (endpoint, endpoint.client(&home)));
    for (endpoint, client) in &clients {
        let uri = endpoint.uri("test://counter");
        client.request("resources/subscribe", json!({ "uri": uri }));
        let pid = who(client, endpoint.name);
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home), [pid], "the subscription of {endpoint:?} keeps it");
        client.request("resources/unsubscribe", json!({ "uri": uri }));
        let begun =
            json!({ "name": endpoint.tool("job"), "arguments": {}, "task": { "ttl": 60_000 } });
        let call =
            client.start_call(&endpoint.tool("slow_echo"), json!({ "message": "x", "ms": 4000 }));
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home), [pid], "a call of {endpoint:?} keeps it");
        client.wait_answer(call);
        home.wait_for_state("a", "asleep");
        home.wait_for_state("b", "asleep");
        assert_eq!(servers_alive(&home), [] as [u32; 0]);
        let client = endpoint.client(&home);
        let answer = client.request("tools/call", begun);
        assert!(answer["result"]["task"].is_object(), "{answer}");
        linger(5 * A_WHILE);
        assert_eq!(servers_alive(&home).len(), 1, "a task of {endpoint:?} keeps it");
        drop(client); // Now no client can ask about the task.
        ask(&home, "restart", json!({ "name": endpoint.name }));
    }
    home.finish();
}

#[test]
fn shared_process_survives_a_killed_daemon_with_one_name_stopped() {
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
        // Started again it is the same process, also for the next daemon.
        ask(&home, "start", json!({ "name": stopped }));
        assert_eq!(running(&home, stopped), pid);
        daemon.kill9();
        home.daemon();
        assert_eq!((running(&home, "a"), running(&home, "b")), (pid, pid));
        home.finish();
    }
}

#[test]
fn shared_process_survives_a_replaced_daemon_with_one_name_stopped() {
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
        assert_eq!(servers_alive(&home), [pid], "there is one process, the same");
        if let Some(stopped) = stopped {
            ask(&home, "start", json!({ "name": stopped }));
            assert_eq!(running(&home, stopped), pid);
        }
        home.finish();
    }
}

#[test]
fn subscriptions_and_waiting_calls_move_to_the_next_process() {
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
    home.wait_until("one process is left", || servers_alive(&home).len() == 1);
    one.notifications();
    home.wait_until("the subscription has moved", || {
        one.call_text("b__who", json!({})).contains("test://counter")
    });
    one.call_text("b__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], uri);
    // A name with a new key gets its own process, and the other name keeps its process.
    serve(&home, "c", &[], KEY);
    ask(&home, "reload", json!({}));
    let pid = running(&home, "b");
    assert_eq!(running(&home, "c"), pid);
    one.request("resources/subscribe", json!({ "uri": "xy://c/test://counter" }));
    serve(&home, "c", &[], "share-key \"l\"\n");
    ask(&home, "reload", json!({}));
    home.wait_until("there are two processes", || {
        running(&home, "c") != pid && servers_alive(&home).len() == 2
    });
    assert_eq!(running(&home, "b"), pid);
    home.wait_until("the subscription has moved", || {
        one.call_text("c__who", json!({})).contains("test://counter")
    });
    one.notifications();
    one.call_text("c__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], "xy://c/test://counter");
    // If the owner gets a new key, its process goes on.
    serve(&home, "b", &[], "share-key \"m\"\n");
    ask(&home, "reload", json!({}));
    assert_eq!(running(&home, "b"), pid);
    signal(pid, Signal::KILL);
    running_after(&home, "b", 1);
    home.finish();
}
