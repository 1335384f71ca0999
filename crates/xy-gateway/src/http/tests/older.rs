//! The transport of 2024: one stream, and messages posted beside it.

use super::super::limits::{FINISH_WITHIN, KEEP_ALIVE_EVERY};
use super::*;
use crate::frontend::{Route, View};

/// Opens a session: its stream, and where to post to.
async fn open(world: &World, path: &str) -> (Client, String) {
    let mut stream = world.client().await;
    let request = Request::new("GET", path).with("accept", "text/event-stream");
    stream.open(&request).await;
    let first = stream.chunk().await.unwrap();
    let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end().to_owned();
    assert!(endpoint.starts_with("/messages?session="), "{endpoint}");
    (stream, endpoint)
}

async fn post(world: &World, endpoint: &str, body: &str) -> client::Answer {
    world.client().await.ask(&Request::post(endpoint, body)).await
}

fn call(id: u64, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[2]}}"#)
}

#[tokio::test]
async fn everything_is_said_on_the_one_stream() {
    at_the_door(rules(), async |world| {
        let (mut stream, endpoint) = open(world, "/sse").await;
        assert_eq!(world.front.newest().entry.view, View::Profile("default".to_owned()));
        let accepted = post(world, &endpoint, INITIALIZE).await;
        assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
        assert!(stream.event().await.unwrap().contains(r#""id":0,"result""#));
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(post(world, &endpoint, notification).await.status, 202);

        assert_eq!(post(world, &endpoint, &call(7, "tell")).await.status, 202);
        for expected in [r#""params":0"#, r#""params":1"#, r#""id":7,"result""#] {
            let event = stream.event().await.unwrap();
            assert!(event.contains(expected), "{event}");
        }
        world.front.newest().say("9", Route::Broadcast);
        assert_eq!(stream.event().await.as_deref(), Some("9"));
        assert_eq!(stream.last_event, None, "nothing of it can be sent twice");
        assert_eq!(world.stored(), Stored::default());
        jump(KEEP_ALIVE_EVERY).await;
        assert_eq!(stream.chunk().await.as_deref(), Some(": still here\n\n"));
    })
    .await;
}

#[tokio::test]
async fn each_path_shows_its_own_view() {
    at_the_door(rules(), async |world| {
        for (path, view) in [
            ("/sse/p/work", View::Profile("work".to_owned())),
            ("/sse/s/git", View::Server("git".to_owned())),
        ] {
            let _open = open(world, path).await;
            assert_eq!(world.front.newest().entry.view, view);
        }
        let get = Request::older().with("accept", "text/event-stream");
        assert_eq!(world.client().await.ask(&get.with("host", "evil.example")).await.status, 403);
        let none = Request::new("GET", "/sse/s/none").with("accept", "text/event-stream");
        assert_eq!(world.client().await.ask(&none).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn the_session_ends_with_its_stream() {
    at_the_door(rules(), async |world| {
        let (stream, endpoint) = open(world, "/sse").await;
        assert_eq!(world.gauges(), (1, 1));
        assert_eq!(post(world, &endpoint, &call(1, "wait")).await.status, 202);
        drop(stream);
        world.wait_for_gauges((0, 0)).await;
        assert!(world.front.newest().is_closed());
        assert_eq!(post(world, &endpoint, &call(2, "echo")).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_message_is_refused_where_somebody_waits_for_it() {
    at_the_door(rules(), async |world| {
        let (_stream, endpoint) = open(world, "/sse").await;
        let answer = post(world, &endpoint, "{").await;
        assert_eq!((answer.status, answer.body.as_str()), (400, r#"{"no":-32700}"#));
        let large = " ".repeat(2 * 1024 * 1024);
        assert_eq!(post(world, &endpoint, &large).await.status, 413);
        assert_eq!(world.gauges(), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn the_two_transports_do_not_know_each_others_sessions() {
    at_the_door(rules(), async |world| {
        let (_stream, endpoint) = open(world, "/sse").await;
        let (mut client, id) = world.session().await;
        let older = endpoint.rsplit_once('=').unwrap().1;
        for request in
            [Request::call(older, 1, "echo", "[]"), Request::listen(older), Request::end(older)]
        {
            assert_eq!(client.ask(&request).await.status, 404);
        }
        let crossed = format!("/messages?session={id}");
        assert_eq!(post(world, &crossed, &call(1, "echo")).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn a_session_is_only_for_the_token_that_began_it() {
    let auth = Auth::Tokens(vec![token("a", false), token("b", false)]);
    at_the_door(HttpRules { auth, ..rules() }, async |world| {
        let mut stream = world.client().await;
        stream.open(&Request::older().with("authorization", "Bearer a")).await;
        let first = stream.chunk().await.unwrap();
        let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end();
        for (token, status) in [("Bearer b", 404), ("Bearer c", 401), ("Bearer a", 202)] {
            let request = Request::post(endpoint, &call(1, "echo")).with("authorization", token);
            assert_eq!(world.client().await.ask(&request).await.status, status, "{token}");
        }
    })
    .await;
}

#[tokio::test]
async fn they_count_among_all_sessions() {
    at_the_door(HttpRules { sessions_max: 1, ..rules() }, async |world| {
        let (stream, _) = open(world, "/sse").await;
        assert_eq!(world.client().await.ask(&Request::older()).await.status, 503);
        drop(stream);
        world.wait_for_gauges((0, 0)).await;
        open(world, "/sse").await;
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_loses_its_session() {
    at_the_door(rules(), async |world| {
        let (slow, _) = open(world, "/sse").await;
        let client_session = world.front.newest();
        let message = format!("\"{}\"", "1".repeat(1024 * 1024));
        within(async {
            while !world.metrics().contains("xy_http_cut_total{reason=\"slow-reader\"} 1") {
                client_session.say(&message, Route::Broadcast);
                tokio::task::yield_now().await;
            }
        })
        .await;
        world.wait_until(|| world.stored() == Stored::default()).await;
        drop(slow);
        world.wait_for_gauges((0, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_door_that_closes_ends_a_stream_unless_something_is_under_way() {
    at_the_door(rules(), async |world| {
        let (mut idle, _) = open(world, "/sse").await;
        let (mut busy, endpoint) = open(world, "/sse").await;
        let client_session = world.front.newest();
        client_session.is_busy.set(true);
        assert_eq!(post(world, &endpoint, &call(1, "wait")).await.status, 202);
        world.meanwhile(async move {
            assert_eq!(idle.event().await, None);
            client_session.say("1", Route::Answer(0));
            drop(client_session);
            assert_eq!(busy.event().await.as_deref(), Some("1"));
            jump(FINISH_WITHIN).await;
            assert_eq!(busy.event().await, None);
            assert!(busy.is_closed().await);
        });
    })
    .await;
}
