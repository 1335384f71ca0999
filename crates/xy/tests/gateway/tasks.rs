//! Tasks of legacy clients: each belongs to one client, as long as its server lives.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, free_port};

use crate::fixtures::{
    capabilities, capable_client, error_code, error_message, home, http_client, linger,
    local_client, notification_count, ready, received, serve, serve_recorded, serve_with,
    single_server_client,
};

const STATUS: &str = "notifications/tasks/status";

#[track_caller]
fn home_of_tasks() -> Home {
    let home = home();
    serve(&home, "a", &["--tasks", "--name", "first"]);
    serve(&home, "b", &["--tasks", "--name", "second"]);
    serve(&home, "c", &[]);
    home.daemon();
    ready(&home, &["a", "b", "c"]);
    home
}

/// Starts a task, and returns its id.
#[track_caller]
fn begin(client: &McpClient, tool: &str, arguments: &Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 } });
    let answer = client.request("tools/call", params);
    answer["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[track_caller]
fn result(client: &McpClient, task: &str) -> Value {
    client.request("tasks/result", json!({ "taskId": task }))
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn ids(answer: &Value) -> Vec<String> {
    let all = answer["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn task_capabilities_of_servers_are_offered_and_work() {
    let home = home_of_tasks();
    let client = crate::fixtures::uninitialized_client(&home);
    let hello = client.initialize();
    let all = json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
    assert_eq!(hello["capabilities"]["tasks"], all);
    let tools = client.list("tools/list", "tools");
    let job = tools.iter().find(|it| it["name"] == "a__job").unwrap();
    assert_eq!(job["execution"], json!({ "taskSupport": "optional" }));
    let (one, other) = (
        begin(&client, "a__job", &json!({ "message": "one" })),
        begin(&client, "b__job", &json!({ "message": "other" })),
    );
    assert_eq!(text(&result(&client, &one)), "one");
    assert_eq!(text(&result(&client, &other)), "other");
    let got = client.request("tasks/get", json!({ "taskId": one }));
    assert_eq!(got["result"]["status"], "completed");
    assert_eq!(ids(&client.request("tasks/list", json!({}))), [one, other]);
    let working = begin(&client, "a__job", &json!({ "ms": 60_000 }));
    let cancelled = client.request("tasks/cancel", json!({ "taskId": working }));
    assert_eq!(cancelled["result"]["status"], "cancelled");
    home.finish();
}

#[test]
fn task_is_hidden_from_other_clients() {
    let home = home_of_tasks();
    let (one, other) = (local_client(&home), local_client(&home));
    let (plain, stranger) = (single_server_client(&home, "a"), single_server_client(&home, "a"));
    let mine = begin(&one, "a__job", &json!({ "message": "mine" }));
    let theirs = begin(&plain, "job", &json!({ "message": "theirs" }));
    for client in [&other, &stranger] {
        for task in [&mine, &theirs, &"never".to_owned()] {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                let answer = client.request(method, json!({ "taskId": task }));
                assert_eq!(error_code(&answer), -32602, "{answer}");
                assert!(error_message(&answer).contains("not found"), "{answer}");
            }
        }
        assert_eq!(ids(&client.request("tasks/list", json!({}))), [""; 0]);
    }
    assert_eq!(text(&result(&plain, &theirs)), "theirs");
    assert_eq!(text(&result(&one, &mine)), "mine");
    let listed = plain.request("tasks/list", json!({}));
    assert_eq!((ids(&listed), &listed["result"]["kept"]), (vec![theirs], &json!(1.5)));
    assert_eq!(ids(&one.request("tasks/list", json!({}))), [mine]);
    // The task is not found at another server either.
    let elsewhere = single_server_client(&home, "b");
    assert_eq!(error_code(&elsewhere.request("tasks/get", json!({ "taskId": "first-1" }))), -32602);
    home.finish();
}

#[test]
fn tasks_of_a_killed_daemon_are_unknown_in_a_session_that_goes_on() {
    let home = home();
    let listen = format!("gateway {{ listen \"127.0.0.1:{}\" }}\n", free_port());
    home.write_config("xy.kdl", &listen);
    serve(&home, "a", &["--tasks", "--name", "first"]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = http_client(&home);
    let session = client.session();
    let done = begin(&client, "a__job", &json!({ "message": "done" }));
    assert_eq!(text(&result(&client, &done)), "done");
    let working = begin(&client, "a__job", &json!({ "ms": 60_000 }));
    daemon.kill9();
    let _next = home.daemon();
    ready(&home, &["a"]);
    client.break_connections();
    for task in [&done, &working] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let answer = client.request(method, json!({ "taskId": task }));
            assert_eq!(error_code(&answer), -32602, "{answer}");
            assert!(error_message(&answer).contains("not found"), "{answer}");
        }
    }
    assert_eq!(ids(&client.request("tasks/list", json!({}))), [""; 0]);
    assert_eq!(client.session(), session, "the session goes on");
    let fresh = begin(&client, "a__job", &json!({ "message": "fresh" }));
    assert_eq!(text(&result(&client, &fresh)), "fresh");
    client.close();
    home.finish();
}

#[test]
fn messages_of_a_task_go_to_its_owner() {
    let home = home_of_tasks();
    let (one, other) = (capable_client(&home), capable_client(&home));
    one.answer_with(|question| {
        let name = question["params"]["message"].clone();
        Some(Ok(json!({ "action": "accept", "content": { "name": name } })))
    });
    let busy = other.start_call("a__never", json!({}));
    let params = json!({
        "name": "a__job", "task": {}, "_meta": { "progressToken": "p-1" },
        "arguments": { "message": "mine", "ms": 100, "ask": "elicitation", "complain": "yes" },
    });
    let begun = one.request("tools/call", params);
    let task = begun["result"]["task"]["taskId"].as_str().unwrap();
    let progress = one.wait_notification("notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "p-1");
    assert_eq!(one.wait_notification("notifications/message")["params"]["data"], "mine");
    let status = one.wait_notification(STATUS);
    assert_eq!(
        (&status["params"]["taskId"], &status["params"]["status"]),
        (&json!(task), &json!("input_required"))
    );
    assert!(text(&result(&one, task)).contains("mine"));
    assert_eq!(one.wait_notification(STATUS)["params"]["status"], "completed");
    linger();
    assert_eq!(other.notifications(), [Value::Null; 0]);
    other.cancel(&json!(busy));
    home.finish();
}

#[test]
fn unmarked_messages_of_a_task_reach_no_other_client() {
    let home = home_of_tasks();
    let (one, other) = (local_client(&home), local_client(&home));
    let arguments = json!({ "message": "whose is this", "ms": 50, "complain": "unmarked" });
    let task = begin(&one, "a__job", &arguments);
    let busy = other.start_call("a__never", json!({}));
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("whose is this"))
    });
    result(&one, &task);
    // The task has ended, so attribution is clear again.
    other.call_text("a__log", json!({ "level": "error", "message": "other's" }));
    let received = other.wait_notification("notifications/message");
    assert_eq!(received["params"]["data"], "other's");
    other.cancel(&json!(busy));
    home.finish();
}

