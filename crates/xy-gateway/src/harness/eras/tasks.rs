//! Tasks between modern clients and modern servers, at the endpoint of all servers.

use xy_mcp::modern::SUBSCRIPTION;

use super::*;
use crate::ownership::MAX_TASKS;

const TASKING: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}}"#;

/// Returns params of a client that supports tasks.
fn with_tasks(more: &Value) -> Value {
    let mut params = json!({ "_meta": meta(&can_tasks(), &json!({})) });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn can_tasks() -> Value {
    json!({ "extensions": { modern::TASKS: {} } })
}

/// A second server.
struct OtherServer {
    upstream: Rc<Upstream>,
    sent: Rc<RecordedWire>,
}

impl Harness {
    async fn tasking() -> Self {
        let introduction = Introduction::discovered(TASKING).unwrap();
        Self::with_introduction(CallRules::default(), false, &introduction).await
    }

    async fn add_server(&self, name: &str, introduction: &Introduction) -> OtherServer {
        let name = ServerName::new(name).unwrap();
        let settings = ServerSettings { name, ..settings(CallRules::default()) };
        let server = self.router.ensure_server(&Arc::new(settings));
        let (events, _) = mpsc::channel(64);
        let sent = Rc::new(RecordedWire::default());
        let upstream =
            start_upstream(&self.router, &server, events, sent.clone(), false, introduction).await;
        OtherServer { upstream, sent }
    }

    /// Has a client of this token call a tool, which the server answers with a task.
    #[track_caller]
    fn create_task(&self, who: u64, task: &str) {
        let client =
            self.modern_request(who, 1, "tools/call", &with_tasks(&json!({ "name": "s__x" })));
        let sent = self.sent();
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks(), "{sent:?}");
        self.send(&task_of(&sent[0]["id"], task));
        let received = client.received();
        assert_eq!(
            (&received[0]["id"], &received[0]["result"]["taskId"]),
            (&json!(1), &json!(task))
        );
        client.client_session.close();
    }

    /// Sends a request about a task from a client of this token.
    fn task_request(&self, who: u64, method: &str, task: &str) -> TestClient {
        self.modern_request(who, 2, method, &with_tasks(&json!({ "taskId": task })))
    }

    /// Has a client of this token listen to tasks, of which the server accepts some.
    async fn listen_to_tasks(&self, who: u64, tasks: &[&str], accepted: &[&str]) -> TestClient {
        let inputs = json!({ "notifications": { "taskIds": tasks } });
        let client = self.modern_request(who, 9, "subscriptions/listen", &with_tasks(&inputs));
        advance_time(Duration::ZERO).await;
        for request in self.sent() {
            if request["method"] == "subscriptions/listen" {
                self.accept(&request["id"], accepted);
            }
        }
        advance_time(Duration::ZERO).await;
        client
    }

    fn accept(&self, upstream_id: &Value, tasks: &[&str]) {
        let params = json!({ "_meta": { SUBSCRIPTION: upstream_id }, "notifications": { "taskIds": tasks } });
        let method = "notifications/subscriptions/acknowledged";
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a task's status from the server.
    fn report_status(&self, task: &str, status: &str) {
        let params = json!({ "taskId": task, "status": status, "_meta": { SUBSCRIPTION: 77 } });
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": params }));
    }

    /// Keeps listening to the server.
    async fn keep_listening_to_server(&self) {
        let upstream = self.upstream.clone();
        tokio::task::spawn_local(async move { upstream.keep_listening().await });
        advance_time(Duration::ZERO).await;
    }
}

fn task_of(upstream_id: &Value, task: &str) -> Value {
    let result =
        json!({ "resultType": "task", "taskId": task, "status": "working", "ttlMs": 60_000 });
    json!({ "jsonrpc": "2.0", "id": upstream_id, "result": result })
}

#[tokio::test(start_paused = true)]
async fn task_requests_go_to_its_server_for_its_token_only() {
    run_local(async {
        let harness = Harness::tasking().await;
        let other = harness.add_server("t", &Introduction::discovered(TASKING).unwrap()).await;
        harness.create_task(1, "a");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let client = harness.task_request(1, method, "a");
            let sent = harness.sent();
            assert_eq!(
                (&sent[0]["method"], &sent[0]["params"]["taskId"]),
                (&json!(method), &json!("a"))
            );
            let result =
                json!({ "resultType": "complete", "taskId": "a", "status": "working", "x": 1.5 });
            harness.send(&json!({ "jsonrpc": "2.0", "id": sent[0]["id"], "result": result }));
            assert_eq!(client.received()[0]["result"], result);
        }
        assert!(other.sent.messages.borrow().is_empty(), "the other server is not involved");
        for (who, task) in [(2, "a"), (1, "b"), (1, "")] {
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let client = harness.task_request(who, method, task);
                assert_eq!(client.code(), -32602, "{who} {task}");
            }
        }
        assert!(harness.sent().is_empty(), "foreign tasks are not forwarded");
        for method in ["tasks/list", "tasks/result", "tasks/"] {
            assert_eq!(harness.task_request(1, method, "a").code(), -32601);
        }
        let odd = harness.modern_request(1, 2, "tasks/get", &with_tasks(&json!({ "taskId": 7 })));
        assert_eq!(odd.code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn local_clients_share_their_tasks() {
    run_local(async {
        let harness = Harness::tasking().await;
        let local = || {
            let view = View::Profile("default".to_owned());
            let entry = Entry {
                view,
                may_manage: false,
                lifetime: Lifetime::Session,
                principal: 0,
                bound: None,
            };
            let received = Rc::new(RecordedMessages::default());
            let client_session = harness.router.open(entry, received.clone()).unwrap();
            TestClient { client_session, received }
        };
        let first = local();
        first.ask(&json!(1), "tools/call", &with_tasks(&json!({ "name": "s__x" })));
        harness.send(&task_of(&harness.sent()[0]["id"], "a"));
        first.client_session.close();
        let second = local();
        second.ask(&json!(1), "tasks/get", &with_tasks(&json!({ "taskId": "a" })));
        assert_eq!(harness.sent()[0]["method"], "tasks/get");
        assert_eq!(
            harness.task_request(1, "tasks/get", "a").code(),
            -32602,
            "another token is another owner"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_id_of_two_servers_is_ambiguous() {
    run_local(async {
        let harness = Harness::tasking().await;
        let other = harness.add_server("t", &Introduction::discovered(TASKING).unwrap()).await;
        harness.create_task(1, "same");
        harness.modern_request(1, 3, "tools/call", &with_tasks(&json!({ "name": "t__x" })));
        let line = other.sent.messages.take().remove(0);
        let request: Value = serde_json::from_slice(&line).unwrap();
        other.upstream.handle(task_of(&request["id"], "same").to_string().as_bytes(), None);
        assert!(harness.task_request(1, "tasks/get", "same").error().contains("several servers"));
        assert!(harness.sent().is_empty() && other.sent.messages.borrow().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_id_given_to_two_tokens_belongs_to_neither() {
    run_local(async {
        let harness = Harness::tasking().await;
        harness.create_task(1, "same");
        harness.create_task(2, "same");
        for who in [1, 2] {
            assert_eq!(harness.task_request(who, "tasks/get", "same").code(), -32602);
        }
        assert!(harness.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_ends_with_its_process() {
    run_local(async {
        let mut harness = Harness::tasking().await;
        harness.create_task(1, "a");
        harness.restart().await;
        assert!(harness.task_request(1, "tasks/get", "a").error().contains("ended with it"));
        assert!(harness.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn expired_task_is_forgotten_unless_its_server_extends_it() {
    run_local(async {
        let harness = Harness::tasking().await;
        harness.create_task(1, "short");
        harness.create_task(1, "long");
        harness.task_request(1, "tasks/get", "long");
        let result = json!({ "taskId": "long", "status": "working", "ttlMs": 600_000 });
        harness.send(&json!({ "jsonrpc": "2.0", "id": harness.sent()[0]["id"], "result": result }));
        advance_time(121 * SECOND).await;
        harness.create_task(1, "new"); // Expired tasks are removed when a task is added.
        assert_eq!(harness.task_request(1, "tasks/get", "short").code(), -32602);
        harness.task_request(1, "tasks/get", "long");
        assert_eq!(harness.sent().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_offered_only_if_server_and_client_support_them() {
    run_local(async {
        let discovered = |harness: &Harness| {
            let params = json!({ "_meta": meta(&json!({}), &json!({})) });
            let received = harness.modern_request(1, 1, "server/discover", &params).received();
            received[0]["result"]["capabilities"].clone()
        };
        let harness = Harness::modern().await;
        assert!(discovered(&harness)["extensions"].is_null());
        assert_eq!(harness.task_request(1, "tasks/get", "a").code(), -32601, "no server has tasks");
        harness.add_server("t", &Introduction::discovered(TASKING).unwrap()).await;
        assert_eq!(discovered(&harness)["extensions"], json!({ modern::TASKS: {} }));
        assert!(discovered(&harness)["tools"].is_object());
        assert_eq!(harness.task_request(1, "tasks/get", "a").code(), -32602);
        let unknowing = json!({ "taskId": "a", "_meta": meta(&json!({}), &json!({})) });
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let client = harness.modern_request(1, 1, method, &unknowing);
            let received = client.received();
            assert_eq!(received[0]["error"]["code"], modern::MISSING_CAPABILITY);
            assert_eq!(received[0]["error"]["data"]["requiredCapabilities"], can_tasks());
        }
        let inputs = json!({ "taskIds": ["a"] });
        let params = json!({ "notifications": inputs, "_meta": meta(&json!({}), &json!({})) });
        let client = harness.modern_request(1, 1, "subscriptions/listen", &params);
        assert_eq!(client.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_not_translated_between_eras() {
    run_local(async {
        // A legacy server and a modern client.
        let introduction_json = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}}},"serverInfo":{"name":"old"}}"#;
        let introduction = Introduction::read(introduction_json).unwrap();
        let harness = Harness::with_introduction(CallRules::default(), false, &introduction).await;
        let client = harness.modern_request(1, 1, "tools/call", &with_tasks(&json!({ "name": "s__x" })));
        let sent = harness.sent();
        assert!(sent[0]["params"]["_meta"][modern::CAPABILITIES].is_null(), "{sent:?}");
        harness.send(&task_of(&sent[0]["id"], "a"));
        assert_eq!(client.received()[0]["result"]["resultType"], "complete");
        assert_eq!(harness.task_request(1, "tasks/get", "a").code(), -32601);

        // A modern server and a legacy client.
        let harness = Harness::tasking().await;
        let client = harness.client(&json!({ "tasks": {}, "extensions": { modern::TASKS: {} } }));
        let params = json!({ "name": "s__x", "task": {} });
        client.ask(&json!(1), "tools/call", &params);
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], json!({}));
        harness.send(&task_of(&sent[0]["id"], "a"));
        client.received();
        client.ask(&json!(2), "tasks/get", &json!({ "taskId": "a" }));
        assert!(client.error().contains("Task not found"));
        assert!(harness.sent().is_empty());
        let hello = harness.router.introduction(&*harness.router.clients()[0], "2025-11-25");
        let hello: Value = serde_json::from_str(&hello).unwrap();
        assert!(hello["capabilities"]["tasks"].is_null());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_capability_is_removed_beyond_the_limit() {
    run_local(async {
        let harness = Harness::tasking().await;
        for number in 0..MAX_TASKS {
            harness.create_task(1, &number.to_string());
        }
        let can = json!({ "extensions": { modern::TASKS: {}, "x": {} }, "roots": {} });
        let params = json!({ "name": "s__x", "_meta": meta(&can, &json!({ "progressToken": 1 })) });
        harness.modern_request(1, 1, "tools/call", &params);
        let sent = harness.sent();
        let meta = &sent[0]["params"]["_meta"];
        let expected = json!({ "extensions": { "x": {} }, "roots": {} });
        assert_eq!(meta[modern::CAPABILITIES], expected);
        assert_eq!(meta["progressToken"], sent[0]["id"]);
        assert_eq!(shares::limits_hit(&harness.router), [("tasks of one client", Some(1))]);
        harness.create_task(2, "of another token");
        // A finished task makes room.
        let asker = harness.task_request(1, "tasks/get", "7");
        let result = json!({ "taskId": "7", "status": "completed", "result": {} });
        harness.send(&json!({ "jsonrpc": "2.0", "id": harness.sent()[0]["id"], "result": result }));
        assert_eq!(asker.received().len(), 1);
        harness.create_task(1, "one more");
        assert_eq!(harness.task_request(1, "tasks/get", "7").code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_of_a_cancelled_call_is_cancelled() {
    run_local(async {
        let harness = Harness::tasking().await;
        let client =
            harness.modern_request(1, 1, "tools/call", &with_tasks(&json!({ "name": "s__x" })));
        let upstream_id = harness.sent()[0]["id"].clone();
        client.client_session.close();
        assert_eq!(harness.sent()[0]["method"], "notifications/cancelled");
        harness.send(&task_of(&upstream_id, "a"));
        let sent = harness.sent();
        assert_eq!(
            (&sent[0]["method"], &sent[0]["params"]["taskId"]),
            (&json!("tasks/cancel"), &json!("a"))
        );
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks());
        assert_eq!(harness.task_request(1, "tasks/get", "a").code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn task_status_reaches_only_its_listening_owner() {
    run_local(async {
        let mut harness = Harness::tasking().await;
        harness.keep_listening_to_server().await;
        harness.create_task(1, "a");
        harness.create_task(2, "b");
        let one = harness.listen_to_tasks(1, &["a", "b", "none"], &["a", "b", "none"]).await;
        let acknowledged = one.received();
        assert_eq!(acknowledged[0]["params"]["notifications"], json!({ "taskIds": ["a"] }));
        let two = harness.listen_to_tasks(2, &["b"], &["a", "b"]).await;
        assert_eq!(two.received()[0]["params"]["notifications"], json!({ "taskIds": ["b"] }));

        harness.report_status("a", "working");
        harness.report_status("none", "working");
        let received = one.received();
        assert_eq!(received.len(), 1, "{received:?}");
        assert_eq!(received[0]["method"], "notifications/tasks");
        assert_eq!(
            (&received[0]["params"]["taskId"], &received[0]["params"]["status"]),
            (&json!("a"), &json!("working"))
        );
        assert_eq!(received[0]["params"]["_meta"], json!({ SUBSCRIPTION: 9 }));
        assert!(two.received().is_empty());
        assert!(harness.logged().await.contains("none"));

        harness.report_status("a", "completed");
        harness.report_status("a", "completed");
        assert_eq!(one.received().len(), 1, "nothing follows the final status");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_is_listened_to_while_a_task_has_listeners() {
    run_local(async {
        let harness = Harness::tasking().await;
        harness.keep_listening_to_server().await;
        harness.create_task(1, "a");
        harness.create_task(1, "b");
        let inputs = json!({ "notifications": { "taskIds": ["a"] } });
        let one = harness.modern_request(1, 9, "subscriptions/listen", &with_tasks(&inputs));
        advance_time(Duration::ZERO).await;
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["notifications"], json!({ "taskIds": ["a"] }));
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks());
        // Sent before the client has its acknowledgement.
        harness.report_status("a", "working");
        assert!(one.received().is_empty());
        harness.accept(&sent[0]["id"], &["a"]);
        advance_time(Duration::ZERO).await;
        let received = one.received();
        assert_eq!(received[0]["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(received[1]["params"]["status"], "working");

        let two = harness.listen_to_tasks(1, &["b"], &["a", "b"]).await;
        assert_eq!(two.received().len(), 1);
        one.client_session.close();
        advance_time(Duration::ZERO).await;
        let sent = harness.sent();
        let listens = sent.iter().find(|it| it["method"] == "subscriptions/listen").unwrap();
        assert_eq!(listens["params"]["notifications"], json!({ "taskIds": ["b"] }));
        harness.accept(&listens["id"], &["b"]);
        advance_time(Duration::ZERO).await;
        harness.sent();
        two.client_session.close();
        advance_time(Duration::ZERO).await;
        let ended = harness.sent();
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(ended[0]["method"], "notifications/cancelled");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refused_task_subscription_leaves_other_subscriptions() {
    run_local(async {
        let harness = Harness::tasking().await;
        harness.keep_listening_to_server().await;
        harness.create_task(1, "a");
        let inputs = json!({
            "taskIds": ["a"], "resourceSubscriptions": ["xy://s/test://a"],
        });
        let client = harness.modern_request(
            1,
            9,
            "subscriptions/listen",
            &with_tasks(&json!({ "notifications": inputs })),
        );
        advance_time(Duration::ZERO).await;
        let error = json!({ "code": -32602, "message": "no such task" });
        harness.send(&json!({ "jsonrpc": "2.0", "id": harness.sent()[0]["id"], "error": error }));
        advance_time(Duration::ZERO).await;
        let sent = harness.sent();
        let uris = json!({ "resourceSubscriptions": ["test://a"] });
        assert_eq!(sent[0]["params"]["notifications"], uris);
        let params = json!({ "_meta": { SUBSCRIPTION: sent[0]["id"] }, "notifications": uris });
        let method = "notifications/subscriptions/acknowledged";
        harness.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        advance_time(Duration::ZERO).await;
        let expected = json!({ "resourceSubscriptions": ["xy://s/test://a"] });
        assert_eq!(client.received()[0]["params"]["notifications"], expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn single_server_endpoint_passes_tasks_through() {
    run_local(async {
        let harness = Harness::tasking().await;
        harness.keep_listening_to_server().await;
        let plain = |id: u64, method: &str, params: &Value| {
            let view = View::Server("s".to_owned());
            let entry = Entry {
                view,
                may_manage: false,
                lifetime: Lifetime::Request,
                principal: 1,
                bound: None,
            };
            let received = Rc::new(RecordedMessages::default());
            let client_session = harness.router.open(entry, received.clone()).unwrap();
            let client = TestClient { client_session, received };
            client.ask(&json!(id), method, &with_tasks(params));
            client
        };
        plain(1, "tasks/get", &json!({ "taskId": "whose?" }));
        assert_eq!(harness.sent()[0]["params"]["taskId"], "whose?");
        let inputs = json!({ "notifications": { "taskIds": ["x", "y".repeat(2000)] } });
        let client = plain(2, "subscriptions/listen", &inputs);
        advance_time(Duration::ZERO).await;
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["notifications"], json!({ "taskIds": ["x"] }));
        harness.accept(&sent[0]["id"], &["x"]);
        advance_time(Duration::ZERO).await;
        harness.report_status("x", "completed");
        let received = client.received();
        assert_eq!(received[0]["params"]["notifications"], json!({ "taskIds": ["x"] }));
        assert_eq!(received[1]["params"]["status"], "completed");
    })
    .await;
}
