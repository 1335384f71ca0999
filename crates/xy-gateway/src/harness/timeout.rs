//! Calls that take too long.

use super::*;

const IDLE: CallRules = CallRules { idle: Some(Duration::from_secs(10)), within: None };
const WITHIN: CallRules = CallRules { idle: None, within: Some(Duration::from_secs(10)) };

fn progress(ours: u64) -> Value {
    let params = json!({ "progressToken": ours, "progress": 1 });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

#[tokio::test(start_paused = true)]
async fn a_call_of_which_nothing_is_heard_times_out_and_is_cancelled() {
    here(async {
        let play = Harness::with(IDLE, false).await;
        let client = play.client(&json!({}));
        client.call("mine");
        let (ours, _) = play.calls()[0];
        later(9 * SECOND).await;
        assert!(client.heard().is_empty());
        later(2 * SECOND).await;
        let words = client.error();
        for part in ["`tools/call s__x` of `s` timed out", "10s", "idle"] {
            assert!(words.contains(part), "{words}");
        }
        let sent = play.sent();
        assert_eq!((&sent[0]["method"], sent.len()), (&json!("notifications/cancelled"), 1));
        assert_eq!(sent[0]["params"]["requestId"], ours);
        // What it says later is nobody's.
        play.answer(ours);
        play.say(&progress(ours));
        assert!(client.heard().is_empty());
        client.call("mine");
        let (again, _) = play.calls()[0];
        play.answer(again);
        assert_eq!(client.heard()[0]["result"], json!({ "ok": again }));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_belongs_to_a_call_shows_that_it_lives() {
    here(async {
        let play = Harness::with(IDLE, false).await;
        let client = play.client(&json!({}));
        client.call("mine");
        let (ours, _) = play.calls()[0];
        later(9 * SECOND).await;
        play.say(&progress(ours));
        later(9 * SECOND).await;
        let params = json!({ "level": "info", "data": "x" });
        play.say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
        later(9 * SECOND).await;
        let heard = client.heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert_eq!(heard[0]["params"]["progressToken"], "token of mine");
        later(2 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_is_asked_something_waits_for_the_client() {
    here(async {
        let play = Harness::with(IDLE, false).await;
        let client = play.client(&json!({ "sampling": {} }));
        client.call("mine");
        play.ask("q", "sampling/createMessage");
        let question = client.heard().remove(0);
        play.sent();
        for _ in 0..10 {
            later(9 * SECOND).await;
        }
        assert!(client.heard().is_empty());
        client.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": {} }));
        assert_eq!(play.sent()[0]["id"], "q");
        later(9 * SECOND).await;
        assert!(client.heard().is_empty());
        later(12 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_may_take_so_long_in_all_whatever_is_heard() {
    here(async {
        let play = Harness::with(WITHIN, false).await;
        let client = play.client(&json!({}));
        client.call("mine");
        let (ours, _) = play.calls()[0];
        for _ in 0..9 {
            later(SECOND).await;
            play.say(&progress(ours));
        }
        assert_eq!(client.heard().len(), 9);
        later(2 * SECOND).await;
        let words = client.error();
        assert!(words.contains("longer than 10s"), "{words}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_rules_a_call_may_take_for_ever() {
    here(async {
        let play = Harness::begin().await;
        let client = play.client(&json!({}));
        client.call("mine");
        later(1000 * SECOND).await;
        assert!(client.heard().is_empty());
        play.answer(play.calls()[0].0);
        assert_eq!(client.heard().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_in_time_is_left_alone_and_the_next_is_looked_after_again() {
    here(async {
        let play = Harness::with(IDLE, false).await;
        let client = play.client(&json!({}));
        for round in 0..3 {
            client.call(&round.to_string());
            play.answer(play.calls()[0].0);
            assert_eq!(client.heard().len(), 1);
            later(11 * SECOND).await;
            assert!(client.heard().is_empty());
        }
        client.call("last");
        later(11 * SECOND).await;
        assert!(client.error().contains("timed out"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_is_let_go_by_anothers_time_out_is_watched_too() {
    here(async {
        let play = Harness::with(WITHIN, false).await;
        play.ask("first", "roots/list");
        let (a, b) = (play.client(&json!({})), play.client(&json!({})));
        a.call("a");
        b.call("b");
        assert_eq!(play.calls().len(), 1, "b waits for a");
        later(11 * SECOND).await;
        assert!(a.error().contains("timed out"));
        assert_eq!(play.calls().len(), 1, "it is b's turn");
        later(11 * SECOND).await;
        assert!(b.error().contains("timed out"));
    })
    .await;
}