#[test]
fn task_ends_with_its_server() {
    let home = home_of_tasks();
    let (one, other) = (local_client(&home), local_client(&home));
    let task = begin(&one, "a__job", &json!({ "ms": 60_000 }));
    let waiting = one.start_request("tasks/result", json!({ "taskId": task }));
    other.call("a__crash", json!({}));
    assert_eq!(error_code(&one.wait_answer(waiting)), -32010);
    let answer = one.request("tasks/get", json!({ "taskId": task }));
    assert_eq!(error_code(&answer), -32602, "{answer}");
    assert!(error_message(&answer).contains("ended"), "{answer}");
    assert_eq!(ids(&one.request("tasks/list", json!({}))), [""; 0]);
    // The next process gives the same id to another client.
    crate::fixtures::who_once_up(&home, &other, "a__who");
    assert_eq!(begin(&other, "a__job", &json!({ "message": "new" })), task);
    assert_eq!(error_code(&one.request("tasks/result", json!({ "taskId": task }))), -32602);
    assert_eq!(text(&result(&other, &task)), "new");
    home.finish();
}

#[test]
fn task_id_of_two_servers_is_ambiguous() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &["--tasks", "--name", "same"]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local_client(&home);
    let (one, other) = (begin(&client, "a__job", &json!({})), begin(&client, "b__job", &json!({})));
    assert_eq!(one, other);
    let answer = client.request("tasks/get", json!({ "taskId": one }));
    assert_eq!(error_code(&answer), -32602);
    assert!(error_message(&answer).contains("several servers"), "{answer}");
    home.finish();
}

