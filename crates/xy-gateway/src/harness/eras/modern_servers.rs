//! Servers of the modern era, and clients of both.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_told_with_each_request_who_asks() {
    here(async {
        let play = Harness::modern().await;
        let client = play.client(&json!({ "roots": {}, "tasks": {} }));
        client.ask(&json!(1), "logging/setLevel", &json!({ "level": "error" }));
        client.heard();
        client.call("a");
        let sent = play.sent();
        let meta = &sent[0]["params"]["_meta"];
        assert_eq!(meta[modern::VERSION], "2026-07-28");
        assert_eq!(meta[modern::CAPABILITIES], json!({ "roots": {} }));
        assert_eq!(
            (&meta[modern::LOG_LEVEL], &meta["progressToken"]),
            (&json!("error"), &sent[0]["id"])
        );
        play.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(client.heard()[0]["id"], "a");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_modern_server_wants_to_know_is_asked_of_a_legacy_client() {
    here(async {
        let play = Harness::modern().await;
        let client = play.client(&json!({ "roots": {}, "elicitation": { "url": {}, "form": {} } }));
        client.call("a");
        let [(ours, _)] = play.calls().try_into().unwrap();
        let url = json!({ "mode": "url", "url": "https://x", "message": "go" });
        let wanted = json!({
            "one": { "method": "roots/list" },
            "two": { "method": "elicitation/create", "params": url },
        });
        play.say(&want(ours, &wanted, &json!("theirs")));
        let asked = client.heard();
        assert_eq!((asked.len(), &asked[0]["method"]), (2, &json!("roots/list")));
        assert!(asked[1]["params"]["elicitationId"].is_string());
        client.say(&json!({ "jsonrpc": "2.0", "id": asked[0]["id"], "result": { "roots": [] } }));
        assert!(play.calls().is_empty());
        let declined = json!({ "code": -1, "message": "no" });
        client.say(&json!({ "jsonrpc": "2.0", "id": asked[1]["id"], "error": declined }));
        let sent = play.sent();
        let params = &sent[0]["params"];
        assert_eq!(params["inputResponses"]["one"], json!({ "roots": [] }));
        assert_eq!(params["inputResponses"]["two"], json!({ "action": "cancel" }));
        assert_eq!((&params["requestState"], &params["name"]), (&json!("theirs"), &json!("x")));
        play.answer(sent[0]["id"].as_u64().unwrap());
        assert_eq!(client.heard()[0]["id"], "a");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_may_want_to_know_more_sixteen_times() {
    here(async {
        let play = Harness::modern().await;
        let client = play.client(&json!({}));
        client.call("a");
        for _ in 0..=16 {
            let [(ours, _)] = play.calls().try_into().unwrap();
            play.say(&want(ours, &json!({}), &json!("again")));
        }
        assert!(client.error().contains("16 times"));
        assert!(play.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_or_answered_is_the_end_of_the_call() {
    here(async {
        let play = Harness::modern().await;
        let client = play.client(&json!({ "sampling": {} }));
        let sampling = json!({ "q": { "method": "sampling/createMessage", "params": {} } });
        for wanted in [
            json!({ "q": { "method": "roots/list" } }),
            json!({ "q": { "method": "tools/call" } }),
            json!({ "q": { "method": "sampling/createMessage", "params": 7 } }),
            json!({ "q": 7 }),
            json!([7]),
        ] {
            client.call("a");
            let [(ours, _)] = play.calls().try_into().unwrap();
            play.say(&want(ours, &wanted, &json!("s")));
            assert!(client.error().contains("cannot be asked"));
        }
        client.call("b");
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.say(&want(ours, &sampling, &json!("s")));
        let asked = client.heard();
        let refused = json!({ "code": -1, "message": "the user said no" });
        client.say(&json!({ "jsonrpc": "2.0", "id": asked[0]["id"], "error": refused }));
        assert_eq!(client.error(), "the user said no");

        client.call("c");
        let [(ours, _)] = play.calls().try_into().unwrap();
        play.say(&want(ours, &sampling, &json!("s")));
        let asked = client.heard();
        client.cancel("c");
        let taken_back = client.heard();
        assert_eq!(taken_back[0]["params"]["requestId"], asked[0]["id"]);
        client.say(&json!({ "jsonrpc": "2.0", "id": asked[0]["id"], "result": {} }));
        assert!(play.calls().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn equals_are_left_alone() {
    here(async {
        let play = Harness::modern().await;
        let client =
            play.called(1, &json!({ "requestState": "theirs", "inputResponses": { "q": 1.50 } }));
        let sent = play.sent();
        assert_eq!(sent[0]["params"]["requestState"], "theirs");
        let ours = sent[0]["id"].as_u64().unwrap();
        play.say(&want(ours, &json!({ "q": {} }), &json!("next")));
        assert_eq!(client.wanted().1, "next");
        assert_eq!(play.router.parked.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_questions_of_one_name_are_none() {
    here(async {
        let play = Harness::modern().await;
        let client = play.client(&json!({ "roots": {} }));
        client.call("a");
        let [(ours, _)] = play.calls().try_into().unwrap();
        let twice = r#"{"k":{"method":"roots/list"},"k":{"method":"roots/list"}}"#;
        let result = format!(r#"{{"resultType":"input_required","inputRequests":{twice}}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{ours},"result":{result}}}"#);
        play.upstream.handle(line.as_bytes(), None);
        assert!(client.error().contains("under one name"));
    })
    .await;
}
