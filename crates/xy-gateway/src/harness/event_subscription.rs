//! Subscriptions to the events of a modern server: what they ask for, and what happens when they
//! end.

use tokio::task::JoinHandle;
use xy_mcp::modern::SUBSCRIPTION;
use xy_upstream::connection::EventFilter;
use xy_upstream::fault::{Cause, LossReason};

use super::*;

/// Returns a harness whose server is modern, and the task that keeps listening to it.
async fn modern(capabilities: &str) -> (Harness, JoinHandle<()>) {
    let harness = Harness::begin().await;
    let result = format!(r#"{{"supportedVersions":["2026-07-28"],"capabilities":{capabilities}}}"#);
    harness.upstream.resume(Introduction::discovered(&result).unwrap(), false).await;
    harness.router.on_instance_ready(&harness.upstream);
    let upstream = harness.upstream.clone();
    let keeping = tokio::task::spawn_local(async move { upstream.keep_listening().await });
    advance_time(Duration::ZERO).await;
    (harness, keeping)
}

const CHANGING: &str = r#"{"tools":{"listChanged":true},"prompts":{},"resources":{}}"#;

impl Harness {
    /// Returns the subscriptions sent to the server since the last call: ids and filters.
    fn subscriptions(&self) -> Vec<(u64, Value)> {
        let subscriptions =
            self.sent().into_iter().filter(|it| it["method"] == "subscriptions/listen");
        subscriptions
            .map(|it| (it["id"].as_u64().unwrap(), it["params"]["notifications"].clone()))
            .collect()
    }

    /// Sends the server's acknowledgement of these resources.
    fn acknowledge(&self, upstream_id: u64, uris: &[&str]) {
        let params = json!({
            "_meta": { SUBSCRIPTION: upstream_id },
            "notifications": { "resourceSubscriptions": uris },
        });
        let method = "notifications/subscriptions/acknowledged";
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn refuse(&self, upstream_id: u64, code: i64) {
        let error = json!({ "code": code, "message": "no" });
        self.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "error": error }));
    }

    /// Subscribes to these resources.
    fn subscribe(&self, uris: &[&str]) -> JoinHandle<Result<Vec<String>, String>> {
        let uris = uris.iter().map(|&uri| uri.to_owned()).collect();
        let received = self.upstream.listen_to(EventFilter { uris, ..EventFilter::default() });
        tokio::task::spawn_local(async move {
            let received = received.await;
            received.map(|it| it.uris.iter().cloned().collect()).map_err(|fault| fault.to_string())
        })
    }
}

fn cancelled(sent: &[Value]) -> Vec<&Value> {
    let cancelled = sent.iter().filter(|it| it["method"] == "notifications/cancelled");
    cancelled.map(|it| &it["params"]["requestId"]).collect()
}

