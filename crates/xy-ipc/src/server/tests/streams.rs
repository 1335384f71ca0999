//! Tests of the order of answers, notifications and ends.

use super::*;

#[tokio::test(start_paused = true)]
async fn answer_comes_first_and_end_last() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(7, "logs", json!({"name": "three"})).await;
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
async fn cancelled_stream_ends_after_the_answer() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "logs", json!({"name": "flood"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    peer.request(2, "logs_cancel", json!({"subscription_id": 0})).await;
    let mut after = Vec::new();
    loop {
        match peer.next_short().await.as_str() {
            "log" => {}
            "log_end" => break,
            other => after.push(other.to_owned()),
        }
    }
    assert_eq!(after, ["2 result"]);
    peer.request(3, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "3 result");
}

#[tokio::test(start_paused = true)]
async fn only_own_streams_can_be_cancelled_once() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "1 result");

    let mut other = server.client().await;
    other.request(1, "logs_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(other.next_short().await, "1 error -32602");

    peer.request(2, "events_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(peer.next_short().await, "2 result");
    assert_eq!(peer.next_short().await, "log_end");
    peer.request(3, "logs_cancel", json!({"subscription_id": 0})).await;
    assert_eq!(peer.next_short().await, "3 error -32602");
}

#[tokio::test(start_paused = true)]
async fn half_closed_follower_still_gets_lines() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "logs", json!({"name": "flood"})).await;
    peer.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(peer.next_short().await, "1 result");
    for _ in 0..5000 {
        assert_eq!(peer.next_short().await, "log");
    }
}
