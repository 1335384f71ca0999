//! Broken streams and their resumption.

use xy_transport::error_log::capture::Capture;

use super::super::limits::{
    CROWDED_THRESHOLD, DISCONNECTED_STREAMS_MAX, FETCH_TIMEOUT, FINISH_TIMEOUT,
    KEEP_ALIVE_INTERVAL, SENT_FETCH_TIMEOUT, STORED_BYTES_MAX, STREAM_DELAY,
};
use super::*;
use crate::fake::FakeSession;
use crate::frontend::{Route, StreamNo};

/// Starts a call on its own connection, whose client has received one event.
async fn begun_call(server: &TestServer, session: &str) -> (Client, StreamNo, String) {
    let (mut client, stream) = waiting_call(server, session).await;
    server.frontend.newest().send(r#"{"first":1}"#, Route::Related(stream));
    assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
    assert_eq!(client.event().await.as_deref(), Some(r#"{"first":1}"#));
    let id = client.last_event.clone().unwrap();
    (client, stream, id)
}

async fn waiting_call(server: &TestServer, session: &str) -> (Client, StreamNo) {
    let client_session = server.frontend.newest();
    let before = client_session.streams_of("wait").len();
    let mut client = server.client().await;
    let call = Request::call(session, 100 + before as u64, "wait", "[]");
    client.send(call.text().as_bytes()).await;
    server.wait_until(|| client_session.streams_of("wait").len() > before).await;
    (client, client_session.streams_of("wait")[before])
}

/// Drops the connection, and waits until the service has noticed.
async fn cut(server: &TestServer, client: Client) {
    let disconnected = server.disconnected();
    drop(client);
    server.wait_until(|| server.disconnected() > disconnected).await;
}

fn send(client_session: &Rc<FakeSession>, messages: &[&str], to: Route) {
    for message in messages {
        client_session.send(message, to);
    }
}

#[tokio::test]
async fn broken_stream_replays_missed_events_and_continues_live() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        let (mut other, _, other_after) = begun_call(server, &id).await;
        cut(server, first).await;
        let client_session = server.frontend.newest();
        send(&client_session, &["2", "3"], Route::Related(stream));
        assert_ne!(after, other_after);

        let mut again = server.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
        assert_eq!(again.event().await.as_deref(), Some("3"));
        send(&client_session, &["4"], Route::Related(stream));
        assert_eq!(again.event().await.as_deref(), Some("4"));
        send(&client_session, &["5"], Route::Response(stream));
        assert_eq!(again.event().await.as_deref(), Some("5"));
        assert_eq!(again.event().await, None);

        // No event is left. This status ends all further attempts.
        let last = again.last_event.clone().unwrap();
        let answer = again.ask(&Request::resume(&id, &last)).await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        let stream = client_session.streams_of("wait")[1];
        send(&client_session, &["6"], Route::Response(stream));
        assert_eq!(other.event().await.as_deref(), Some("6"));
    })
    .await;
}

#[tokio::test]
async fn answer_to_a_disconnected_client_is_replayed() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        send(&server.frontend.newest(), &["2"], Route::Response(stream));
        for _ in 0..2 {
            // Twice, since the service cannot know if the first response arrived.
            client.open(&Request::resume(&id, &after)).await;
            assert_eq!(client.event().await.as_deref(), Some("2"));
            assert_eq!(client.event().await, None);
        }
        assert!(!server.metrics().contains("xy_http_lost_messages_total{"));
    })
    .await;
}

