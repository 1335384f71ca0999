//! What clients see when the daemon goes.

use super::*;

#[tokio::test(start_paused = true)]
async fn requests_under_way_are_answered_and_streams_ended() {
    let mut stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "logs", json!({"name": "silent"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    peer.ask(2, "status", json!({"name": "3"})).await;
    stage.until_under_way(1).await;
    stage.begin_shutdown();
    assert_eq!(peer.next_short().await, "log_end");
    assert_eq!(peer.next_short().await, "2 result");
    assert_eq!(peer.next_short().await, "end");
    stage.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_in_full_flood_ends_with_its_end() {
    let mut stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "logs", json!({"name": "flood"})).await;
    assert_eq!(peer.next_short().await, "1 result");
    stage.begin_shutdown();
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
async fn a_request_that_does_not_finish_is_not_waited_for() {
    let mut stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "status", json!({"name": "1000"})).await;
    stage.until_under_way(1).await;
    let began = Instant::now();
    stage.begin_shutdown();
    assert_eq!(peer.next_short().await, "end");
    stage.serving.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), FINISH_WITHIN.as_secs());
}

#[tokio::test(start_paused = true)]
async fn nobody_new_is_let_in() {
    let mut stage = Stage::new();
    let mut peer = stage.client().await;
    peer.ask(1, "status", json!({"name": "3"})).await;
    stage.until_under_way(1).await;
    stage.begin_shutdown();
    sleep(Duration::from_secs(1)).await;
    let refused = UnixStream::connect(stage.folder.path().join("s")).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
