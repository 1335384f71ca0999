//! Modern servers with clients of both eras.

use super::*;

#[tokio::test(start_paused = true)]
async fn modern_server_gets_client_metadata_with_each_request() {
    run_local(async {
        let harness = Harness::modern().await;
        let client = harness.client(&json!({ "roots": {}, "tasks": {} }));
        client.ask(&json!(1), "logging/setLevel", &json!({ "level": "error" }));
        client.received();
        client.call("a");
        let sent = harness.sent();
        let meta = &sent[0]["params"]["_meta"];
        assert_eq!(meta[modern::VERSION], "2026-07-28");
        assert_eq!(meta[modern::CAPABILITIES], json!({ "roots": {} }));
        assert_eq!(
            (&meta[modern::LOG_LEVEL], &meta["progressToken"]),
            (&json!("error"), &sent[0]["id"])
        );
        harness.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(client.received()[0]["id"], "a");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn input_request_of_modern_server_becomes_legacy_server_requests() {
    run_local(async {
        let harness = Harness::modern().await;
        let client =
            harness.client(&json!({ "roots": {}, "elicitation": { "url": {}, "form": {} } }));
        client.call("a");
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        let url = json!({ "mode": "url", "url": "https://x", "message": "go" });
        let inputs = json!({
            "one": { "method": "roots/list" },
            "two": { "method": "elicitation/create", "params": url },
        });
        harness.send(&input_required_response(upstream_id, &inputs, &json!("theirs")));
        let requests = client.received();
        assert_eq!((requests.len(), &requests[0]["method"]), (2, &json!("roots/list")));
        assert!(requests[1]["params"]["elicitationId"].is_string());
        client
            .send(&json!({ "jsonrpc": "2.0", "id": requests[0]["id"], "result": { "roots": [] } }));
        assert!(harness.calls().is_empty());
        let declined = json!({ "code": -1, "message": "no" });
        client.send(&json!({ "jsonrpc": "2.0", "id": requests[1]["id"], "error": declined }));
        let sent = harness.sent();
        let params = &sent[0]["params"];
        assert_eq!(params["inputResponses"]["one"], json!({ "roots": [] }));
        assert_eq!(params["inputResponses"]["two"], json!({ "action": "cancel" }));
        assert_eq!((&params["requestState"], &params["name"]), (&json!("theirs"), &json!("x")));
        harness.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(client.received()[0]["id"], "a");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_server_may_request_input_16_times() {
    run_local(async {
        let harness = Harness::modern().await;
        let client = harness.client(&json!({}));
        client.call("a");
        for _ in 0..=16 {
            let [(upstream_id, _)] = harness.calls().try_into().unwrap();
            harness.send(&input_required_response(upstream_id, &json!({}), &json!("again")));
        }
        assert!(client.error().contains("16 times"));
        let limit = ("rounds of input in one call", Some(0));
        assert_eq!(shares::limits_hit(&harness.router), [limit]);
        assert!(harness.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_fails_if_input_cannot_be_requested() {
    run_local(async {
        let harness = Harness::modern().await;
        let client = harness.client(&json!({ "sampling": {} }));
        let sampling = json!({ "q": { "method": "sampling/createMessage", "params": {} } });
        for inputs in [
            json!({ "q": { "method": "roots/list" } }),
            json!({ "q": { "method": "tools/call" } }),
            json!({ "q": { "method": "sampling/createMessage", "params": 7 } }),
            json!({ "q": 7 }),
            json!([7]),
        ] {
            client.call("a");
            let [(upstream_id, _)] = harness.calls().try_into().unwrap();
            harness.send(&input_required_response(upstream_id, &inputs, &json!("s")));
            assert!(client.error().contains("requires input"));
        }
        client.call("b");
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.send(&input_required_response(upstream_id, &sampling, &json!("s")));
        let requests = client.received();
        let refused = json!({ "code": -1, "message": "the user said no" });
        client.send(&json!({ "jsonrpc": "2.0", "id": requests[0]["id"], "error": refused }));
        assert_eq!(client.error(), "the user said no");

        client.call("c");
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.send(&input_required_response(upstream_id, &sampling, &json!("s")));
        let requests = client.received();
        client.cancel("c");
        let taken_back = client.received();
        assert_eq!(taken_back[0]["params"]["requestId"], requests[0]["id"]);
        client.send(&json!({ "jsonrpc": "2.0", "id": requests[0]["id"], "result": {} }));
        assert!(harness.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_client_and_server_exchange_state_unchanged() {
    run_local(async {
        let harness = Harness::modern().await;
        let client = harness
            .modern_call(1, &json!({ "requestState": "theirs", "inputResponses": { "q": 1.50 } }));
        let sent = harness.sent();
        assert_eq!(sent[0]["params"]["requestState"], "theirs");
        let upstream_id = sent[0]["id"].as_u64().unwrap();
        harness.send(&input_required_response(upstream_id, &json!({ "q": {} }), &json!("next")));
        assert_eq!(client.input_required().1, "next");
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_input_names_fail_the_call() {
    run_local(async {
        let harness = Harness::modern().await;
        let client = harness.client(&json!({ "roots": {} }));
        client.call("a");
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        let twice = r#"{"k":{"method":"roots/list"},"k":{"method":"roots/list"}}"#;
        let result = format!(r#"{{"resultType":"input_required","inputRequests":{twice}}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{upstream_id},"result":{result}}}"#);
        harness.upstream.handle(line.as_bytes(), None);
        assert!(client.error().contains("have the same key"));
    })
    .await;
}
