//! Tasks of legacy clients at a shared server.

use super::*;

/// Calls the server's only tool as a task.
fn begin(client: &TestClient, id: &str) {
    let meta = json!({ "progressToken": format!("token of {id}") });
    let params = json!({ "name": "s__x", "arguments": id, "task": {}, "_meta": meta });
    client.ask(&json!(id), "tools/call", &params);
}

impl Harness {
    /// Sends the server's response that a task has started.
    fn answer_with_task(&self, upstream_id: u64, task: &str) {
        let task = json!({ "taskId": task, "status": "working", "ttl": 60_000 });
        self.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": { "task": task } }));
    }

    fn notify(&self, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }
}

#[tokio::test(start_paused = true)]
async fn task_of_a_cancelled_call_is_cancelled_and_unowned() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        begin(&a, "a");
        let (upstream_id, _) = harness.calls()[0];
        a.cancel("a");
        harness.sent();
        harness.answer_with_task(upstream_id, "t");
        let sent = harness.sent();
        assert_eq!(sent[0]["method"], "tasks/cancel");
        assert_eq!(sent[0]["params"], json!({ "taskId": "t" }));
        assert!(a.received().is_empty());
        b.call("b");
        harness.notify("notifications/message", &json!({ "level": "error", "data": "whose?" }));
        assert!(b.received().is_empty(), "the server may still work on it");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_progress_keeps_the_clients_token() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        begin(&a, "a");
        let (upstream_id, _) = harness.calls()[0];
        harness.answer_with_task(upstream_id, "t");
        b.call("b");
        a.received();
        harness.notify(
            "notifications/progress",
            &json!({ "progressToken": upstream_id, "progress": 1 }),
        );
        assert_eq!(a.received()[0]["params"]["progressToken"], "token of a");
        harness.notify("notifications/progress", &json!({ "progressToken": 999, "progress": 1 }));
        assert!(a.received().is_empty() && b.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_client_are_limited() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        for number in 0..1000 {
            begin(&a, "one");
            let (upstream_id, _) = harness.calls()[0];
            harness.answer_with_task(upstream_id, &number.to_string());
        }
        a.received();
        begin(&a, "too many");
        assert!(a.error().contains("1000 tasks"));
        assert_eq!(shares::limits_hit(&harness.router), [("tasks of one client", Some(0))]);
        begin(&b, "b");
        assert_eq!(harness.calls().len(), 1);
        // The tasks have expired, including the grace period of the server.
        advance_time(121 * SECOND).await;
        begin(&a, "again");
        assert_eq!(harness.calls().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn message_about_an_unknown_task_reaches_no_client() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let a = harness.client(&json!({ "sampling": {} }));
        a.call("a");
        harness.sent();
        let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": "gone" } });
        let params = json!({ "level": "error", "data": "somebody's", "_meta": related });
        harness.notify("notifications/message", &params);
        harness
            .notify("notifications/tasks/status", &json!({ "taskId": "gone", "status": "failed" }));
        let (method, params) = ("sampling/createMessage", json!({ "_meta": related }));
        harness.send(&json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params }));
        assert!(a.received().is_empty());
        assert_eq!(harness.sent()[0]["error"]["code"], -32603);
        assert!(harness.logged().await.contains("somebody's"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn message_of_a_task_reaches_only_its_owner() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        begin(&a, "a");
        harness.answer_with_task(harness.calls()[0].0, "t");
        b.call("b");
        a.received();
        let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": "t" } });
        let method = "notifications/message";
        harness.notify(method, &json!({ "level": "error", "data": "a's", "_meta": related }));
        assert_eq!(a.received()[0]["params"]["data"], "a's");
        harness.notify(method, &json!({ "level": "error", "data": "of the task or of b" }));
        assert!(a.received().is_empty() && b.received().is_empty());
        let status = json!({ "taskId": "t", "status": "completed" });
        harness.notify("notifications/tasks/status", &status);
        assert_eq!(a.received()[0]["params"], status);
        harness.notify(method, &json!({ "level": "error", "data": "b's" }));
        assert_eq!((a.received().len(), b.received().len()), (0, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_that_waits_for_a_task_blocks_no_other() {
    run_local(async {
        let harness = Harness::begin().await;
        harness.ask("first", "roots/list"); // From now on clients take turns.
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        harness.sent();
        begin(&a, "a");
        harness.answer_with_task(harness.calls()[0].0, "t");
        a.ask(&json!("wait"), "tasks/result", &json!({ "taskId": "t" }));
        assert_eq!(harness.sent()[0]["method"], "tasks/result");
        b.call("b");
        assert_eq!(harness.calls().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_of_a_client_belongs_to_the_asking_server() {
    run_local(async {
        let (harness, a) = Harness::with_isolated_client().await;
        let can = json!({
            "elicitation": {},
            "tasks": { "list": {}, "requests": { "elicitation": { "create": {} } } },
        });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": can });
        a.ask(&json!("hello"), "initialize", &params);
        a.received();
        // Returns what the server receives once the client has answered with this result.
        let ask = |method: &str, params: Value, result: Value| {
            harness.sent();
            harness
                .send(&json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params }));
            if let Some(question) = a.received().pop() {
                a.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }));
            }
            harness.sent().remove(0)
        };
        let task = |id: &str| json!({ "taskId": id, "status": "working", "ttl": null });
        ask("elicitation/create", json!({ "task": {} }), json!({ "task": task("own") }));
        let got = ask("tasks/get", json!({ "taskId": "own" }), task("own"));
        assert_eq!(got["result"], task("own"));
        let private = ask("tasks/get", json!({ "taskId": "private" }), task("private"));
        assert_eq!(private["error"]["code"], -32602);
        let all = json!({ "tasks": [task("own"), task("private")], "kept": 1 });
        let listed = ask("tasks/list", json!({}), all);
        assert_eq!(listed["result"], json!({ "tasks": [task("own")], "kept": 1 }));

        let name = ServerName::new("t").unwrap();
        let other = ServerSettings { name, ..settings(CallRules::default()) };
        let other = harness.router.ensure_server(&Arc::new(other));
        let ((events, _), sent) = (mpsc::channel(64), Rc::new(RecordedWire::default()));
        let (router, introduction) = (&harness.router, legacy());
        let other =
            start_upstream(router, &other, events, sent.clone(), false, &introduction).await;
        sent.messages.take();
        let params = json!({ "taskId": "own" });
        let question =
            json!({ "jsonrpc": "2.0", "id": "q", "method": "tasks/get", "params": params });
        other.handle(question.to_string().as_bytes(), None);
        let refused: Value = serde_json::from_slice(&sent.messages.take().remove(0)).unwrap();
        assert_eq!(refused["error"]["code"], -32602);
    })
    .await;
}
