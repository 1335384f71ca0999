//! Tests of each limit, and that other clients are not affected.

use super::*;
use xy_protocol::framing::MAX_REQUEST_LINE;

#[tokio::test(start_paused = true)]
async fn connection_over_the_limit_is_rejected() {
    let server = TestServer::new();
    let mut peers = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        peers.push(server.client().await);
    }
    let mut one_more = server.client().await;
    assert_eq!(one_more.next_short().await, "null error -32008");
    assert_eq!(one_more.next_short().await, "end");

    peers.pop();
    sleep(Duration::from_secs(1)).await;
    let mut again = server.client().await;
    again.request(1, "list", Value::Null).await;
    assert_eq!(again.next_short().await, "1 result");
}

#[tokio::test(start_paused = true)]
async fn request_over_the_limit_waits() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    for id in 0..70 {
        peer.request(id, "status", json!({"name": "10"})).await;
    }
    server.wait_for_open_requests(MAX_OPEN_REQUESTS).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.open_requests(), MAX_OPEN_REQUESTS);
    for _ in 0..70 {
        assert!(peer.next_short().await.ends_with("result"));
    }
}

#[tokio::test(start_paused = true)]
async fn hang_up_is_noticed_while_not_reading() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    for id in 0..70 {
        peer.request(id, "status", json!({"name": "1000"})).await;
    }
    server.wait_for_open_requests(MAX_OPEN_REQUESTS).await;
    drop(peer);
    server.wait_for_open_requests(0).await;
}

#[tokio::test(start_paused = true)]
async fn endless_line_gets_one_error() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    let chunk = vec![b'x'; MAX_REQUEST_LINE];
    for _ in 0..100 {
        peer.send(&chunk).await;
    }
    assert_eq!(peer.next_short().await, "null error -32600");
    peer.send("\n").await;
    peer.request(1, "list", Value::Null).await;
    assert_eq!(peer.next_short().await, "1 result");
}

#[tokio::test(start_paused = true)]
async fn slow_line_closes_the_connection() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    let start = Instant::now();
    peer.send("{\"jsonrpc\"").await;
    assert_eq!(peer.next_short().await, "null error -32007");
    assert_eq!(peer.next_short().await, "end");
    assert_eq!(start.elapsed().as_secs(), LINE_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn trickled_bytes_do_not_extend_the_timeout() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    for _ in 0..29 {
        peer.send(" ").await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(peer.next_short().await, "null error -32007");
}

#[tokio::test(start_paused = true)]
async fn stream_over_the_limit_is_refused() {
    let server = TestServer::new();
    let mut peer = server.client().await;
    for id in 0..=MAX_SUBSCRIPTIONS as u64 {
        peer.request(id, "logs", json!({"name": "silent"})).await;
        let expected = if id < 16 { format!("{id} result") } else { format!("{id} error -32008") };
        assert_eq!(peer.next_short().await, expected);
    }
    peer.request(90, "logs_cancel", json!({"subscription_id": 3})).await;
    assert_eq!(peer.next_short().await, "90 result");
    assert_eq!(peer.next_short().await, "log_end");
    peer.request(91, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "91 result");
}

#[tokio::test(start_paused = true)]
async fn client_that_never_reads_delays_no_other() {
    let mut server = TestServer::new();
    let mut slow = server.client().await;
    slow.request(1, "logs", json!({"name": "flood"})).await;
    for id in 2..200 {
        slow.request(id, "list", Value::Null).await;
    }
    let mut peer = server.client().await;
    for id in 0..100 {
        peer.request(id, "list", Value::Null).await;
        assert_eq!(peer.next_short().await, format!("{id} result"));
    }
    let start = Instant::now();
    server.begin_shutdown();
    server.serving.await.unwrap();
    assert!(start.elapsed() <= FINISH_TIMEOUT + FLUSH_TIMEOUT + Duration::from_secs(1));
    drop(slow);
}

#[tokio::test(start_paused = true)]
async fn client_that_never_reads_can_hang_up() {
    let server = TestServer::new();
    let mut slow = server.client().await;
    slow.request(1, "logs", json!({"name": "flood"})).await;
    slow.request(2, "status", json!({"name": "1000"})).await;
    server.wait_for_open_requests(1).await;
    drop(slow);
    server.wait_for_open_requests(0).await;
}