#[test]
fn long_task_does_not_block_other_clients() {
    let home = home_of_tasks();
    let (one, other) = (capable_client(&home), capable_client(&home));
    one.answer_with(|_| Some(Ok(json!({ "action": "decline" }))));
    one.call_text("a__ask_elicitation", json!({}));
    let task = begin(&one, "a__job", &json!({ "ms": 60_000 }));
    let waiting = one.start_request("tasks/result", json!({ "taskId": task }));
    assert_eq!(other.call_text("a__echo", json!({ "message": "x" })), "x");
    one.request("tasks/cancel", json!({ "taskId": task }));
    assert_eq!(text(&one.wait_answer(waiting)), "cancelled");
    home.finish();
}

/// Returns a client that answers server requests with tasks.
fn task_capable_client(home: &Home) -> xy_testkit::McpSocket {
    let client = crate::fixtures::uninitialized_client(home);
    let mut can = capabilities();
    can["tasks"] = json!({
        "list": {}, "cancel": {}, "requests": { "elicitation": { "create": {} } },
    });
    client.initialize_with(&can);
    client.answer_with(|question| {
        let task = |id| json!({ "taskId": id, "status": "working", "ttl": null, "n": 1 });
        let id = question["params"]["taskId"].clone();
        match question["method"].as_str()? {
            "elicitation/create" => {
                Some(Ok(json!({ "task": task(question["params"]["message"].clone()) })))
            }
            "tasks/get" | "tasks/cancel" => Some(Ok(task(id))),
            "tasks/result" => Some(Ok(json!({ "action": "accept" }))),
            "tasks/list" => {
                let all = ["own-1", "own-2", "private"].map(|id| task(json!(id)));
                Some(Ok(json!({ "tasks": all, "kept": 1 })))
            }
            _ => None,
        }
    });
    client
}

#[test]
fn task_of_a_client_belongs_to_the_asking_server() {
    let home = home();
    for name in ["own", "other"] {
        let input_log = crate::fixtures::input_log_file(&home, name);
        let flags = ["--talks", "--input-log", input_log.to_str().unwrap()];
        serve_with(&home, name, &flags, "isolation \"client\"\n");
    }
    home.daemon();
    let client = task_capable_client(&home);
    let send_request = |server: &str, method: &str, params: Value| {
        let arguments = json!({ "method": method, "params": params.to_string() });
        client.call(&format!("{server}__ask"), arguments)
    };
    let elicit = |server, task| {
        send_request(server, "elicitation/create", json!({ "message": task, "task": {} }))
    };
    assert!(text(&elicit("own", "own-1")).contains("own-1"));
    assert!(text(&elicit("other", "own-2")).contains("own-2"));
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let mine = send_request("own", method, json!({ "taskId": "own-1" }));
        assert_ne!(mine["result"]["isError"], true, "{mine}");
        for not_its_own in ["own-2", "private"] {
            let answer = send_request("own", method, json!({ "taskId": not_its_own }));
            assert!(text(&answer).contains("-32602"), "{answer}");
        }
    }
    let listed: Value =
        serde_json::from_str(text(&send_request("own", "tasks/list", json!({})))).unwrap();
    let only = json!([{ "taskId": "own-1", "status": "working", "ttl": null, "n": 1 }]);
    assert_eq!((&listed["tasks"], &listed["kept"]), (&only, &json!(1)));
    client.notify(STATUS, json!({ "taskId": "own-1", "status": "completed" }));
    client.notify(STATUS, json!({ "taskId": "private", "status": "completed" }));
    let told_of = |name| -> Vec<Value> {
        let all = received(&home, name).into_iter().filter(|it| it["method"] == STATUS);
        all.map(|it| it["params"]["taskId"].clone()).collect()
    };
    home.wait_until("the server gets the cancellation", || told_of("own") == [json!("own-1")]);
    linger();
    assert_eq!((told_of("own").len(), told_of("other").len()), (1, 0));
    home.finish();
}

#[test]
fn client_without_tasks_is_not_asked_about_any() {
    let home = home();
    serve_with(&home, "own", &["--talks"], "isolation \"client\"\n");
    serve_recorded(&home, "shared", &["--talks"]);
    home.daemon();
    ready(&home, &["shared"]);
    let client = capable_client(&home);
    for (server, method, expected) in [
        ("own", "tasks/list", "-32601"),
        ("own", "tasks/get", "-32602"),
        ("shared", "tasks/list", "-32601"),
        ("shared", "tasks/cancel", "-32602"),
    ] {
        let arguments = json!({ "method": method, "params": r#"{"taskId":"x"}"# });
        let answer = client.call(&format!("{server}__ask"), arguments);
        assert!(text(&answer).contains(expected), "{server} {method} {answer}");
    }
    assert_eq!(notification_count(&client, STATUS), 0);
    home.finish();
}
