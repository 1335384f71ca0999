//! Health requests: does a server answer?

use xy_upstream::connection::RoundTrip;
use xy_upstream::fault::{Cause, LossReason};

use super::*;

const WITHIN: Duration = Duration::from_secs(5);

/// Sends a health request, and answers it as `reply` says.
async fn asked(harness: &Harness, is_other: bool, reply: fn(&Value) -> Option<Value>) -> RoundTrip {
    let upstream = harness.upstream.clone();
    let asking =
        tokio::task::spawn_local(async move { upstream.round_trip(is_other, WITHIN).await });
    advance_time(SECOND).await;
    for question in harness.sent() {
        if let Some(reply) = reply(&question) {
            harness.send(&reply);
        }
    }
    asking.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn error_response_counts_as_an_answer() {
    run_local(async {
        let harness = Harness::begin().await;
        harness.sent();
        let pong = asked(&harness, false, |it| {
            assert_eq!(it["method"], "ping");
            Some(json!({ "jsonrpc": "2.0", "id": it["id"], "result": {} }))
        });
        assert_eq!(pong.await, RoundTrip::Answered { took: SECOND });
        let unknown = asked(&harness, true, |it| {
            assert_eq!(it["method"], "tools/list");
            let error = json!({ "code": -32601, "message": "what?" });
            Some(json!({ "jsonrpc": "2.0", "id": it["id"], "error": error }))
        });
        assert_eq!(unknown.await, RoundTrip::Answered { took: SECOND });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silence_reports_the_number_of_open_calls() {
    run_local(async {
        let harness = Harness::begin().await;
        harness.sent();
        let silent = |calls| RoundTrip::Silent { calls, has_spoken: false };
        assert_eq!(asked(&harness, false, |_| None).await, silent(0));
        let client = harness.client(&json!({}));
        client.call("mine");
        assert_eq!(asked(&harness, false, |_| None).await, silent(1));
        let tells = asked(&harness, false, |_| {
            Some(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }))
        });
        assert_eq!(tells.await, RoundTrip::Silent { calls: 1, has_spoken: true });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ended_server_is_broken_not_silent() {
    run_local(async {
        let harness = Harness::begin().await;
        harness.sent();
        let upstream = harness.upstream.clone();
        let asking =
            tokio::task::spawn_local(async move { upstream.round_trip(false, WITHIN).await });
        advance_time(SECOND).await;
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        let RoundTrip::Broken(why) = asking.await.unwrap() else { panic!("it is not broken") };
        assert!(why.contains("`s` has ended"), "{why}");
    })
    .await;
}