#[tokio::test]
async fn slow_call_becomes_a_resumable_stream() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (mut silent, stream) = waiting_call(server, &id).await;
        advance_time(STREAM_DELAY).await;
        assert_eq!(silent.head().await.header("content-type"), Some("text/event-stream"));
        let after = silent.first_id().await;
        assert!(after.ends_with("-0"), "{after}");
        cut(server, silent).await;
        send(&server.frontend.newest(), &["1"], Route::Response(stream));
        let mut again = server.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("1"));
        assert_eq!(again.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn older_revision_gets_no_empty_event_and_can_resume() {
    with_service(rules(), async |server| {
        let (mut listener, id) = server.session().await;
        server.frontend.newest().version.set("2025-06-18");
        listener.open(&Request::listen(&id)).await;
        let (mut silent, stream) = waiting_call(server, &id).await;
        advance_time(STREAM_DELAY).await;
        assert_eq!(silent.head().await.header("content-type"), Some("text/event-stream"));
        advance_time(KEEP_ALIVE_INTERVAL).await;
        for client in [&mut silent, &mut listener] {
            assert_eq!(client.chunk().await.as_deref(), Some(": still here\n\n"));
        }
        let client_session = server.frontend.newest();
        send(&client_session, &["1", "2"], Route::Related(stream));
        assert_eq!(silent.event().await.as_deref(), Some("1"));
        let after = silent.last_event.clone().unwrap();
        cut(server, silent).await;
        send(&client_session, &["3"], Route::Response(stream));
        let mut again = server.client().await;
        again.send(Request::resume(&id, &after).text().as_bytes()).await;
        let answer = again.answer().await;
        assert_eq!(answer.events(), ["2", "3"]);
        assert!(!answer.body.contains("data: \n"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn client_that_accepts_anything_gets_json_however_slow() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "*/*");
        client.send(call.text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        advance_time(STREAM_DELAY).await;
        let client_session = server.frontend.newest();
        send(&client_session, &["{}"], Route::Response(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
    })
    .await;
}

#[tokio::test]
async fn call_of_a_client_that_left_before_any_event_loses_its_answer() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (silent, stream) = waiting_call(server, &id).await;
        drop(silent);
        server.wait_for_gauges((1, 0)).await;
        assert_eq!(server.disconnected(), 0);
        let client_session = server.frontend.newest();
        assert!(!client_session.is_closed());
        send(&client_session, &["1"], Route::Response(stream));
        assert!(server.metrics().contains("xy_http_lost_messages_total{reason=\"no-reader\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn listening_stream_resumes_where_it_was() {
    with_service(rules(), async |server| {
        let (mut first, id) = server.session().await;
        let client_session = server.frontend.newest();
        first.open(&Request::listen(&id)).await;
        send(&client_session, &["1", "2"], Route::Broadcast);
        assert_eq!(first.event().await.as_deref(), Some("1"));
        let after = first.last_event.clone().unwrap();
        cut(server, first).await;
        send(&client_session, &["3"], Route::Broadcast);
        let mut again = server.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
        assert_eq!(again.event().await.as_deref(), Some("3"));
        send(&client_session, &["4"], Route::Broadcast);
        assert_eq!(again.event().await.as_deref(), Some("4"));
    })
    .await;
}

#[tokio::test]
async fn each_message_is_on_exactly_one_stream() {
    with_service(HttpRules { streams_per_session_max: 20, ..rules() }, async |server| {
        let (_client, id) = server.session().await;
        let client_session = server.frontend.newest();
        let mut calls = Vec::new();
        for _ in 0..8 {
            calls.push(begun_call(server, &id).await);
        }
        let mut listeners = Vec::new();
        for _ in 0..3 {
            let mut listener = server.client().await;
            listener.open(&Request::listen(&id)).await;
            listener.first_id().await;
            listeners.push(listener);
        }
        for round in 0..5 {
            for (_, stream, _) in &calls {
                send(&client_session, &[&format!("[{stream},{round}]")], Route::Related(*stream));
            }
            send(&client_session, &[&format!("[0,{round}]")], Route::Broadcast);
        }
        for (client, stream, _) in &mut calls {
            send(&client_session, &["\"end\""], Route::Response(*stream));
            for round in 0..5 {
                assert_eq!(client.event().await, Some(format!("[{stream},{round}]")));
            }
            assert_eq!(client.event().await.as_deref(), Some("\"end\""));
            assert_eq!(client.event().await, None);
        }
        let newest = listeners.last_mut().unwrap();
        for round in 0..5 {
            assert_eq!(newest.event().await, Some(format!("[0,{round}]")));
        }
    })
    .await;
}

#[tokio::test]
async fn newest_resumption_takes_the_stream() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (mut first, stream, after) = begun_call(server, &id).await;
        // The service does not know yet that the first connection is gone.
        let mut second = server.client().await;
        second.open(&Request::resume(&id, &after)).await;
        assert_eq!(first.event().await, None);
        let mut third = server.client().await;
        third.open(&Request::resume(&id, &after)).await;
        assert_eq!(second.event().await, None);
        assert_eq!((server.gauges(), server.disconnected()), ((1, 1), 0));
        send(&server.frontend.newest(), &["2"], Route::Response(stream));
        assert_eq!(third.event().await.as_deref(), Some("2"));
        assert_eq!(third.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn reconnect_flood_stays_within_the_limit() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        for _ in 0..3 * DISCONNECTED_STREAMS_MAX {
            let mut again = server.client().await;
            again.open(&Request::resume(&id, &after)).await;
            again.first_id().await;
            let mut listener = server.client().await;
            listener.open(&Request::listen(&id)).await;
            listener.first_id().await;
            drop((again, listener));
            server.wait_for_gauges((1, 0)).await;
        }
        assert_eq!(server.disconnected(), DISCONNECTED_STREAMS_MAX);
        send(&server.frontend.newest(), &["2"], Route::Response(stream));
        let mut again = server.client().await;
        again.open(&Request::resume(&id, &after)).await;
        assert_eq!(again.event().await.as_deref(), Some("2"));
    })
    .await;
}

#[tokio::test]
async fn unsent_event_id_cannot_be_resumed() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let (first, _, after) = begun_call(server, &id).await;
        cut(server, first).await;
        let (stem, _) = after.rsplit_once('-').unwrap();
        let (tag, _) = stem.split_once('-').unwrap();
        for forged in [
            format!("{stem}-2"),
            format!("{stem}-18446744073709551615"),
            format!("{tag}-99-0"),
            format!("{tag}-0-0"),
            "x".to_owned(),
            "x".repeat(10_000),
        ] {
            let answer = client.ask(&Request::resume(&id, &forged)).await;
            assert_eq!(answer.status, 400, "{forged}: {answer:?}");
            assert!(answer.message().contains("`Last-Event-ID`"), "{answer:?}");
        }
        // The event id is not valid in another session of the same client.
        let (mut other, other_id) = server.session().await;
        assert_eq!(other.ask(&Request::resume(&other_id, &after)).await.status, 400);
        assert_eq!(server.disconnected(), 1);
    })
    .await;
}

#[tokio::test]
async fn no_stream_resumes_after_its_session_ended() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        send(&server.frontend.newest(), &["2"], Route::Related(stream));
        assert_ne!(server.stored(), StorageUse::default());
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 404);
        assert_eq!((server.disconnected(), server.stored()), (0, StorageUse::default()));
    })
    .await;
}

