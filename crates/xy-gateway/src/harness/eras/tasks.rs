//! Tasks between equals of the revision without sessions, behind one door for all servers.

use super::*;
use crate::modern::SUBSCRIPTION;
use crate::ownership::MOST_TASKS;

const TASKING: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}}"#;

/// What a client says that knows tasks.
fn knowing(more: &Value) -> Value {
    let mut params = json!({ "_meta": meta(&can_tasks(), &json!({})) });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn can_tasks() -> Value {
    json!({ "extensions": { modern::TASKS: {} } })
}

/// One more server.
struct Other {
    upstream: Rc<Upstream>,
    sent: Rc<Sent>,
}

impl Harness {
    async fn tasking() -> Self {
        let introduction = Introduction::discovered(TASKING).unwrap();
        Self::of(CallRules::default(), false, &introduction).await
    }

    async fn another(&self, name: &str, introduction: &Introduction) -> Other {
        let name = ServerName::new(name).unwrap();
        let settings = ServerSettings { name, ..settings(CallRules::default()) };
        let server = self.router.server_of(&Arc::new(settings));
        let (said, _) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        let upstream = life(&self.router, &server, said, sent.clone(), false, introduction).await;
        Other { upstream, sent }
    }

    /// A client of this token calls a tool, and is answered with a task.
    #[track_caller]
    fn begins(&self, who: u64, task: &str) {
        let client = self.once(who, 1, "tools/call", &knowing(&json!({ "name": "s__x" })));
        let sent = self.sent();
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks(), "{sent:?}");
        self.say(&task_of(&sent[0]["id"], task));
        let heard = client.heard();
        assert_eq!((&heard[0]["id"], &heard[0]["result"]["taskId"]), (&json!(1), &json!(task)));
        client.client_session.close();
    }

    /// A client of this token asks about a task.
    fn about(&self, who: u64, method: &str, task: &str) -> Visitor {
        self.once(who, 2, method, &knowing(&json!({ "taskId": task })))
    }

    /// A client of this token listens to tasks, as the server lets it.
    async fn follow(&self, who: u64, tasks: &[&str], accepted: &[&str]) -> Visitor {
        let wanted = json!({ "notifications": { "taskIds": tasks } });
        let client = self.once(who, 9, "subscriptions/listen", &knowing(&wanted));
        later(Duration::ZERO).await;
        for asked in self.sent() {
            if asked["method"] == "subscriptions/listen" {
                self.accept(&asked["id"], accepted);
            }
        }
        later(Duration::ZERO).await;
        client
    }

    fn accept(&self, ours: &Value, tasks: &[&str]) {
        let params =
            json!({ "_meta": { SUBSCRIPTION: ours }, "notifications": { "taskIds": tasks } });
        let method = "notifications/subscriptions/acknowledged";
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// The server tells how a task is doing.
    fn is(&self, task: &str, status: &str) {
        let params = json!({ "taskId": task, "status": status, "_meta": { SUBSCRIPTION: 77 } });
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": params }));
    }

    /// Somebody keeps listening to the server.
    async fn listened_to(&self) {
        let upstream = self.upstream.clone();
        tokio::task::spawn_local(async move { upstream.keep_listening().await });
        later(Duration::ZERO).await;
    }
}

fn task_of(ours: &Value, task: &str) -> Value {
    let result =
        json!({ "resultType": "task", "taskId": task, "status": "working", "ttlMs": 60_000 });
    json!({ "jsonrpc": "2.0", "id": ours, "result": result })
}

#[tokio::test(start_paused = true)]
async fn a_task_is_asked_about_where_it_was_begun_by_whoever_has_the_token() {
    here(async {
        let play = Harness::tasking().await;
        let other = play.another("t", &Introduction::discovered(TASKING).unwrap()).await;
        play.begins(1, "a");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let client = play.about(1, method, "a");
            let sent = play.sent();
            assert_eq!(
                (&sent[0]["method"], &sent[0]["params"]["taskId"]),
                (&json!(method), &json!("a"))
            );
            let result =
                json!({ "resultType": "complete", "taskId": "a", "status": "working", "x": 1.5 });
            play.say(&json!({ "jsonrpc": "2.0", "id": sent[0]["id"], "result": result }));
            assert_eq!(client.heard()[0]["result"], result);
        }
        assert!(other.sent.messages.borrow().is_empty(), "it has nothing to do with it");
        for (who, task) in [(2, "a"), (1, "b"), (1, "")] {
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let client = play.about(who, method, task);
                assert_eq!(client.code(), -32602, "{who} {task}");
            }
        }
        assert!(play.sent().is_empty(), "what is not one's own reaches nobody");
        for method in ["tasks/list", "tasks/result", "tasks/"] {
            assert_eq!(play.about(1, method, "a").code(), -32601);
        }
        let odd = play.once(1, 2, "tasks/get", &knowing(&json!({ "taskId": 7 })));
        assert_eq!(odd.code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_local_door_is_one_and_whoever_comes_back_to_it_finds_its_tasks() {
    here(async {
        let play = Harness::tasking().await;
        let local = || {
            let view = View::Profile("default".to_owned());
            let entry =
                Entry { view, may_manage: false, lifetime: Lifetime::Session, who: 0, bound: None };
            let heard = Rc::new(RecordedMessages::default());
            let client_session = play.router.open(entry, heard.clone()).unwrap();
            Visitor { client_session, heard }
        };
        let first = local();
        first.ask(&json!(1), "tools/call", &knowing(&json!({ "name": "s__x" })));
        play.say(&task_of(&play.sent()[0]["id"], "a"));
        first.client_session.close();
        let second = local();
        second.ask(&json!(1), "tasks/get", &knowing(&json!({ "taskId": "a" })));
        assert_eq!(play.sent()[0]["method"], "tasks/get");
        assert_eq!(play.about(1, "tasks/get", "a").code(), -32602, "a token is somebody else");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_two_servers_use_is_not_guessed() {
    here(async {
        let play = Harness::tasking().await;
        let other = play.another("t", &Introduction::discovered(TASKING).unwrap()).await;
        play.begins(1, "same");
        play.once(1, 3, "tools/call", &knowing(&json!({ "name": "t__x" })));
        let line = other.sent.messages.take().remove(0);
        let asked: Value = serde_json::from_slice(&line).unwrap();
        other.upstream.handle(task_of(&asked["id"], "same").to_string().as_bytes(), None);
        assert!(play.about(1, "tasks/get", "same").error().contains("several servers"));
        assert!(play.sent().is_empty() && other.sent.messages.borrow().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_server_gives_to_two_is_nobodys() {
    here(async {
        let play = Harness::tasking().await;
        play.begins(1, "same");
        play.begins(2, "same");
        for who in [1, 2] {
            assert_eq!(play.about(who, "tasks/get", "same").code(), -32602);
        }
        assert!(play.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_ends_with_its_server_and_the_next_life_is_not_asked_for_it() {
    here(async {
        let mut play = Harness::tasking().await;
        play.begins(1, "a");
        play.live_again().await;
        assert!(play.about(1, "tasks/get", "a").error().contains("ended with it"));
        assert!(play.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_is_forgotten_when_its_time_is_over_unless_its_server_keeps_it_longer() {
    here(async {
        let play = Harness::tasking().await;
        play.begins(1, "short");
        play.begins(1, "long");
        play.about(1, "tasks/get", "long");
        let result = json!({ "taskId": "long", "status": "working", "ttlMs": 600_000 });
        play.say(&json!({ "jsonrpc": "2.0", "id": play.sent()[0]["id"], "result": result }));
        later(121 * SECOND).await;
        play.begins(1, "new"); // Somebody has to look.
        assert_eq!(play.about(1, "tasks/get", "short").code(), -32602);
        play.about(1, "tasks/get", "long");
        assert_eq!(play.sent().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_offered_if_a_modern_server_has_them_and_asked_for_by_who_knows_them() {
    here(async {
        let discovered = |play: &Harness| {
            let params = json!({ "_meta": meta(&json!({}), &json!({})) });
            let heard = play.once(1, 1, "server/discover", &params).heard();
            heard[0]["result"]["capabilities"].clone()
        };
        let play = Harness::modern().await;
        assert!(discovered(&play)["extensions"].is_null());
        assert_eq!(play.about(1, "tasks/get", "a").code(), -32601, "nobody has any");
        play.another("t", &Introduction::discovered(TASKING).unwrap()).await;
        assert_eq!(discovered(&play)["extensions"], json!({ modern::TASKS: {} }));
        assert!(discovered(&play)["tools"].is_object());
        assert_eq!(play.about(1, "tasks/get", "a").code(), -32602);
        let unknowing = json!({ "taskId": "a", "_meta": meta(&json!({}), &json!({})) });
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let client = play.once(1, 1, method, &unknowing);
            let heard = client.heard();
            assert_eq!(heard[0]["error"]["code"], modern::MISSING_CAPABILITY);
            assert_eq!(heard[0]["error"]["data"]["requiredCapabilities"], can_tasks());
        }
        let wanted = json!({ "taskIds": ["a"] });
        let params = json!({ "notifications": wanted, "_meta": meta(&json!({}), &json!({})) });
        let client = play.once(1, 1, "subscriptions/listen", &params);
        assert_eq!(client.code(), modern::MISSING_CAPABILITY);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn across_the_eras_nobody_hears_of_tasks() {
    here(async {
        // A legacy server and a modern client.
        let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}}},"serverInfo":{"name":"old"}}"#;
        let introduction = Introduction::read(said).unwrap();
        let play = Harness::of(CallRules::default(), false, &introduction).await;
        let client = play.once(1, 1, "tools/call", &knowing(&json!({ "name": "s__x" })));
        let sent = play.sent();
        assert!(sent[0]["params"]["_meta"][modern::CAPABILITIES].is_null(), "{sent:?}");
        play.say(&task_of(&sent[0]["id"], "a"));
        assert_eq!(client.heard()[0]["result"]["resultType"], "complete");
        assert_eq!(play.about(1, "tasks/get", "a").code(), -32601);

        // A modern server and a legacy client.
        let play = Harness::tasking().await;
        let client = play.client(&json!({ "tasks": {}, "extensions": { modern::TASKS: {} } }));
        let params = json!({ "name": "s__x", "task": {} });
        client.ask(&json!(1), "tools/call", &params);
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], json!({}));
        play.say(&task_of(&sent[0]["id"], "a"));
        client.heard();
        client.ask(&json!(2), "tasks/get", &json!({ "taskId": "a" }));
        assert!(client.error().contains("Task not found"));
        assert!(play.sent().is_empty());
        let hello = play.router.introduction(&play.router.clients()[0], "2025-11-25");
        let hello: Value = serde_json::from_str(&hello).unwrap();
        assert!(hello["capabilities"]["tasks"].is_null());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_room_for_a_task_the_server_does_not_hear_that_the_client_knows_them() {
    here(async {
        let play = Harness::tasking().await;
        for number in 0..MOST_TASKS {
            play.begins(1, &number.to_string());
        }
        let can = json!({ "extensions": { modern::TASKS: {}, "x": {} }, "roots": {} });
        let params = json!({ "name": "s__x", "_meta": meta(&can, &json!({ "progressToken": 1 })) });
        play.once(1, 1, "tools/call", &params);
        let sent = play.sent();
        let meta = &sent[0]["params"]["_meta"];
        let expected = json!({ "extensions": { "x": {} }, "roots": {} });
        assert_eq!(meta[modern::CAPABILITIES], expected);
        assert_eq!(meta["progressToken"], sent[0]["id"]);
        play.begins(2, "of another token");
        // One that is over makes room.
        let asker = play.about(1, "tasks/get", "7");
        let result = json!({ "taskId": "7", "status": "completed", "result": {} });
        play.say(&json!({ "jsonrpc": "2.0", "id": play.sent()[0]["id"], "result": result }));
        assert_eq!(asker.heard().len(), 1);
        play.begins(1, "one more");
        assert_eq!(play.about(1, "tasks/get", "7").code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_nobody_heard_of_is_cancelled() {
    here(async {
        let play = Harness::tasking().await;
        let client = play.once(1, 1, "tools/call", &knowing(&json!({ "name": "s__x" })));
        let ours = play.sent()[0]["id"].clone();
        client.client_session.close();
        assert_eq!(play.sent()[0]["method"], "notifications/cancelled");
        play.say(&task_of(&ours, "a"));
        let sent = play.sent();
        assert_eq!(
            (&sent[0]["method"], &sent[0]["params"]["taskId"]),
            (&json!("tasks/cancel"), &json!("a"))
        );
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks());
        assert_eq!(play.about(1, "tasks/get", "a").code(), -32602);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn how_a_task_is_doing_is_heard_by_its_owner_who_listens_and_by_nobody_else() {
    here(async {
        let mut play = Harness::tasking().await;
        play.listened_to().await;
        play.begins(1, "a");
        play.begins(2, "b");
        let one = play.follow(1, &["a", "b", "none"], &["a", "b", "none"]).await;
        let acknowledged = one.heard();
        assert_eq!(acknowledged[0]["params"]["notifications"], json!({ "taskIds": ["a"] }));
        let two = play.follow(2, &["b"], &["a", "b"]).await;
        assert_eq!(two.heard()[0]["params"]["notifications"], json!({ "taskIds": ["b"] }));

        play.is("a", "working");
        play.is("none", "working");
        let heard = one.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert_eq!(heard[0]["method"], "notifications/tasks");
        assert_eq!(
            (&heard[0]["params"]["taskId"], &heard[0]["params"]["status"]),
            (&json!("a"), &json!("working"))
        );
        assert_eq!(heard[0]["params"]["_meta"], json!({ SUBSCRIPTION: 9 }));
        assert!(two.heard().is_empty());
        assert!(play.logged().await.contains("none"));

        play.is("a", "completed");
        play.is("a", "completed");
        assert_eq!(one.heard().len(), 1, "after its end there is nothing more to hear");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_server_is_listened_to_for_as_long_as_somebody_wants_to_hear_of_a_task() {
    here(async {
        let play = Harness::tasking().await;
        play.listened_to().await;
        play.begins(1, "a");
        play.begins(1, "b");
        let wanted = json!({ "notifications": { "taskIds": ["a"] } });
        let one = play.once(1, 9, "subscriptions/listen", &knowing(&wanted));
        later(Duration::ZERO).await;
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["notifications"], json!({ "taskIds": ["a"] }));
        assert_eq!(sent[0]["params"]["_meta"][modern::CAPABILITIES], can_tasks());
        // Said before the client knows that it will hear it.
        play.is("a", "working");
        assert!(one.heard().is_empty());
        play.accept(&sent[0]["id"], &["a"]);
        later(Duration::ZERO).await;
        let heard = one.heard();
        assert_eq!(heard[0]["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(heard[1]["params"]["status"], "working");

        let two = play.follow(1, &["b"], &["a", "b"]).await;
        assert_eq!(two.heard().len(), 1);
        one.client_session.close();
        later(Duration::ZERO).await;
        let asked = play.sent();
        let listens = asked.iter().find(|it| it["method"] == "subscriptions/listen").unwrap();
        assert_eq!(listens["params"]["notifications"], json!({ "taskIds": ["b"] }));
        play.accept(&listens["id"], &["b"]);
        later(Duration::ZERO).await;
        play.sent();
        two.client_session.close();
        later(Duration::ZERO).await;
        let ended = play.sent();
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(ended[0]["method"], "notifications/cancelled");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_to_tell_of_tasks_is_heard_of_all_else() {
    here(async {
        let play = Harness::tasking().await;
        play.listened_to().await;
        play.begins(1, "a");
        let wanted = json!({
            "taskIds": ["a"], "resourceSubscriptions": ["xy://s/test://a"],
        });
        let client =
            play.once(1, 9, "subscriptions/listen", &knowing(&json!({ "notifications": wanted })));
        later(Duration::ZERO).await;
        let error = json!({ "code": -32602, "message": "no such task" });
        play.say(&json!({ "jsonrpc": "2.0", "id": play.sent()[0]["id"], "error": error }));
        later(Duration::ZERO).await;
        let sent = play.sent();
        let uris = json!({ "resourceSubscriptions": ["test://a"] });
        assert_eq!(sent[0]["params"]["notifications"], uris);
        let params = json!({ "_meta": { SUBSCRIPTION: sent[0]["id"] }, "notifications": uris });
        let method = "notifications/subscriptions/acknowledged";
        play.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        later(Duration::ZERO).await;
        let expected = json!({ "resourceSubscriptions": ["xy://s/test://a"] });
        assert_eq!(client.heard()[0]["params"]["notifications"], expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn at_the_door_of_one_server_its_tasks_are_its_own_affair() {
    here(async {
        let play = Harness::tasking().await;
        play.listened_to().await;
        let plain = |id: u64, method: &str, params: &Value| {
            let view = View::Server("s".to_owned());
            let entry =
                Entry { view, may_manage: false, lifetime: Lifetime::Request, who: 1, bound: None };
            let heard = Rc::new(RecordedMessages::default());
            let client_session = play.router.open(entry, heard.clone()).unwrap();
            let visitor = Visitor { client_session, heard };
            visitor.ask(&json!(id), method, &knowing(params));
            visitor
        };
        plain(1, "tasks/get", &json!({ "taskId": "whose?" }));
        assert_eq!(play.sent()[0]["params"]["taskId"], "whose?");
        let wanted = json!({ "notifications": { "taskIds": ["x", "y".repeat(2000)] } });
        let client = plain(2, "subscriptions/listen", &wanted);
        later(Duration::ZERO).await;
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["notifications"], json!({ "taskIds": ["x"] }));
        play.accept(&sent[0]["id"], &["x"]);
        later(Duration::ZERO).await;
        play.is("x", "completed");
        let heard = client.heard();
        assert_eq!(heard[0]["params"]["notifications"], json!({ "taskIds": ["x"] }));
        assert_eq!(heard[1]["params"]["status"], "completed");
    })
    .await;
}
