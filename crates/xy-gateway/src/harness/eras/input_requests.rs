//! Which requests may ask modern clients for input, and in which way.

use super::*;

/// Returns the `_meta` of a client that supports elicitation.
fn able() -> Value {
    meta(&json!({ "elicitation": {} }), &json!({}))
}

impl Harness {
    /// Returns the upstream id and method of the only request sent to the server since the last
    /// call.
    #[track_caller]
    fn only_request(&self) -> (u64, String) {
        let sent = self.sent();
        let requests: Vec<_> = sent.iter().filter(|it| it["id"].is_u64()).collect();
        let [request] = requests.as_slice() else { panic!("{sent:?}") };
        (request["id"].as_u64().unwrap(), text(&request["method"]))
    }
}

#[tokio::test(start_paused = true)]
async fn prompts_and_resources_may_request_input() {
    run_local(async {
        let harness = Harness::begin().await;
        for (method, named) in [
            ("prompts/get", json!({ "name": "s__p" })),
            ("resources/read", json!({ "uri": "xy://s/test://a" })),
        ] {
            let params = |more: &Value| {
                let mut params = named.clone();
                params["_meta"] = able();
                params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                params
            };
            let first = harness.modern_request(1, 1, method, &params(&json!({})));
            let (upstream_id, sent) = harness.only_request();
            assert_eq!(sent, method);
            harness.ask("a", "elicitation/create");
            settle().await;
            let (inputs, state) = first.input_required();
            assert_eq!(inputs, [("q1".to_owned(), "elicitation/create".to_owned())], "{method}");
            let retry = answers(&state, &json!({ "q1": { "action": "accept" } }));
            let second = harness.modern_request(1, 2, method, &params(&retry));
            assert_eq!(harness.client_answers()[0].1["result"], json!({ "action": "accept" }));
            harness.answer(upstream_id);
            assert_eq!(second.received()[0]["result"]["ok"], upstream_id, "{method}");
        }
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn completion_cannot_request_input() {
    run_local(async {
        let harness = Harness::begin().await;
        let reference = json!({ "type": "ref/prompt", "name": "s__p" });
        let argument = json!({ "name": "n", "value": "v" });
        let params = json!({ "ref": reference, "argument": argument, "_meta": able() });
        let client = harness.modern_request(1, 1, "completion/complete", &params);
        let (upstream_id, sent) = harness.only_request();
        assert_eq!(sent, "completion/complete");
        harness.ask("a", "elicitation/create");
        assert_eq!(harness.client_answers()[0].1["error"]["code"], -32603);
        settle().await;
        assert!(client.received().is_empty(), "the request goes on");
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_server_may_send_server_requests_to_legacy_clients() {
    run_local(async {
        let harness = Harness::modern().await;
        let elder = harness.client(&json!({ "elicitation": {} }));
        elder.call("a");
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("e", "elicitation/create");
        let requests = elder.received();
        assert_eq!(requests[0]["method"], "elicitation/create");
        elder.send(
            &json!({ "jsonrpc": "2.0", "id": requests[0]["id"], "result": { "action": "x" } }),
        );
        assert_eq!(harness.client_answers()[0].1["result"], json!({ "action": "x" }));
        harness.answer(upstream_id);
        assert_eq!(elder.received()[0]["id"], "a");

        let client = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("m", "elicitation/create");
        assert!(
            harness.client_answers()[0].1["error"].is_object(),
            "in this era it cannot be asked so"
        );
        harness.answer(upstream_id);
        assert_eq!(client.received()[0]["result"]["ok"], upstream_id);
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn errors_are_translated_to_modern_codes() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        // The error names no URL.
        let error = json!({ "code": -32042, "message": "go", "data": { "elicitations": [] } });
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "error": error }));
        assert_eq!(client.code(), -32603);

        let client = harness.modern_request(
            1,
            2,
            "resources/read",
            &json!({ "uri": "xy://s/a:b", "_meta": able() }),
        );
        let (upstream_id, _) = harness.only_request();
        let error = json!({ "code": -32002, "message": "there is none" });
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "error": error }));
        assert_eq!(client.code(), -32602);
    })
    .await;
}
