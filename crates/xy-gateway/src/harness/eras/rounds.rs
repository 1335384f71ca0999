//! Timeouts of calls that request input in several rounds.

use xy_upstream::fault::{Cause, LossReason};

use super::*;

const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };
const IDLE: CallRules = CallRules { idle: Some(Duration::from_secs(10)), within: None };

async fn modern(rules: CallRules) -> (Harness, TestClient) {
    let introduction = Introduction::discovered(MODERN).unwrap();
    let harness = Harness::with_introduction(rules, false, &introduction).await;
    let client = harness.client(&json!({ "roots": {} }));
    (harness, client)
}

/// Returns the upstream id of the only call sent since the last call.
#[track_caller]
fn only(harness: &Harness) -> u64 {
    let [(upstream_id, _)] = harness.calls().try_into().unwrap();
    upstream_id
}

/// Has the server request input for its only call. Returns the id under which the client is asked.
#[track_caller]
fn asked(harness: &Harness, client: &TestClient) -> Value {
    let inputs = json!({ "q": { "method": "roots/list" } });
    harness.send(&input_required_response(only(harness), &inputs, &json!("s")));
    let received = client.received();
    assert_eq!((received.len(), &received[0]["method"]), (1, &json!("roots/list")));
    received[0]["id"].clone()
}

fn answer_roots(client: &TestClient, id: &Value) {
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "result": { "roots": [] } }));
}

