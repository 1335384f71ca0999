//! Tasks: each is its client's alone, for as long as its server lives.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use crate::stage::{
    capabilities, capable, code, heard, home, linger, local, local_of, ready, serve, serve_noting,
    serve_with, told, words,
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

/// Begins a task; its id.
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
fn what_servers_can_do_with_tasks_is_told_and_done() {
    let home = home_of_tasks();
    let client = crate::stage::stranger(&home);
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
fn nobody_else_finds_a_task_in_either_view() {
    let home = home_of_tasks();
    let (one, other) = (local(&home), local(&home));
    let (plain, stranger) = (local_of(&home, "a"), local_of(&home, "a"));
    let mine = begin(&one, "a__job", &json!({ "message": "mine" }));
    let theirs = begin(&plain, "job", &json!({ "message": "theirs" }));
    for client in [&other, &stranger] {
        for task in [&mine, &theirs, &"never".to_owned()] {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                let answer = client.request(method, json!({ "taskId": task }));
                assert_eq!(code(&answer), -32602, "{answer}");
                assert!(words(&answer).contains("not found"), "{answer}");
            }
        }
        assert_eq!(ids(&client.request("tasks/list", json!({}))), [""; 0]);
    }
    assert_eq!(text(&result(&plain, &theirs)), "theirs");
    assert_eq!(text(&result(&one, &mine)), "mine");
    let listed = plain.request("tasks/list", json!({}));
    assert_eq!((ids(&listed), &listed["result"]["kept"]), (vec![theirs], &json!(1.5)));
    assert_eq!(ids(&one.request("tasks/list", json!({}))), [mine]);
    // At another server it is not found either.
    let elsewhere = local_of(&home, "b");
    assert_eq!(code(&elsewhere.request("tasks/get", json!({ "taskId": "first-1" }))), -32602);
    home.finish();
}

#[test]
fn what_is_said_about_a_task_is_its_owners_though_others_call() {
    let home = home_of_tasks();
    let (one, other) = (capable(&home), capable(&home));
    one.answer_with(|question| {
        let said = question["params"]["message"].clone();
        Some(Ok(json!({ "action": "accept", "content": { "name": said } })))
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
fn what_a_task_says_without_its_name_is_not_taken_for_somebody_elses() {
    let home = home_of_tasks();
    let (one, other) = (local(&home), local(&home));
    let arguments = json!({ "message": "whose is this", "ms": 50, "complain": "unmarked" });
    let task = begin(&one, "a__job", &arguments);
    let busy = other.start_call("a__never", json!({}));
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("whose is this"))
    });
    result(&one, &task);
    // It is over, so there is no doubt any more.
    other.call_text("a__log", json!({ "level": "error", "message": "other's" }));
    let heard = other.wait_notification("notifications/message");
    assert_eq!(heard["params"]["data"], "other's");
    other.cancel(&json!(busy));
    home.finish();
}

#[test]
fn a_task_ends_with_its_server_and_that_is_said() {
    let home = home_of_tasks();
    let (one, other) = (local(&home), local(&home));
    let task = begin(&one, "a__job", &json!({ "ms": 60_000 }));
    let waiting = one.start_request("tasks/result", json!({ "taskId": task }));
    other.call("a__crash", json!({}));
    assert_eq!(code(&one.wait_answer(waiting)), -32010);
    let answer = one.request("tasks/get", json!({ "taskId": task }));
    assert_eq!(code(&answer), -32602, "{answer}");
    assert!(words(&answer).contains("ended"), "{answer}");
    assert_eq!(ids(&one.request("tasks/list", json!({}))), [""; 0]);
    // The next life gives the same id to somebody else.
    crate::stage::who_at_last(&home, &other, "a__who");
    assert_eq!(begin(&other, "a__job", &json!({ "message": "new" })), task);
    assert_eq!(code(&one.request("tasks/result", json!({ "taskId": task }))), -32602);
    assert_eq!(text(&result(&other, &task)), "new");
    home.finish();
}

