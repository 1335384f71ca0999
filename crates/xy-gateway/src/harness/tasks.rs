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