#[tokio::test(start_paused = true)]
async fn call_times_out_while_its_client_is_asked() {
    run_local(async {
        let (harness, client) = modern(WITHIN).await;
        client.call("a");
        advance_time(4 * SECOND).await;
        let question = asked(&harness, &client);
        advance_time(5 * SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        let received = client.received();
        assert_eq!(received.len(), 2, "{received:?}");
        assert_eq!(received[0]["params"]["requestId"], question, "the question is cancelled");
        assert_eq!(received[1]["id"], "a");
        let words = text(&received[1]["error"]["message"]);
        for part in ["`tools/call s__x` of `s` timed out", "10s", "within"] {
            assert!(words.contains(part), "{words}");
        }
        answer_roots(&client, &question); // Too late.
        assert!(
            harness.sent().is_empty(),
            "the server had no call to work on, and gets no cancellation"
        );
        client.call("a");
        harness.answer(only(&harness));
        assert_eq!(client.received().len(), 1);
        advance_time(60 * SECOND).await;
        assert!(client.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn new_round_does_not_restart_the_timeout() {
    run_local(async {
        let (harness, client) = modern(WITHIN).await;
        client.call("a");
        advance_time(4 * SECOND).await;
        let question = asked(&harness, &client);
        advance_time(4 * SECOND).await;
        // Another call has a later deadline.
        client.call("other");
        let sent = harness.calls();
        answer_roots(&client, &question);
        let again = only(&harness);
        advance_time(SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        let received = client.received();
        assert_eq!((received.len(), &received[0]["id"]), (1, &json!("a")));
        assert!(text(&received[0]["error"]["message"]).contains("longer than 10s"));
        let sent_messages = harness.sent();
        assert_eq!(
            (sent_messages.len(), &sent_messages[0]["params"]["requestId"]),
            (1, &json!(again))
        );
        harness.answer(sent[0].0);
        assert_eq!(client.received()[0]["id"], "other");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_rounds_share_one_timeout() {
    run_local(async {
        let (harness, client) = modern(WITHIN).await;
        client.call("a");
        let mut rounds = 0;
        let words = loop {
            advance_time(SECOND).await;
            let received = client.received();
            if let [answer] = received.as_slice() {
                break text(&answer["error"]["message"]);
            }
            harness.send(&input_required_response(only(&harness), &json!({}), &json!("again")));
            rounds += 1;
        };
        assert!(words.contains("longer than 10s"), "{words}");
        assert!(rounds < 11, "{rounds}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_is_not_idle_while_its_client_is_asked() {
    run_local(async {
        let (harness, client) = modern(IDLE).await;
        client.call("a");
        for _ in 0..3 {
            advance_time(9 * SECOND).await;
            let question = asked(&harness, &client);
            advance_time(600 * SECOND).await;
            assert!(client.received().is_empty());
            answer_roots(&client, &question);
        }
        advance_time(9 * SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        assert!(client.error().contains("no progress was reported for 10s"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn finished_round_leaves_no_timer_behind() {
    run_local(async {
        let (harness, client) = modern(WITHIN).await;
        for _ in 0..3 {
            client.call("a");
            let question = asked(&harness, &client);
            advance_time(6 * SECOND).await;
            answer_roots(&client, &question);
            harness.answer(only(&harness));
            assert_eq!(client.received().len(), 1);
        }
        client.call("b");
        asked(&harness, &client);
        client.cancel("b");
        assert_eq!(client.received().len(), 1, "its question is taken back");
        client.call("c");
        asked(&harness, &client);
        client.client_session.close();
        advance_time(20 * SECOND).await;
        assert!(client.received().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn elapsed_time_survives_a_server_restart() {
    run_local(async {
        let (mut harness, client) = modern(WITHIN).await;
        client.call("a");
        advance_time(4 * SECOND).await;
        let question = asked(&harness, &client);
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        harness.router.on_instance_end(
            &harness.server,
            &harness.upstream,
            &LossReason::server("has ended"),
        );
        answer_roots(&client, &question);
        assert_eq!(harness.server.waiting(), 1);
        advance_time(4 * SECOND).await;
        // The next process asks on its own terms, so it gets the call as it was at first.
        harness.restart().await;
        let sent = harness.sent();
        let call = sent.iter().find(|it| it["method"] == "tools/call").unwrap();
        assert!(call["params"]["inputResponses"].is_null(), "{call}");
        assert!(call["params"]["requestState"].is_null(), "{call}");
        advance_time(SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        assert!(client.error().contains("longer than 10s"), "since it was first sent");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn timeout_runs_while_a_call_waits_for_a_modern_client() {
    run_local(async {
        let harness = Harness::with_rules(WITHIN, false).await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        advance_time(8 * SECOND).await;
        // Another call has a later deadline.
        let other = harness.modern_call_by(1, 7, "other", &json!({}));
        let [_] = harness.calls().try_into().unwrap();
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        advance_time(SECOND).await;
        assert!(second.received().is_empty());
        advance_time(2 * SECOND).await;
        assert!(second.error().contains("longer than 10s"));
        assert!(other.received().is_empty());
        let sent_messages = harness.sent();
        assert_eq!(sent_messages.last().unwrap()["params"]["requestId"], upstream_id);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn client_that_returns_too_late_gets_a_timeout() {
    run_local(async {
        let harness = Harness::with_rules(WITHIN, false).await;
        let first = harness.modern_call(1, &json!({}));
        let [(upstream_id, _)] = harness.calls().try_into().unwrap();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        advance_time(9 * SECOND).await;
        assert!(harness.sent().is_empty());
        advance_time(2 * SECOND).await;
        let sent_messages = harness.sent();
        assert_eq!((sent_messages.len(), &sent_messages[0]["id"]), (2, &json!("a")));
        assert_eq!(sent_messages[0]["error"]["code"], -32603, "its request is refused");
        assert_eq!(sent_messages[1]["params"]["requestId"], upstream_id);
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        assert!(second.error().contains("longer than 10s"));
        assert!(harness.sent().is_empty());
        assert_eq!(harness.router.pending_inputs.len(), 0);
        // A call that times out before its client was asked reports this at once.
        let third = harness.modern_call(3, &json!({}));
        advance_time(Duration::from_millis(9_990)).await;
        harness.ask("b", "elicitation/create");
        settle().await;
        assert!(third.error().contains("longer than 10s"));
        assert_eq!(harness.router.pending_inputs.len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn modern_call_is_not_idle_while_its_client_is_asked() {
    run_local(async {
        let harness = Harness::with_rules(IDLE, false).await;
        let first = harness.modern_call(1, &json!({}));
        harness.sent();
        harness.ask("a", "elicitation/create");
        settle().await;
        let (_, state) = first.input_required();
        for _ in 0..50 {
            advance_time(9 * SECOND).await;
        }
        assert!(harness.sent().is_empty());
        let second = harness.modern_call(2, &answers(&state, &json!({ "q1": {} })));
        advance_time(9 * SECOND).await;
        assert!(second.received().is_empty());
        advance_time(2 * SECOND).await;
        assert!(second.error().contains("no progress was reported for 10s"));
    })
    .await;
}
