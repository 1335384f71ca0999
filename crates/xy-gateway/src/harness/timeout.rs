//! Calls that take too long.

use super::*;

const IDLE: CallRules = CallRules { idle: Some(Duration::from_secs(10)), within: None };
const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };

fn progress(upstream_id: u64) -> Value {
    let params = json!({ "progressToken": upstream_id, "progress": 1 });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

#[tokio::test(start_paused = true)]
async fn idle_call_times_out_and_is_cancelled() {
    run_local(async {
        let harness = Harness::with_rules(IDLE, false).await;
        let client = harness.client(&json!({}));
        client.call("mine");
        let (upstream_id, _) = harness.calls()[0];
        advance_time(9 * SECOND).await;
        assert!(client.received().is_empty());
        advance_time(2 * SECOND).await;
        let words = client.error();
        for part in ["`tools/call s__x` of `s` timed out", "10s", "idle"] {
            assert!(words.contains(part), "{words}");
        }
        let sent = harness.sent();
        assert_eq!((&sent[0]["method"], sent.len()), (&json!("notifications/cancelled"), 1));
        assert_eq!(sent[0]["params"]["requestId"], upstream_id);
        // Later messages for this call are dropped.
        harness.answer(upstream_id);
        harness.send(&progress(upstream_id));
        assert!(client.received().is_empty());
        client.call("mine");
        let (again, _) = harness.calls()[0];
        harness.answer(again);
        assert_eq!(client.received()[0]["result"], json!({ "ok": again }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn any_message_of_a_call_resets_its_idle_timeout() {
    run_local(async {
        let harness = Harness::with_rules(IDLE, false).await;
        let client = harness.client(&json!({}));
        client.call("mine");
        let (upstream_id, _) = harness.calls()[0];
        advance_time(9 * SECOND).await;
        harness.send(&progress(upstream_id));
        advance_time(9 * SECOND).await;
        let params = json!({ "level": "info", "data": "x" });
        harness.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }),
        );
        advance_time(9 * SECOND).await;
        let received = client.received();
        assert_eq!(received.len(), 2, "{received:?}");
        assert_eq!(received[0]["params"]["progressToken"], "token of mine");
        advance_time(2 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_is_not_idle_while_its_client_is_asked() {
    run_local(async {
        let harness = Harness::with_rules(IDLE, false).await;
        let client = harness.client(&json!({ "sampling": {} }));
        client.call("mine");
        harness.ask("q", "sampling/createMessage");
        let question = client.received().remove(0);
        harness.sent();
        for _ in 0..10 {
            advance_time(9 * SECOND).await;
        }
        assert!(client.received().is_empty());
        client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": {} }));
        assert_eq!(harness.sent()[0]["id"], "q");
        advance_time(9 * SECOND).await;
        assert!(client.received().is_empty());
        advance_time(12 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn total_timeout_ignores_activity() {
    run_local(async {
        let harness = Harness::with_rules(WITHIN, false).await;
        let client = harness.client(&json!({}));
        client.call("mine");
        let (upstream_id, _) = harness.calls()[0];
        for _ in 0..9 {
            advance_time(SECOND).await;
            harness.send(&progress(upstream_id));
        }
        assert_eq!(client.received().len(), 9);
        advance_time(2 * SECOND).await;
        let words = client.error();
        assert!(words.contains("longer than 10s"), "{words}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_without_rules_never_times_out() {
    run_local(async {
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        client.call("mine");
        advance_time(1000 * SECOND).await;
        assert!(client.received().is_empty());
        harness.answer(harness.calls()[0].0);
        assert_eq!(client.received().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn answered_call_leaves_no_timeout_behind() {
    run_local(async {
        let harness = Harness::with_rules(IDLE, false).await;
        let client = harness.client(&json!({}));
        for round in 0..3 {
            client.call(&round.to_string());
            harness.answer(harness.calls()[0].0);
            assert_eq!(client.received().len(), 1);
            advance_time(11 * SECOND).await;
            assert!(client.received().is_empty());
        }
        client.call("last");
        advance_time(11 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_released_by_a_timeout_is_timed_too() {
    run_local(async {
        let harness = Harness::with_rules(WITHIN, false).await;
        harness.ask("first", "roots/list");
        let (a, b) = (harness.client(&json!({})), harness.client(&json!({})));
        a.call("a");
        b.call("b");
        assert_eq!(harness.calls().len(), 1, "b waits for a");
        advance_time(11 * SECOND).await;
        assert!(a.error().contains("timed out"));
        assert_eq!(harness.calls().len(), 1, "it is b's turn");
        advance_time(11 * SECOND).await;
        assert!(b.error().contains("timed out"));
    })
    .await;
}
