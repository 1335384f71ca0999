//! In which requests modern clients can be asked something, and by whom.

use super::*;

/// All that a client may be able to do.
fn able() -> Value {
    meta(&json!({ "elicitation": {} }), &json!({}))
}

impl Harness {
    /// The only request that the server has been sent since: our id of it, and its method.
    #[track_caller]
    fn only_request(&self) -> (u64, String) {
        let sent = self.sent();
        let requests: Vec<_> = sent.iter().filter(|it| it["id"].is_u64()).collect();
        let [request] = requests.as_slice() else { panic!("{sent:?}") };
        (request["id"].as_u64().unwrap(), text(&request["method"]))
    }
}

#[tokio::test(start_paused = true)]
async fn prompts_and_resources_have_rounds_as_calls_have() {
    here(async {
        let play = Harness::begin().await;
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
            let first = play.once(1, 1, method, &params(&json!({})));
            let (ours, sent) = play.only_request();
            assert_eq!(sent, method);
            play.ask("a", "elicitation/create");
            now().await;
            let (wanted, state) = first.wanted();
            assert_eq!(wanted, [("q1".to_owned(), "elicitation/create".to_owned())], "{method}");
            let said = answers(&state, &json!({ "q1": { "action": "accept" } }));
            let second = play.once(1, 2, method, &params(&said));
            assert_eq!(play.answered()[0].1["result"], json!({ "action": "accept" }));
            play.answer(ours);
            assert_eq!(second.heard()[0]["result"]["ok"], ours, "{method}");
        }
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn where_this_era_has_no_rounds_nothing_is_asked() {
    here(async {
        let play = Harness::begin().await;
        let reference = json!({ "type": "ref/prompt", "name": "s__p" });
        let argument = json!({ "name": "n", "value": "v" });
        let params = json!({ "ref": reference, "argument": argument, "_meta": able() });
        let client = play.once(1, 1, "completion/complete", &params);
        let (ours, sent) = play.only_request();
        assert_eq!(sent, "completion/complete");
        play.ask("a", "elicitation/create");
        assert_eq!(play.answered()[0].1["error"]["code"], -32603);
        now().await;
        assert!(client.heard().is_empty(), "the request goes on");
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_may_ask_legacy_clients_as_its_elders_do() {
    here(async {
        let play = Harness::modern().await;
        let elder = play.client(&json!({ "elicitation": {} }));
        elder.call("a");
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("e", "elicitation/create");
        let asked = elder.heard();
        assert_eq!(asked[0]["method"], "elicitation/create");
        elder.say(&json!({ "jsonrpc": "2.0", "id": asked[0]["id"], "result": { "action": "x" } }));
        assert_eq!(play.answered()[0].1["result"], json!({ "action": "x" }));
        play.answer(ours);
        assert_eq!(elder.heard()[0]["id"], "a");

        let client = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.ask("m", "elicitation/create");
        assert!(play.answered()[0].1["error"].is_object(), "in this era it cannot be asked so");
        play.answer(ours);
        assert_eq!(client.heard()[0]["result"]["ok"], ours);
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn where_nobody_can_be_sent_elsewhere_the_error_is_one_of_this_era() {
    here(async {
        let play = Harness::begin().await;
        let client = play.called(1, &json!({}));
        let [(ours, _)] = play.calls().try_into().unwrap();
        // It does not say where to.
        let error = json!({ "code": -32042, "message": "go", "data": { "elicitations": [] } });
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "error": error }));
        assert_eq!(client.code(), -32603);

        let client =
            play.once(1, 2, "resources/read", &json!({ "uri": "xy://s/a:b", "_meta": able() }));
        let (ours, _) = play.only_request();
        let error = json!({ "code": -32002, "message": "there is none" });
        play.say(&json!({ "jsonrpc": "2.0", "id": ours, "error": error }));
        assert_eq!(client.code(), -32602);
    })
    .await;
}
