//! The debug log tells of each request that xy itself refuses.

use super::*;
use crate::error_log::capture::Capture;

#[track_caller]
fn assert_told(log: &Capture, parts: &[&str]) {
    let line = log.failed_request();
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(line.contains("client=\"#"), "{line}");
    assert!(!line.contains("s3cr3t"), "{line}");
}

#[tokio::test(start_paused = true)]
async fn each_refused_request_is_told() {
    here(async {
        let log = Capture::begin();
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        let handle = |text: &str| client.client_session.handle(text.as_bytes(), 0);
        handle("{\"s3cr3t\"");
        assert_told(&log, &["code=-32700", "outcome=\"refused\""]);
        client.ask(&json!(1), "tools/call", &json!(["s3cr3t"]));
        assert_told(&log, &["code=-32602", "method=\"tools/call\""]);
        client.ask(&json!(2), "initialize", &json!({}));
        assert_told(&log, &["code=-32600", "method=\"initialize\""]);
        client.ask(&json!(3), "no/method", &json!({}));
        assert_told(&log, &["code=-32601", "method=\"no/method\"", "outcome=\"MethodNotFound\""]);
        let params = json!({ "name": "t__x", "arguments": { "a": "s3cr3t" } });
        client.ask(&json!(4), "tools/call", &params);
        assert_told(&log, &["code=-32602", "method=\"tools/call\"", "tool=\"t__x\""]);
        let params = json!({ "uri": "file:///s3cr3t" });
        client.ask(&json!(5), "resources/read", &params);
        assert_told(&log, &["method=\"resources/read\""]);
        client.call("open");
        client.call("open");
        assert_told(&log, &["code=-32600", "method=\"tools/call\""]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_that_its_server_does_not_answer_is_told() {
    here(async {
        let log = Capture::begin();
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        client.call("s3cr3t");
        play.sent();
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        play.router.over(&play.server, &play.upstream, "`s` has ended");
        let told = ["method=\"tools/call\"", "server=\"s\"", "outcome=\"", "code=-32"];
        assert_told(&log, &told);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn call_that_is_cancelled_while_it_waits_is_told() {
    here(async {
        let log = Capture::begin();
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        play.router.over(&play.server, &play.upstream, "`s` has ended");
        client.call("a");
        client.cancel("a");
        let told = ["method=\"tools/call\"", "server=\"s\"", "outcome=\"cancelled\""];
        assert_told(&log, &told);
    })
    .await;
}
