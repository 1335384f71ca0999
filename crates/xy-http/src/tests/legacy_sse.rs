//! The legacy SSE transport: one stream, and messages posted beside it.

use super::super::limits::{FINISH_TIMEOUT, KEEP_ALIVE_INTERVAL};
use super::*;
use crate::frontend::{Route, View};

/// Opens a session. Returns its stream and the endpoint for messages.
async fn open(server: &TestServer, path: &str) -> (Client, String) {
    let mut stream = server.client().await;
    let request = Request::new("GET", path).with("accept", "text/event-stream");
    stream.open(&request).await;
    let first = stream.chunk().await.unwrap();
    let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end().to_owned();
    assert!(endpoint.starts_with("/messages?session="), "{endpoint}");
    (stream, endpoint)
}

async fn post(server: &TestServer, endpoint: &str, body: &str) -> client::Answer {
    server.client().await.ask(&Request::post(endpoint, body)).await
}

fn call(id: u64, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[2]}}"#)
}

#[tokio::test]
async fn all_messages_use_the_one_stream() {
    with_service(rules(), async |server| {
        let (mut stream, endpoint) = open(server, "/sse").await;
        assert_eq!(server.frontend.newest().entry.view, View::Profile("default".to_owned()));
        let accepted = post(server, &endpoint, INITIALIZE).await;
        assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
        assert!(stream.event().await.unwrap().contains(r#""id":0,"result""#));
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(post(server, &endpoint, notification).await.status, 202);

        assert_eq!(post(server, &endpoint, &call(7, "tell")).await.status, 202);
        for expected in [r#""params":0"#, r#""params":1"#, r#""id":7,"result""#] {
            let event = stream.event().await.unwrap();
            assert!(event.contains(expected), "{event}");
        }
        server.frontend.newest().send("9", Route::Broadcast);
        assert_eq!(stream.event().await.as_deref(), Some("9"));
        assert_eq!(stream.last_event, None, "nothing of it can be sent twice");
        assert_eq!(server.stored(), StorageUse::default());
        advance_time(KEEP_ALIVE_INTERVAL).await;
        assert_eq!(stream.chunk().await.as_deref(), Some(": still here\n\n"));
    })
    .await;
}

#[tokio::test]
async fn each_path_has_its_own_view() {
    with_service(rules(), async |server| {
        for (path, view) in [
            ("/sse/p/work", View::Profile("work".to_owned())),
            ("/sse/s/git", View::Server("git".to_owned())),
        ] {
            let _open = open(server, path).await;
            assert_eq!(server.frontend.newest().entry.view, view);
        }
        let get = Request::legacy_sse().with("accept", "text/event-stream");
        assert_eq!(server.client().await.ask(&get.with("host", "evil.example")).await.status, 403);
        let none = Request::new("GET", "/sse/s/none").with("accept", "text/event-stream");
        assert_eq!(server.client().await.ask(&none).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn session_ends_with_its_stream() {
    with_service(rules(), async |server| {
        let (stream, endpoint) = open(server, "/sse").await;
        assert_eq!(server.gauges(), (1, 1));
        assert_eq!(post(server, &endpoint, &call(1, "wait")).await.status, 202);
        drop(stream);
        server.wait_for_gauges((0, 0)).await;
        assert!(server.frontend.newest().is_closed());
        assert_eq!(post(server, &endpoint, &call(2, "echo")).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn malformed_message_is_refused_in_its_response() {
    with_service(rules(), async |server| {
        let (_stream, endpoint) = open(server, "/sse").await;
        let answer = post(server, &endpoint, "{").await;
        assert_eq!((answer.status, answer.body.as_str()), (400, r#"{"no":-32700}"#));
        let large = " ".repeat(2 * 1024 * 1024);
        assert_eq!(post(server, &endpoint, &large).await.status, 413);
        assert_eq!(server.gauges(), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn transports_do_not_share_sessions() {
    with_service(rules(), async |server| {
        let (_stream, endpoint) = open(server, "/sse").await;
        let (mut client, id) = server.session().await;
        let legacy_sse = endpoint.rsplit_once('=').unwrap().1;
        for request in [
            Request::call(legacy_sse, 1, "echo", "[]"),
            Request::listen(legacy_sse),
            Request::end(legacy_sse),
        ] {
            assert_eq!(client.ask(&request).await.status, 404);
        }
        let crossed = format!("/messages?session={id}");
        assert_eq!(post(server, &crossed, &call(1, "echo")).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn session_belongs_to_its_token() {
    let auth = Auth::Tokens(vec![token("a", false), token("b", false)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        let mut stream = server.client().await;
        stream.open(&Request::legacy_sse().with("authorization", "Bearer a")).await;
        let first = stream.chunk().await.unwrap();
        let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end();
        for (token, status) in [("Bearer b", 404), ("Bearer c", 401), ("Bearer a", 202)] {
            let request = Request::post(endpoint, &call(1, "echo")).with("authorization", token);
            assert_eq!(server.client().await.ask(&request).await.status, status, "{token}");
        }
    })
    .await;
}

#[tokio::test]
async fn legacy_sessions_count_towards_the_limit() {
    with_service(HttpRules { sessions_max: 1, ..rules() }, async |server| {
        let (stream, _) = open(server, "/sse").await;
        assert_eq!(server.client().await.ask(&Request::legacy_sse()).await.status, 503);
        drop(stream);
        server.wait_for_gauges((0, 0)).await;
        open(server, "/sse").await;
    })
    .await;
}

#[tokio::test]
async fn slow_reader_loses_its_session() {
    with_service(rules(), async |server| {
        let (slow, _) = open(server, "/sse").await;
        let client_session = server.frontend.newest();
        let message = format!("\"{}\"", "1".repeat(1024 * 1024));
        within(async {
            while !server.metrics().contains("xy_http_closed_total{reason=\"slow-reader\"} 1") {
                client_session.send(&message, Route::Broadcast);
                tokio::task::yield_now().await;
            }
        })
        .await;
        server.wait_until(|| server.stored() == StorageUse::default()).await;
        drop(slow);
        server.wait_for_gauges((0, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn shutdown_ends_idle_streams_and_waits_for_busy_ones() {
    with_service(rules(), async |server| {
        let (mut idle, _) = open(server, "/sse").await;
        let (mut busy, endpoint) = open(server, "/sse").await;
        let client_session = server.frontend.newest();
        client_session.is_busy.set(true);
        assert_eq!(post(server, &endpoint, &call(1, "wait")).await.status, 202);
        server.spawn(async move {
            assert_eq!(idle.event().await, None);
            client_session.send("1", Route::Response(0));
            drop(client_session);
            assert_eq!(busy.event().await.as_deref(), Some("1"));
            advance_time(FINISH_TIMEOUT).await;
            assert_eq!(busy.event().await, None);
            assert!(busy.is_closed().await);
        });
    })
    .await;
}