#[test]
fn the_same_id_of_two_servers_is_not_guessed() {
    let home = home();
    for name in ["a", "b"] {
        serve(&home, name, &["--tasks", "--name", "same"]);
    }
    home.daemon();
    ready(&home, &["a", "b"]);
    let client = local(&home);
    let (one, other) = (begin(&client, "a__job", &json!({})), begin(&client, "b__job", &json!({})));
    assert_eq!(one, other);
    let answer = client.request("tasks/get", json!({ "taskId": one }));
    assert_eq!(code(&answer), -32602);
    assert!(words(&answer).contains("several servers"), "{answer}");
    home.finish();
}

#[test]
fn a_long_task_keeps_nobody_waiting_at_a_server_that_asks() {
    let home = home_of_tasks();
    let (one, other) = (capable(&home), capable(&home));
    one.answer_with(|_| Some(Ok(json!({ "action": "decline" }))));
    one.call_text("a__ask_elicitation", json!({}));
    let task = begin(&one, "a__job", &json!({ "ms": 60_000 }));
    let waiting = one.start_request("tasks/result", json!({ "taskId": task }));
    assert_eq!(other.call_text("a__echo", json!({ "message": "x" })), "x");
    one.request("tasks/cancel", json!({ "taskId": task }));
    assert_eq!(text(&one.wait_answer(waiting)), "cancelled");
    home.finish();
}

/// A client that does what servers ask as tasks.
fn helper(home: &Home) -> xy_testkit::McpSocket {
    let client = crate::stage::stranger(home);
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
fn what_a_client_does_as_a_task_is_for_the_server_that_asked() {
    let home = home();
    for name in ["own", "other"] {
        let diary = crate::stage::diary_file(&home, name);
        let flags = ["--talks", "--diary", diary.to_str().unwrap()];
        serve_with(&home, name, &flags, "isolation \"client\"\n");
    }
    home.daemon();
    let client = helper(&home);
    let asks = |server: &str, method: &str, params: Value| {
        let arguments = json!({ "method": method, "params": params.to_string() });
        client.call(&format!("{server}__ask"), arguments)
    };
    let elicit =
        |server, task| asks(server, "elicitation/create", json!({ "message": task, "task": {} }));
    assert!(text(&elicit("own", "own-1")).contains("own-1"));
    assert!(text(&elicit("other", "own-2")).contains("own-2"));
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let mine = asks("own", method, json!({ "taskId": "own-1" }));
        assert_ne!(mine["result"]["isError"], true, "{mine}");
        for not_its_own in ["own-2", "private"] {
            let answer = asks("own", method, json!({ "taskId": not_its_own }));
            assert!(text(&answer).contains("-32602"), "{answer}");
        }
    }
    let listed: Value = serde_json::from_str(text(&asks("own", "tasks/list", json!({})))).unwrap();
    let only = json!([{ "taskId": "own-1", "status": "working", "ttl": null, "n": 1 }]);
    assert_eq!((&listed["tasks"], &listed["kept"]), (&only, &json!(1)));
    client.notify(STATUS, json!({ "taskId": "own-1", "status": "completed" }));
    client.notify(STATUS, json!({ "taskId": "private", "status": "completed" }));
    let told_of = |name| -> Vec<Value> {
        let all = heard(&home, name).into_iter().filter(|it| it["method"] == STATUS);
        all.map(|it| it["params"]["taskId"].clone()).collect()
    };
    home.wait_until("it is told", || told_of("own") == [json!("own-1")]);
    linger();
    assert_eq!((told_of("own").len(), told_of("other").len()), (1, 0));
    home.finish();
}

#[test]
fn a_client_without_tasks_is_not_asked_about_any() {
    let home = home();
    serve_with(&home, "own", &["--talks"], "isolation \"client\"\n");
    serve_noting(&home, "shared", &["--talks"]);
    home.daemon();
    ready(&home, &["shared"]);
    let client = capable(&home);
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
    assert_eq!(told(&client, STATUS), 0);
    home.finish();
}
