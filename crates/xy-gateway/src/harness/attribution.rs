//! Attribution: which client receives a message of a shared server.

use super::*;

fn log(text: &str) -> Value {
    let params = json!({ "level": "error", "data": text });
    json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
}

#[tokio::test(start_paused = true)]
async fn message_goes_to_the_only_client_with_open_calls() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        harness.send(&log("nobody's"));
        a.call("a");
        harness.send(&log("a's"));
        b.call("b");
        harness.send(&log("whose?"));
        let calls = harness.calls();
        harness.answer(calls[0].0);
        harness.send(&log("b's"));
        let data = |client: &TestClient| -> Vec<Value> {
            client.received().iter().map(|it| it["params"]["data"].clone()).collect()
        };
        assert_eq!(data(&a), [json!("a's"), Value::Null]);
        assert_eq!(data(&b), [json!("b's")]);
        let logged = harness.logged().await;
        assert!(logged.contains("nobody's") && logged.contains("whose?"), "{logged}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_count_for_attribution_for_a_while() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a1");
        a.cancel("a1");
        harness.send(&log("of what was cancelled"));
        assert!(a.received().is_empty());
        a.call("a2");
        harness.send(&log("a's in any case"));
        assert_eq!(a.received().len(), 1);
        a.cancel("a2");
        b.call("b");
        harness.send(&log("of a or b"));
        assert!(a.received().is_empty() && b.received().is_empty());
        advance_time(61 * SECOND).await;
        harness.send(&log("b's"));
        assert_eq!((a.received().len(), b.received().len()), (0, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn adopted_server_attributes_nothing_for_a_while() {
    run_local(async {
        let harness = Harness::with_rules(CallRules::default(), true).await;
        let a = harness.client(&json!({ "sampling": {} }));
        a.call("a");
        harness.sent();
        harness.send(&log("of an earlier daemon's client"));
        harness.ask("q", "sampling/createMessage");
        assert!(a.received().is_empty());
        assert_eq!(harness.sent()[0]["error"]["code"], -32603);
        advance_time(61 * SECOND).await;
        harness.send(&log("a's"));
        assert_eq!(a.received().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_tokens_of_server_requests_are_unique_and_restored() {
    run_local(async {
        let harness = Harness::begin().await;
        let a = harness.client(&json!({ "sampling": {} }));
        a.call("a");
        harness.sent();
        for id in ["q1", "q2"] {
            let params = json!({ "_meta": { "progressToken": format!("token of {id}") } });
            let method = "sampling/createMessage";
            harness
                .send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        }
        let questions = a.received();
        let tokens: Vec<&Value> =
            questions.iter().map(|it| &it["params"]["_meta"]["progressToken"]).collect();
        assert_ne!(tokens[0], tokens[1]);
        let method = "notifications/progress";
        for (token, expected) in [(tokens[1], Some("token of q2")), (&json!(77), None)] {
            let params = json!({ "progressToken": token, "progress": 1 });
            a.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
            let sent = harness.sent();
            let found = sent.first().map(|it| it["params"]["progressToken"].as_str().unwrap());
            assert_eq!(found, expected);
        }
        // A request that has been answered has no progress.
        a.send(&json!({ "jsonrpc": "2.0", "id": questions[1]["id"], "result": {} }));
        harness.sent();
        let params = json!({ "progressToken": tokens[1], "progress": 1 });
        a.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        assert!(harness.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancellation_reason_is_forwarded_once() {
    run_local(async {
        let harness = Harness::begin().await;
        let a = harness.client(&json!({}));
        a.call("a");
        let (upstream_id, _) = harness.calls()[0];
        a.cancel("a");
        a.cancel("a");
        let sent = harness.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0]["params"], json!({ "requestId": upstream_id, "reason": "so" }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_logs_at_lowest_level_and_each_client_gets_its_own() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.ask(&json!("level"), "logging/setLevel", &json!({ "level": "critical" }));
        b.ask(&json!("level"), "logging/setLevel", &json!({ "level": "debug" }));
        let sent_messages: Vec<Value> =
            harness.sent().iter().map(|it| it["params"]["level"].clone()).collect();
        assert_eq!(
            sent_messages,
            [json!("info"), json!("debug")],
            "b has the default level at first"
        );
        a.received();
        a.call("a");
        harness.send(&log("too little for a"));
        assert!(a.received().is_empty());
        b.client_session.close();
        let sent_messages = harness.sent();
        assert_eq!(sent_messages.last().unwrap()["params"]["level"], "critical");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_end_of_a_server_request_reaches_the_other_side() {
    run_local(async {
        let mut harness = Harness::begin().await;
        let a = harness.client(&json!({ "sampling": {} }));
        let ask = |harness: &Harness, id: &str| {
            harness.sent();
            harness.ask(id, "sampling/createMessage");
            a.received().pop().unwrap()["id"].clone()
        };
        a.call("a");
        let question = ask(&harness, "refused");
        let error = json!({ "code": -1, "message": "no", "data": 1.0 });
        a.send(&json!({ "jsonrpc": "2.0", "id": question, "error": error }));
        let sent = harness.sent();
        assert_eq!((&sent[0]["id"], &sent[0]["error"]), (&json!("refused"), &error));

        let question = ask(&harness, "withdrawn");
        let (method, params) = ("notifications/cancelled", json!({ "requestId": "withdrawn" }));
        harness.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        let received = a.received();
        assert_eq!(
            (&received[0]["method"], &received[0]["params"]["requestId"]),
            (&json!(method), &question)
        );

        let question = ask(&harness, "of an ended server");
        harness.restart().await;
        let received = a.received();
        let cancelled = received.iter().find(|it| it["method"] == method).unwrap();
        assert_eq!(cancelled["params"]["requestId"], question);

        a.call("again");
        ask(&harness, "of a client that leaves");
        a.client_session.close();
        let sent = harness.sent();
        let refused = sent.iter().find(|it| it["id"] == "of a client that leaves").unwrap();
        assert_eq!(refused["error"]["code"], -32603);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn server_request_during_a_control_socket_request_is_refused() {
    run_local(async {
        let harness = Harness::begin().await;
        let a = harness.client(&json!({ "sampling": {} }));
        a.call("a");
        let admin = harness.upstream.ask_for_admin("tools/call", None).ok().unwrap();
        harness.sent();
        harness.ask("q", "sampling/createMessage");
        assert!(a.received().is_empty());
        assert_eq!(harness.sent()[0]["error"]["code"], -32603);
        drop(admin);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn elicitation_of_an_error_completes_at_its_client() {
    run_local(async {
        let harness = Harness::begin().await;
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a");
        let url =
            json!({ "mode": "url", "elicitationId": "e", "url": "https://x", "message": "m" });
        let error = json!({ "code": -32042, "message": "m", "data": { "elicitations": [url] } });
        let (upstream_id, _) = harness.calls()[0];
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "error": error }));
        assert_eq!(a.received()[0]["error"], error);
        b.call("b");
        let (method, params) =
            ("notifications/elicitation/complete", json!({ "elicitationId": "e" }));
        harness.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        assert_eq!(a.received()[0]["params"], params);
        assert!(b.received().is_empty());
    })
    .await;
}
