//! Tests of what clients see when the daemon shuts down.

use super::*;

#[tokio::test(start_paused = true)]
async fn open_requests_are_answered_and_streams_end() {
    let mut server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    peer.request(2, "status", json!({"name": "3"})).await;
    server.wait_for_open_requests(1).await;
    server.begin_shutdown();
    assert_eq!(peer.next_short().await, "log_end");
    assert_eq!(peer.next_short().await, "2 result");
    assert_eq!(peer.next_short().await, "end");
    server.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flooding_stream_gets_its_end() {
    let mut server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "logs", json!({"name": "flood"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    server.begin_shutdown();
    let mut last = String::new();
    loop {
        match peer.next_short().await.as_str() {
            "end" => break,
            other => other.clone_into(&mut last),
        }
    }
    assert_eq!(last, "log_end");
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_hanging_request() {
    let mut server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "status", json!({"name": "1000"})).await;
    server.wait_for_open_requests(1).await;
    let start = Instant::now();
    server.begin_shutdown();
    assert_eq!(peer.next_short().await, "end");
    server.serving.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), FINISH_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn no_new_connection_is_accepted() {
    let mut server = TestServer::new();
    let mut peer = server.client().await;
    peer.request(1, "status", json!({"name": "3"})).await;
    server.wait_for_open_requests(1).await;
    server.begin_shutdown();
    sleep(Duration::from_secs(1)).await;
    let refused = UnixStream::connect(server.folder.path().join("s")).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
