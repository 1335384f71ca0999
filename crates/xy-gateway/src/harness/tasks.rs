//! Tasks, and what a shared server says of them.

use super::*;

/// Calls the server's only tool as a task.
fn begin(client: &Visitor, id: &str) {
    let meta = json!({ "progressToken": format!("token of {id}") });
    let params = json!({ "name": "s__x", "arguments": id, "task": {}, "_meta": meta });
    client.ask(&json!(id), "tools/call", &params);
}

impl Harness {
    /// The server answers that a task is begun.
    fn begun(&self, ours: u64, task: &str) {
        let task = json!({ "taskId": task, "status": "working", "ttl": 60_000 });
        self.say(&json!({ "jsonrpc": "2.0", "id": ours, "result": { "task": task } }));
    }

    fn tell(&self, method: &str, params: &Value) {
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_cancelled_before_it_has_a_name_is_nobodys_and_ended() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        begin(&a, "a");
        let (ours, _) = play.calls()[0];
        a.cancel("a");
        play.sent();
        play.begun(ours, "t");
        let sent = play.sent();
        assert_eq!(sent[0]["method"], "tasks/cancel");
        assert_eq!(sent[0]["params"], json!({ "taskId": "t" }));
        assert!(a.heard().is_empty());
        b.call("b");
        play.tell("notifications/message", &json!({ "level": "error", "data": "whose?" }));
        assert!(b.heard().is_empty(), "the server may still work on it");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_goes_on_under_the_clients_token_after_the_answer() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        begin(&a, "a");
        let (ours, _) = play.calls()[0];
        play.begun(ours, "t");
        b.call("b");
        a.heard();
        play.tell("notifications/progress", &json!({ "progressToken": ours, "progress": 1 }));
        assert_eq!(a.heard()[0]["params"]["progressToken"], "token of a");
        play.tell("notifications/progress", &json!({ "progressToken": 999, "progress": 1 }));
        assert!(a.heard().is_empty() && b.heard().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_so_many_tasks_are_kept_for_one_client() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        for number in 0..1000 {
            begin(&a, "one");
            let (ours, _) = play.calls()[0];
            play.begun(ours, &number.to_string());
        }
        a.heard();
        begin(&a, "too many");
        assert!(a.error().contains("1000 tasks"));
        begin(&b, "b");
        assert_eq!(play.calls().len(), 1);
        // Their time is over, and that of a server that keeps them a little longer.
        later(121 * SECOND).await;
        begin(&a, "again");
        assert_eq!(play.calls().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_names_an_unknown_task_is_nobodys_even_if_only_one_calls() {
    here(async {
        let mut play = Harness::begin().await;
        let a = play.client(&json!({ "sampling": {} }));
        a.call("a");
        play.sent();
        let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": "gone" } });
        let params = json!({ "level": "error", "data": "somebody's", "_meta": related });
        play.tell("notifications/message", &params);
        play.tell("notifications/tasks/status", &json!({ "taskId": "gone", "status": "failed" }));
        let (method, params) = ("sampling/createMessage", json!({ "_meta": related }));
        play.say(&json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params }));
        assert!(a.heard().is_empty());
        assert_eq!(play.sent()[0]["error"]["code"], -32603);
        assert!(play.logged().await.contains("somebody's"));
    })
    .await;
}
