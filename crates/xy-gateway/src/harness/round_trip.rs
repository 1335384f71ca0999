//! A question to see whether a server answers.

use super::*;
use crate::upstream::RoundTrip;

const WITHIN: Duration = Duration::from_secs(5);

/// Asks, and answers as `reply` says, if it says anything.
async fn asked(play: &Harness, is_other: bool, reply: fn(&Value) -> Option<Value>) -> RoundTrip {
    let upstream = play.upstream.clone();
    let asking =
        tokio::task::spawn_local(async move { upstream.round_trip(is_other, WITHIN).await });
    later(SECOND).await;
    for question in play.sent() {
        if let Some(reply) = reply(&question) {
            play.say(&reply);
        }
    }
    asking.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_an_answer_also_if_it_is_an_error() {
    here(async {
        let play = Harness::begin().await;
        play.sent();
        let pong = asked(&play, false, |it| {
            assert_eq!(it["method"], "ping");
            Some(json!({ "jsonrpc": "2.0", "id": it["id"], "result": {} }))
        });
        assert_eq!(pong.await, RoundTrip::Answered { took: SECOND });
        let unknown = asked(&play, true, |it| {
            assert_eq!(it["method"], "tools/list");
            let error = json!({ "code": -32601, "message": "what?" });
            Some(json!({ "jsonrpc": "2.0", "id": it["id"], "error": error }))
        });
        assert_eq!(unknown.await, RoundTrip::Answered { took: SECOND });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_is_silent_may_have_other_calls_to_do() {
    here(async {
        let play = Harness::begin().await;
        play.sent();
        let silent = |calls| RoundTrip::Silent { calls, has_spoken: false };
        assert_eq!(asked(&play, false, |_| None).await, silent(0));
        let client = play.client(&json!({}));
        client.call("mine");
        assert_eq!(asked(&play, false, |_| None).await, silent(1));
        let tells = asked(&play, false, |_| {
            Some(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }))
        });
        assert_eq!(tells.await, RoundTrip::Silent { calls: 1, has_spoken: true });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_ends_meanwhile_is_not_silent() {
    here(async {
        let play = Harness::begin().await;
        play.sent();
        let upstream = play.upstream.clone();
        let asking =
            tokio::task::spawn_local(async move { upstream.round_trip(false, WITHIN).await });
        later(SECOND).await;
        play.upstream.close(crate::upstream::Cause::end("`s` has ended"));
        let RoundTrip::Broken(why) = asking.await.unwrap() else { panic!("it is not broken") };
        assert!(why.contains("`s` has ended"), "{why}");
    })
    .await;
}