#[tokio::test]
async fn stored_events_are_freed_with_an_idle_session() {
    let idle = Duration::from_secs(30);
    with_service(HttpRules { idle, ..rules() }, async |server| {
        let (_client, id) = server.session().await;
        let (first, stream, _) = begun_call(server, &id).await;
        cut(server, first).await;
        let client_session = server.frontend.newest();
        send(&client_session, &["2", "3"], Route::Response(stream));
        send(&client_session, &["4"], Route::Broadcast);
        let metrics = server.metrics();
        assert!(metrics.contains("xy_http_stored_events 3\n"), "{metrics}");
        assert!(metrics.contains("xy_http_streams_disconnected 1\n"), "{metrics}");
        advance_time(idle).await;
        advance_time(idle).await;
        server.wait_for_gauges((0, 0)).await;
        assert!(server.metrics().contains("xy_http_stored_events 0\n"));
        assert!(server.metrics().contains("xy_http_stored_bytes 0\n"));
    })
    .await;
}

#[tokio::test]
async fn unfetched_stream_expires_and_reports_the_loss() {
    with_service(HttpRules { idle: Duration::MAX, ..rules() }, async |server| {
        let (_client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        send(&server.frontend.newest(), &["2"], Route::Response(stream));
        advance_time(FETCH_TIMEOUT * 2).await;
        server.wait_until(|| server.disconnected() == 0).await;
        assert_eq!(server.stored(), StorageUse::default());
        let gone = server.client().await.ask(&Request::resume(&id, &after)).await;
        assert_eq!(gone.status, 410);
        assert!(gone.message().contains("are lost"), "{gone:?}");
        assert!(server.metrics().contains("reason=\"expired\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn completely_sent_stream_is_stored_briefly() {
    with_service(HttpRules { idle: Duration::MAX, ..rules() }, async |server| {
        let (_client, id) = server.session().await;
        let (mut first, stream, after) = begun_call(server, &id).await;
        send(&server.frontend.newest(), &["2"], Route::Response(stream));
        assert_eq!(first.event().await.as_deref(), Some("2"));
        assert_eq!(first.event().await, None);
        server.wait_until(|| server.disconnected() == 1).await;
        advance_time(SENT_FETCH_TIMEOUT).await;
        advance_time(SENT_FETCH_TIMEOUT).await;
        server.wait_until(|| server.stored() == StorageUse::default()).await;
        assert_eq!(first.ask(&Request::resume(&id, &after)).await.status, 410);
        assert!(!server.metrics().contains("xy_http_lost_messages_total{"));
    })
    .await;
}

#[tokio::test]
async fn answer_too_large_to_store_is_reported_lost() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        let huge =
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(STORED_BYTES_MAX));
        let log = Capture::begin();
        send(&server.frontend.newest(), &[&huge], Route::Response(stream));
        let line = log.failed_request();
        assert!(line.contains("id=\"1\"") && line.contains("\"answer-lost\""), "{line}");
        drop(log);
        assert!(server.stored().bytes < 1000);
        client.open(&Request::resume(&id, &after)).await;
        let error: serde_json::Value =
            serde_json::from_str(&client.event().await.unwrap()).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32010).into()));
        assert_eq!(client.event().await, None);
    })
    .await;
}

