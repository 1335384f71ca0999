//! How connections, calls and sessions end.

use super::*;
use crate::frontend::Route;

#[tokio::test]
async fn thousand_requests_use_one_connection() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for call in 0..1000 {
            let answer = client.ask(&Request::call(&id, call, "echo", "[]")).await;
            assert_eq!(answer.json()["id"], call);
        }
        assert_eq!(server.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let all: String = (0..50)
            .map(|call| {
                let method = if call % 5 == 0 { "tell" } else { "echo" };
                Request::call(&id, call, method, "[2]").text()
            })
            .collect();
        client.send(all.as_bytes()).await;
        for call in 0..50 {
            let answer = client.answer().await;
            assert!(answer.body.contains(&format!(r#""id":{call},"#)), "{call}: {answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn request_may_arrive_byte_by_byte() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for byte in Request::call(&id, 9, "echo", "[]").text().bytes() {
            client.send(&[byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.answer().await.json()["id"], 9);
    })
    .await;
}

#[tokio::test]
async fn leaving_client_cancels_nothing_and_gets_the_rest_on_its_listener() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        client.send(Request::call(&id, 5, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        drop(client);
        server.wait_for_gauges((1, 0)).await;
        let client_session = server.frontend.newest();
        let stream = client_session.streams_of("wait")[0];
        client_session.send("1", Route::Related(stream));
        client_session.send("2", Route::Response(stream));
        assert!(server.metrics().contains("xy_http_lost_messages_total{reason=\"no-reader\"} 1"));
        let mut again = server.client().await;
        assert_eq!(again.ask(&Request::call(&id, 6, "echo", "[]")).await.status, 200);
        again.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(again.head().await.status, 200);
        assert_eq!(again.event().await.as_deref(), Some("1"));
    })
    .await;
}

#[tokio::test]
async fn client_that_leaves_during_initialize_frees_its_session() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let never = INITIALIZE.replace("{}", "[1]");
        client.send(Request::post("/mcp", &never).text().as_bytes()).await;
        server.wait_until(|| server.service.sessions().pending() == 1).await;
        drop(client);
        server.wait_until(|| server.service.sessions().pending() == 0).await;
        assert!(server.frontend.newest().is_closed());
    })
    .await;
}

#[tokio::test]
async fn session_end_closes_its_open_streams() {
    with_service(rules(), async |server| {
        let (mut listener, id) = server.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let (mut waiting, mut related) = (server.client().await, server.client().await);
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 2)).await;
        related.send(Request::call(&id, 2, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 3)).await;
        let client_session = server.frontend.newest();
        client_session.send("1", Route::Related(client_session.streams_of("wait")[1]));
        assert_eq!(related.head().await.status, 200);

        let mut client = server.client().await;
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(listener.event().await, None);
        assert_eq!(related.event().await.as_deref(), Some("1"));
        assert_eq!(related.event().await, None);
        let answer = waiting.answer().await;
        assert_eq!(answer.status, 200);
        // On a slow machine the response is an event stream by now, with an empty first event.
        assert!(!answer.body.contains("jsonrpc"), "{}", answer.body);
        assert_eq!(server.gauges(), (0, 0));
        // The connections stay open.
        server.is_ready.set(true);
        for client in [&mut listener, &mut related, &mut waiting] {
            assert_eq!(client.ask(&Request::new("GET", "/readyz")).await.status, 200);
        }
    })
    .await;
}

#[tokio::test]
async fn idle_session_ends_unless_a_stream_is_open() {
    let idle = Duration::from_secs(30);
    with_service(HttpRules { idle, ..rules() }, async |server| {
        let (_idle, _) = server.session().await;
        let (mut listening, id) = server.session().await;
        listening.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listening.head().await.status, 200);
        advance_time(idle).await;
        server.wait_for_gauges((1, 1)).await;
        assert!(server.frontend.sessions()[0].is_closed());
        advance_time(idle).await;
        drop(listening);
        server.wait_for_gauges((1, 0)).await;
        advance_time(idle / 2).await; // The end of its stream counted as use.
        tokio::task::yield_now().await;
        assert_eq!(server.gauges(), (1, 0));
        advance_time(idle).await;
        advance_time(idle).await;
        server.wait_for_gauges((0, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn session_may_be_idle_forever() {
    with_service(HttpRules { idle: Duration::MAX, ..rules() }, async |server| {
        let (_client, id) = server.session().await;
        advance_time(Duration::from_secs(3 * 24 * 60 * 60)).await;
        let mut again = server.client().await;
        assert_eq!(again.ask(&Request::call(&id, 1, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn shutdown_waits_for_calls_and_ends_listening_streams() {
    with_service(rules(), async |server| {
        let (mut listener, id) = server.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let mut waiting = server.client().await;
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 2)).await;
        let client_session = server.frontend.newest();
        server.spawn(async move {
            assert_eq!(listener.event().await, None);
            assert!(listener.is_closed().await);
            client_session.send("{}", Route::Response(client_session.streams_of("wait")[0]));
            drop(client_session);
            assert_eq!(waiting.answer().await.body, "{}");
            assert!(waiting.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn shutdown_does_not_wait_forever() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        client.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        server.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            advance_time(super::super::limits::FINISH_TIMEOUT).await;
            client.answer().await; // The response that reports the lost outcome.
            assert!(client.is_closed().await);
        });
    })
    .await;
}
