//! The order of answers, notifications and ends.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_answer_comes_first_and_the_end_last() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(7, "logs", json!({"name": "three"})).await;
    let answer = peer.next().await;
    assert_eq!(answer["result"], json!({"subscription_id": 0}));
    for line in 0..3 {
        assert_eq!(peer.next().await["params"]["line"], line);
    }
    let end = peer.next().await;
    assert_eq!(
        end,
        json!({"jsonrpc": "2.0", "method": "log_end", "params": {"subscription_id": 0}})
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_stream_ends_after_the_answer_that_says_so() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "logs", json!({"name": "flood"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    peer.ask(2, "logs_cancel", json!({"subscription_id": 0})).await;
    let mut after = Vec::new();
    loop {
        match peer.next_short().await.as_str() {
            "log" => {}
            "log_end" => break,
            other => after.push(other.to_owned()),
        }
    }
    assert_eq!(after, ["2 result"]);
    peer.ask(3, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "3 result");
}

#[tokio::test(start_paused = true)]
async fn only_a_stream_of_ones_own_can_be_cancelled_and_only_once() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "1 result");

    let mut other = stage.client().await;
    other.ask(1, "logs_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(other.next_short().await, "1 error -32602");

    peer.ask(2, "events_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(peer.next_short().await, "2 result");
    assert_eq!(peer.next_short().await, "log_end");
    peer.ask(3, "logs_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(peer.next_short().await, "3 error -32602");
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_only_stops_sending_is_fed_on() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "logs", json!({"name": "flood"})).await;
    peer.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(peer.next_short().await, "1 result");
    for _ in 0..5000 {
        assert_eq!(peer.next_short().await, "log");
    }
}