#[tokio::test]
async fn huge_answer_reaches_a_connected_client() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (mut client, stream, _) = begun_call(server, &id).await;
        let huge = format!("[\"{}\"]", "x".repeat(4 * STORED_BYTES_MAX));
        send(&server.frontend.newest(), &[&huge], Route::Response(stream));
        assert_eq!(client.event().await.unwrap().len(), huge.len());
        assert_eq!(client.event().await, None);
        // The response may have been lost on its way, but so much is not stored for replay.
        server.wait_until(|| server.gauges() == (1, 0)).await;
        assert!(server.stored().bytes <= STORED_BYTES_MAX);
    })
    .await;
}

#[tokio::test]
async fn slow_reader_is_disconnected_and_can_resume_to_its_answer() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (slow, stream, after) = begun_call(server, &id).await;
        let client_session = server.frontend.newest();
        let message = format!("\"{}\"", "1".repeat(1024 * 1024));
        within(async {
            while server.disconnected() == 0 {
                send(&client_session, &[&message], Route::Related(stream));
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(server.metrics().contains("xy_http_closed_total{reason=\"slow-reader\"} 1"));
        assert!(server.stored().bytes <= STORED_BYTES_MAX);
        send(&client_session, &["2"], Route::Response(stream));
        let mut again = server.client().await;
        again.open(&Request::resume(&id, &after)).await;
        let notice = again.event().await.unwrap();
        assert!(notice.contains("have expired"), "{notice}");
        let mut last = None;
        while let Some(event) = again.event().await {
            last = Some(event);
        }
        assert_eq!(last.as_deref(), Some("2"));
        drop(slow);
    })
    .await;
}

#[tokio::test]
async fn cancelled_call_is_over_for_a_resuming_client() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let (first, stream, after) = begun_call(server, &id).await;
        cut(server, first).await;
        server.frontend.newest().send("", Route::Cancelled(stream));
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 204);
    })
    .await;
}

#[tokio::test]
async fn resumed_stream_counts_towards_the_limit() {
    with_service(HttpRules { streams_per_session_max: 1, ..rules() }, async |server| {
        let (mut client, id) = server.session().await;
        let (first, _, after) = begun_call(server, &id).await;
        cut(server, first).await;
        let mut listener = server.client().await;
        listener.open(&Request::listen(&id)).await;
        assert_eq!(client.ask(&Request::resume(&id, &after)).await.status, 429);
        drop(listener);
        server.wait_for_gauges((1, 0)).await;
        client.open(&Request::resume(&id, &after)).await;
    })
    .await;
}

#[tokio::test]
async fn quiet_streams_are_closed_under_connection_pressure() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (mut silent, stream, after) = begun_call(server, &id).await;
        let connections = &server.service.counters().connections;
        connections.set(CROWDED_THRESHOLD);
        advance_time(KEEP_ALIVE_INTERVAL).await;
        assert_eq!(silent.chunk().await.as_deref(), Some("retry: 5000\n\n"));
        assert_eq!(silent.chunk().await, None);
        assert!(silent.is_closed().await, "its place is free for another");
        // A resumed stream gets the new events, and is closed again.
        let client_session = server.frontend.newest();
        send(&client_session, &["2"], Route::Related(stream));
        let mut again = server.client().await;
        assert_eq!(again.ask(&Request::new("GET", "/healthz")).await.status, 200);
        connections.set(CROWDED_THRESHOLD); // This connection is already counted.
        again.send(Request::resume(&id, &after).text().as_bytes()).await;
        let answer = again.answer().await;
        assert_eq!(answer.events(), ["2"]);
        assert!(answer.body.ends_with("retry: 5000\n\n"), "{answer:?}");
        connections.set(1);
        send(&client_session, &["3"], Route::Response(stream));
        let mut last = server.client().await;
        last.send(Request::resume(&id, &after).text().as_bytes()).await;
        assert_eq!(last.answer().await.events(), ["2", "3"]);
    })
    .await;
}

#[tokio::test]
async fn shutdown_reports_lost_calls() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (mut started, _, _) = begun_call(server, &id).await;
        let (mut silent, _) = waiting_call(server, &id).await;
        server.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            advance_time(FINISH_TIMEOUT).await;
            let event = started.event().await.unwrap();
            assert!(event.contains(r#""id":100,"error":{"code":-32010"#), "{event}");
            assert_eq!(started.event().await, None);
            assert!(started.is_closed().await);
            assert!([200, 404].contains(&silent.answer().await.status));
            assert!(silent.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn shutdown_frees_disconnected_streams() {
    with_service(rules(), async |server| {
        let (_client, id) = server.session().await;
        let (first, stream, _) = begun_call(server, &id).await;
        cut(server, first).await;
        send(&server.frontend.newest(), &["2"], Route::Related(stream));
        // `with_service` checks that nothing is left at the end.
        assert_eq!(server.disconnected(), 1);
    })
    .await;
}
