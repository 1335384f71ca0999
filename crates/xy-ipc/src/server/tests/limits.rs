//! What each limit does, and that nobody else notices.

use super::*;
use crate::framing::MAX_REQUEST_LINE;

#[tokio::test(start_paused = true)]
async fn the_257th_connection_is_turned_away_and_room_comes_back() {
    let stage = Stage::new();
    let mut peers = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        peers.push(stage.client().await);
    }
    let mut one_more = stage.client().await;
    assert_eq!(one_more.next_short().await, "null error -32008");
    assert_eq!(one_more.next_short().await, "end");

    peers.pop();
    sleep(Duration::from_secs(1)).await;
    let mut again = stage.client().await;
    again.ask(1, "list", Value::Null).await;
    assert_eq!(again.next_short().await, "1 result");
}

#[tokio::test(start_paused = true)]
async fn the_65th_request_waits_until_one_is_answered_and_none_is_refused() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    for id in 0..70 {
        peer.ask(id, "status", json!({"name": "10"})).await;
    }
    stage.until_under_way(MAX_OPEN_REQUESTS).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.under_way(), MAX_OPEN_REQUESTS);
    for _ in 0..70 {
        assert!(peer.next_short().await.ends_with("result"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_is_seen_even_while_the_connection_is_not_read() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    for id in 0..70 {
        peer.ask(id, "status", json!({"name": "1000"})).await;
    }
    stage.until_under_way(MAX_OPEN_REQUESTS).await;
    drop(peer);
    stage.until_under_way(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_megabytes_without_a_newline_get_one_error_and_the_next_request_works() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    let chunk = vec![b'x'; MAX_REQUEST_LINE];
    for _ in 0..100 {
        peer.send(&chunk).await;
    }
    assert_eq!(peer.next_short().await, "null error -32600");
    peer.send("\n").await;
    peer.ask(1, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "1 result");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_takes_too_long_is_told_and_the_connection_closed() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    let began = Instant::now();
    peer.send("{\"jsonrpc\"").await;
    assert_eq!(peer.next_short().await, "null error -32007");
    assert_eq!(peer.next_short().await, "end");
    assert_eq!(began.elapsed().as_secs(), LINE_WITHIN.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_trickle_of_bytes_does_not_buy_more_time() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    for _ in 0..29 {
        peer.send(" ").await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(peer.next_short().await, "null error -32007");
}

#[tokio::test(start_paused = true)]
async fn the_17th_stream_is_refused_and_a_cancelled_one_makes_room() {
    let stage = Stage::new();
    let mut peer = stage.client().await;
    for id in 0..=MAX_SUBSCRIPTIONS as u64 {
        peer.ask(id, "logs", json!({"name": "silent"})).await;
        let expected = if id < 16 { format!("{id} result") } else { format!("{id} error -32008") };
        assert_eq!(peer.next_short().await, expected);
    }
    peer.ask(90, "logs_cancel", json!({"subscription_id": 3})).await;
    assert_eq!(peer.next_short().await, "90 result");
    assert_eq!(peer.next_short().await, "log_end");
    peer.ask(91, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "91 result");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_noticed_by_nobody() {
    let mut stage = Stage::new();
    let mut deaf = stage.client().await;
    deaf.ask(1, "logs", json!({"name": "flood"})).await;
    for id in 2..200 {
        deaf.ask(id, "list", Value::Null).await;
    }
    let mut peer = stage.client().await;
    for id in 0..100 {
        peer.ask(id, "list", Value::Null).await;
        assert_eq!(peer.next_short().await, format!("{id} result"));
    }
    let began = Instant::now();
    stage.begin_shutdown();
    stage.serving.await.unwrap();
    assert!(began.elapsed() <= FINISH_WITHIN + FLUSH_WITHIN + Duration::from_secs(1));
    drop(deaf);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_read_can_hang_up_at_once() {
    let stage = Stage::new();
    let mut deaf = stage.client().await;
    deaf.ask(1, "logs", json!({"name": "flood"})).await;
    deaf.ask(2, "status", json!({"name": "1000"})).await;
    stage.until_under_way(1).await;
    drop(deaf);
    stage.until_under_way(0).await;
}
