//! The debug log has a line for each request that xy itself refuses.

use xy_transport::error_log::capture::Capture;
use xy_upstream::fault::{Cause, LossReason};

use super::*;

#[track_caller]
fn assert_logged(log: &Capture, parts: &[&str]) {
    let line = log.failed_request();
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(line.contains("client=\"#"), "{line}");
    assert!(!line.contains("s3cr3t"), "{line}");
}

#[tokio::test(start_paused = true)]
async fn each_refused_request_is_logged() {
    run_local(async {
        let log = Capture::begin();
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        let handle = |text: &str| client.client_session.handle(text.as_bytes(), 0);
        handle("{\"s3cr3t\"");
        assert_logged(&log, &["code=-32700", "outcome=\"refused\""]);
        client.ask(&json!(1), "tools/call", &json!(["s3cr3t"]));
        assert_logged(&log, &["code=-32602", "method=\"tools/call\""]);
        client.ask(&json!(2), "initialize", &json!({}));
        assert_logged(&log, &["code=-32600", "method=\"initialize\""]);
        client.ask(&json!(3), "no/method", &json!({}));
        assert_logged(&log, &["code=-32601", "method=\"no/method\"", "outcome=\"MethodNotFound\""]);
        let params = json!({ "name": "t__x", "arguments": { "a": "s3cr3t" } });
        client.ask(&json!(4), "tools/call", &params);
        assert_logged(&log, &["code=-32602", "method=\"tools/call\"", "tool=\"t__x\""]);
        let params = json!({ "uri": "file:///s3cr3t" });
        client.ask(&json!(5), "resources/read", &params);
        assert_logged(&log, &["method=\"resources/read\""]);
        client.call("open");
        client.call("open");
        assert_logged(&log, &["code=-32600", "method=\"tools/call\""]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_is_logged() {
    run_local(async {
        let log = Capture::begin();
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        client.call("a");
        harness.sent();
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        harness.router.on_instance_end(
            &harness.server,
            &harness.upstream,
            &LossReason::server("has ended"),
        );
        let (failed, call) = log.failed_request_and_call();
        for part in ["server=\"s\"", "method=\"tools/call\"", "client=\"#1\"", "elapsed="] {
            assert!(failed.contains(part), "{part}: {failed}");
            assert!(call.contains(part), "{part}: {call}");
        }
        assert!(
            failed.contains("tool=\"s__x\"") && call.contains("tool=\"x\""),
            "{failed}\n{call}"
        );
        assert!(failed.contains("outcome=\"OutcomeUnknown\" code=-32010"), "{failed}");
        assert!(call.contains("outcome=\"lost\""), "{call}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_cancelled_while_queued_is_logged() {
    run_local(async {
        let log = Capture::begin();
        let harness = Harness::begin().await;
        let client = harness.client(&json!({}));
        harness.upstream.close(&Cause::end(LossReason::server("has ended")));
        harness.router.on_instance_end(
            &harness.server,
            &harness.upstream,
            &LossReason::server("has ended"),
        );
        client.call("a");
        client.cancel("a");
        let parts = [
            "method=\"tools/call\"",
            "server=\"s\"",
            "tool=\"",
            "outcome=\"cancelled\"",
            "elapsed=",
        ];
        assert_logged(&log, &parts);
    })
    .await;
}
