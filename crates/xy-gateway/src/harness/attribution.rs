//! Whom the words of a shared server are for.

use super::*;

fn log(text: &str) -> Value {
    let params = json!({ "level": "error", "data": text });
    json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
}

#[tokio::test(start_paused = true)]
async fn a_message_is_for_the_only_client_whose_calls_are_in_flight() {
    here(async {
        let mut play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        play.say(&log("nobody's"));
        a.call("a");
        play.say(&log("a's"));
        b.call("b");
        play.say(&log("whose?"));
        let calls = play.calls();
        play.answer(calls[0].0);
        play.say(&log("b's"));
        let data = |client: &Visitor| -> Vec<Value> {
            client.heard().iter().map(|it| it["params"]["data"].clone()).collect()
        };
        assert_eq!(data(&a), [json!("a's"), Value::Null]);
        assert_eq!(data(&b), [json!("b's")]);
        let logged = play.logged().await;
        assert!(logged.contains("nobody's") && logged.contains("whose?"), "{logged}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_given_up_may_still_be_spoken_of() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call("a1");
        a.cancel("a1");
        play.say(&log("of what was cancelled"));
        assert!(a.heard().is_empty());
        a.call("a2");
        play.say(&log("a's in any case"));
        assert_eq!(a.heard().len(), 1);
        a.cancel("a2");
        b.call("b");
        play.say(&log("of a or b"));
        assert!(a.heard().is_empty() && b.heard().is_empty());
        later(61 * SECOND).await;
        play.say(&log("b's"));
        assert_eq!((a.heard().len(), b.heard().len()), (0, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_taken_over_is_strange_for_a_while() {
    here(async {
        let play = Harness::with(CallRules::default(), true).await;
        let a = play.client(&json!({ "sampling": {} }));
        a.call("a");
        play.sent();
        play.say(&log("of an earlier daemon's client"));
        play.ask("q", "sampling/createMessage");
        assert!(a.heard().is_empty());
        assert_eq!(play.sent()[0]["error"]["code"], -32603);
        later(61 * SECOND).await;
        play.say(&log("a's"));
        assert_eq!(a.heard().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tokens_of_questions_are_told_apart_and_come_back() {
    here(async {
        let play = Harness::begin().await;
        let a = play.client(&json!({ "sampling": {} }));
        a.call("a");
        play.sent();
        for id in ["q1", "q2"] {
            let params = json!({ "_meta": { "progressToken": format!("token of {id}") } });
            let method = "sampling/createMessage";
            play.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        }
        let questions = a.heard();
        let tokens: Vec<&Value> =
            questions.iter().map(|it| &it["params"]["_meta"]["progressToken"]).collect();
        assert_ne!(tokens[0], tokens[1]);
        let method = "notifications/progress";
        for (token, expected) in [(tokens[1], Some("token of q2")), (&json!(77), None)] {
            let params = json!({ "progressToken": token, "progress": 1 });
            a.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
            let sent = play.sent();
            let found = sent.first().map(|it| it["params"]["progressToken"].as_str().unwrap());
            assert_eq!(found, expected);
        }
        // What is answered has no progress.
        a.say(&json!({ "jsonrpc": "2.0", "id": questions[1]["id"], "result": {} }));
        play.sent();
        let params = json!({ "progressToken": tokens[1], "progress": 1 });
        a.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        assert!(play.sent().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_reason_for_a_cancellation_is_passed_on() {
    here(async {
        let play = Harness::begin().await;
        let a = play.client(&json!({}));
        a.call("a");
        let (ours, _) = play.calls()[0];
        a.cancel("a");
        a.cancel("a");
        let sent = play.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0]["params"], json!({ "requestId": ours, "reason": "so" }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn servers_log_what_the_most_curious_wants_and_each_hears_its_own_part() {
    here(async {
        let play = Harness::begin().await;
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.ask(&json!("level"), "logging/setLevel", &json!({ "level": "critical" }));
        b.ask(&json!("level"), "logging/setLevel", &json!({ "level": "debug" }));
        let told: Vec<Value> = play.sent().iter().map(|it| it["params"]["level"].clone()).collect();
        assert_eq!(told, [json!("info"), json!("debug")], "b had said nothing at first");
        a.heard();
        a.call("a");
        play.say(&log("too little for a"));
        assert!(a.heard().is_empty());
        b.client_session.close();
        let told = play.sent();
        assert_eq!(told.last().unwrap()["params"]["level"], "critical");
    })
    .await;
}