#[tokio::test(start_paused = true)]
async fn subscription_asks_for_list_changes_and_requested_resources() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        let subscriptions = harness.subscriptions();
        assert_eq!(subscriptions.len(), 1);
        assert_eq!(subscriptions[0].1, json!({ "toolsListChanged": true }));
        harness.acknowledge(subscriptions[0].0, &[]);
        advance_time(SECOND).await;
        assert_eq!(harness.upstream.open_calls(), 0, "no call waits for that");

        let received = harness.subscribe(&["a:1", "a:2"]);
        advance_time(Duration::ZERO).await;
        let sent = harness.sent();
        assert_eq!(
            sent.len(),
            1,
            "the old one is kept until the new one is acknowledged: {sent:?}"
        );
        let filter = &sent[0]["params"]["notifications"];
        assert_eq!(
            filter,
            &json!({ "toolsListChanged": true, "resourceSubscriptions": ["a:1", "a:2"] })
        );
        harness.acknowledge(sent[0]["id"].as_u64().unwrap(), &["a:1"]);
        assert_eq!(received.await.unwrap(), Ok(vec!["a:1".to_owned()]));
        assert_eq!(cancelled(&harness.sent()), [&json!(subscriptions[0].0)]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_subscription_without_events() {
    run_local(async {
        let (harness, _keeping) = modern(r#"{"tools":{}}"#).await;
        assert_eq!(harness.subscriptions(), []);
        let received = harness.subscribe(&["a:1"]);
        advance_time(Duration::ZERO).await;
        let subscriptions = harness.subscriptions();
        harness.acknowledge(subscriptions[0].0, &["a:1"]);
        assert_eq!(received.await.unwrap(), Ok(vec!["a:1".to_owned()]));
        assert_eq!(harness.subscribe(&[]).await.unwrap(), Ok(Vec::new()));
        assert_eq!(cancelled(&harness.sent()), [&json!(subscriptions[0].0)]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_subscriptions_are_merged_and_the_last_wins() {
    run_local(async {
        let (harness, _keeping) = modern("{}").await;
        let all: Vec<_> =
            [&["a:1"][..], &["a:1", "a:2"], &["a:2"]].map(|it| harness.subscribe(it)).into();
        advance_time(Duration::ZERO).await;
        let subscriptions = harness.subscriptions();
        assert_eq!(subscriptions.len(), 1);
        assert_eq!(subscriptions[0].1["resourceSubscriptions"], json!(["a:2"]));
        harness.acknowledge(subscriptions[0].0, &["a:2"]);
        for received in all {
            assert_eq!(received.await.unwrap(), Ok(vec!["a:2".to_owned()]));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn subscription_during_a_pending_one_gets_its_own_answer() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        let first = harness.subscriptions()[0].0;
        let received = harness.subscribe(&["a:1"]);
        advance_time(Duration::ZERO).await;
        assert_eq!(harness.subscriptions(), [], "one after another");
        harness.acknowledge(first, &[]);
        advance_time(Duration::ZERO).await;
        harness.acknowledge(harness.subscriptions()[0].0, &["a:1"]);
        assert_eq!(received.await.unwrap(), Ok(vec!["a:1".to_owned()]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unsupported_subscription_is_not_retried() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        harness.refuse(harness.subscriptions()[0].0, -32601);
        advance_time(600 * SECOND).await;
        assert_eq!(harness.subscriptions(), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ended_subscription_backs_off_and_refreshes_lists() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        let mut waited = Vec::new();
        for how in 0..9 {
            let mut subscriptions = harness.subscriptions();
            let mut half_seconds = 0;
            while subscriptions.is_empty() {
                advance_time(SECOND / 2).await;
                half_seconds += 1;
                subscriptions = harness.subscriptions();
            }
            waited.push(half_seconds);
            let upstream_id = subscriptions[0].0;
            match how % 3 {
                0 => harness.refuse(upstream_id, -32603),
                1 => {
                    harness.acknowledge(upstream_id, &[]);
                    advance_time(Duration::ZERO).await;
                    harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": {} }));
                }
                _ => {
                    harness.acknowledge(upstream_id, &[]);
                    advance_time(Duration::ZERO).await;
                    let params = json!({ "requestId": upstream_id });
                    let method = "notifications/cancelled";
                    harness.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
                }
            }
            advance_time(Duration::ZERO).await;
        }
        assert_eq!(waited, [0, 1, 2, 4, 8, 16, 32, 64, 120]);
        advance_time(60 * SECOND).await;
        let upstream_id = harness.subscriptions()[0].0;
        harness.acknowledge(upstream_id, &[]);
        tokio::time::timeout(SECOND, harness.upstream.lists_changed_again()).await.unwrap();
        // A subscription that lasted a while is renewed soon.
        advance_time(60 * SECOND).await;
        harness.send(&json!({ "jsonrpc": "2.0", "id": upstream_id, "result": {} }));
        advance_time(Duration::ZERO).await;
        advance_time(SECOND / 2).await;
        assert_eq!(harness.subscriptions().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_subscription_times_out_and_the_old_one_stays() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        let first = harness.subscriptions()[0].0;
        harness.acknowledge(first, &[]);
        advance_time(Duration::ZERO).await;
        let received = harness.subscribe(&["a:1"]);
        advance_time(Duration::ZERO).await;
        let second = harness.subscriptions()[0].0;
        advance_time(10 * SECOND).await;
        let why = received.await.unwrap().unwrap_err();
        assert!(why.contains("within 10s"), "{why}");
        assert_eq!(cancelled(&harness.sent()), [&json!(second)], "the first subscription stays");
        harness.acknowledge(second, &["a:1"]); // Too late.
        harness.acknowledge(99, &["a:1"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pending_subscription_fails_when_the_server_ends() {
    run_local(async {
        let (harness, keeping) = modern("{}").await;
        let received = harness.subscribe(&["a:1"]);
        advance_time(Duration::ZERO).await;
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        advance_time(Duration::ZERO).await;
        assert!(received.await.unwrap().is_err());
        keeping.abort();
        let unheard = harness.subscribe(&["a:1"]);
        advance_time(30 * SECOND).await;
        assert!(unheard.await.unwrap().is_err(), "no subscription waits forever");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn events_on_the_subscription_reach_no_client() {
    run_local(async {
        let (harness, _keeping) = modern(CHANGING).await;
        let upstream_id = harness.subscriptions()[0].0;
        harness.acknowledge(upstream_id, &[]);
        advance_time(Duration::ZERO).await;
        let client = harness.client(&json!({}));
        client.call("c");
        let calls = harness.calls();
        assert_eq!(calls.len(), 1);
        let params = json!({ "_meta": { SUBSCRIPTION: upstream_id } });
        let method = "notifications/tools/list_changed";
        let line = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        harness.upstream.handle(line.to_string().as_bytes(), Some(upstream_id));
        tokio::time::timeout(SECOND, harness.upstream.lists_changed_again()).await.unwrap();
        assert_eq!(client.received(), [] as [Value; 0]);
        harness.answer(calls[0].0);
        assert_eq!(client.received().len(), 1);
    })
    .await;
}
