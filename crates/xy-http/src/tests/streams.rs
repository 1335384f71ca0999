//! Messages before, after and besides a response.

use super::*;
use crate::fake::answer_later;
use crate::frontend::Route;

#[tokio::test]
async fn message_before_the_answer_makes_an_event_stream() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let answer = client.ask(&Request::call(&id, 5, "tell", "[3]")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        assert_eq!(answer.header("x-accel-buffering"), Some("no"));
        let events = answer.events();
        for (count, event) in events[..3].iter().enumerate() {
            assert_eq!(*event, format!(r#"{{"jsonrpc":"2.0","method":"told","params":{count}}}"#));
        }
        assert!(events[3].contains(r#""id":5"#));
        assert_eq!(events.len(), 4);
        // The connection stays open.
        assert_eq!(client.ask(&Request::call(&id, 6, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn messages_arrive_one_by_one() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        client.send(Request::call(&id, 5, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        let client_session = server.frontend.newest();
        let stream = client_session.streams_of("wait")[0];
        client_session.send("1", Route::Related(stream));
        assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
        assert_eq!(client.event().await.as_deref(), Some("1"));
        client_session.send("2", Route::Related(stream));
        assert_eq!(client.event().await.as_deref(), Some("2"));
        client_session.send("3", Route::Response(stream));
        assert_eq!(client.event().await.as_deref(), Some("3"));
        assert_eq!(client.event().await, None);
        server.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn batch_of_one_request_is_answered_as_an_array_of_one() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let batch = r#" [{"jsonrpc":"2.0","id":7,"method":"echo","params":[]}]"#;
        for accept in ["application/json", "application/json, text/event-stream"] {
            let post = Request::post("/mcp", batch).with("mcp-session-id", &id);
            let answer = client.ask(&post.with("accept", accept)).await;
            assert_eq!(answer.header("content-type"), Some("application/json"), "{accept}");
            let answers: Vec<serde_json::Value> = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answers.len(), &answers[0]["id"]), (1, &7.into()), "{accept}");
        }
        let answer = client.ask(&Request::call(&id, 8, "echo", "[]")).await;
        let answer: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["id"], 8, "a single request has a single answer");
    })
    .await;
}

#[tokio::test]
async fn quiet_stream_gets_keep_alive_comments() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        client.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(client.head().await.status, 200);
        assert!(client.chunk().await.unwrap().ends_with("\nretry: 1000\ndata: \n\n"));
        for _ in 0..2 {
            advance_time(Duration::from_secs(16)).await;
            assert_eq!(client.chunk().await.as_deref(), Some(": still here\n\n"));
        }
    })
    .await;
}

#[tokio::test]
async fn cancelled_call_is_an_empty_stream() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let answer = client.ask(&Request::call(&id, 5, "cancelled", "[]")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(answer.body, "");
    })
    .await;
}

#[tokio::test]
async fn client_that_accepts_only_events_gets_its_answer_as_event() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let initialize = Request::post("/mcp", INITIALIZE).with("accept", "text/event-stream");
        let answer = client.ask(&initialize).await;
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(answer.events().len(), 1);
        let id = answer.header("mcp-session-id").unwrap();
        let call = Request::call(id, 1, "echo", "[]").with("accept", "text/event-stream");
        assert_eq!(client.ask(&call).await.events().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn client_that_accepts_only_json_gets_the_rest_on_its_listener() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let call = Request::call(&id, 1, "tell", "[2]").with("accept", "application/json");
        let answer = client.ask(&call).await;
        assert_eq!(answer.json()["id"], 1);
        client.send(Request::listen(&id).text().as_bytes()).await;
        client.head().await;
        assert!(client.event().await.unwrap().contains(r#""params":0"#));
        assert!(client.event().await.unwrap().contains(r#""params":1"#));
    })
    .await;
}

#[tokio::test]
async fn unrelated_message_goes_to_one_listener_or_is_stored() {
    with_service(rules(), async |server| {
        let (mut first, id) = server.session().await;
        let client_session = server.frontend.newest();
        client_session.send("1", Route::Broadcast);
        client_session.send("2", Route::Broadcast);
        first.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(first.head().await.status, 200);
        assert_eq!(first.event().await.as_deref(), Some("1"));
        assert_eq!(first.event().await.as_deref(), Some("2"));

        let mut second = server.client().await;
        second.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(second.head().await.status, 200);
        client_session.send("3", Route::Broadcast);
        assert_eq!(second.event().await.as_deref(), Some("3"));
        drop(second);
        server.wait_for_gauges((1, 1)).await;
        client_session.send("4", Route::Broadcast);
        assert_eq!(first.event().await.as_deref(), Some("4"));
    })
    .await;
}

#[tokio::test]
async fn slow_reader_loses_only_its_own_stream() {
    with_service(rules(), async |server| {
        let (mut slow, id) = server.session().await;
        slow.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(slow.head().await.status, 200);
        let client_session = server.frontend.newest();
        let message = "1".repeat(1024 * 1024);
        within(async {
            while !server.metrics().contains("xy_http_closed_total{reason=\"slow-reader\"} 1") {
                client_session.send(&message, Route::Broadcast);
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut other = server.client().await;
        assert_eq!(other.ask(&Request::call(&id, 1, "echo", "[]")).await.status, 200);
        // Events already in transit are still read, then the stream ends.
        while slow.event().await.is_some() {}
        server.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn concurrent_sessions_never_mix() {
    with_service(rules(), async |server| {
        let run_client = async || {
            let (mut client, id) = server.session().await;
            let answer = client.ask(&Request::call(&id, 0, "echo", "[]")).await;
            let own = answer.json()["result"]["by"].clone();
            let place = usize::try_from(own.as_u64().unwrap()).unwrap();
            let client_session = Rc::clone(&server.frontend.sessions()[place]);
            for call in 1..100 {
                if call % 3 == 0 {
                    client.send(Request::call(&id, call, "wait", "[]").text().as_bytes()).await;
                    let waits = || client_session.streams_of("wait").len() as u64 == call / 3;
                    server.wait_until(waits).await;
                    answer_later(Rc::clone(&client_session), call, Duration::from_millis(call % 4));
                } else {
                    let request = Request::call(&id, call, "tell", &format!("[{}]", call % 4));
                    client.send(request.text().as_bytes()).await;
                }
                let answer = client.answer().await;
                let last = answer.events().pop().unwrap_or_else(|| answer.body.clone());
                let last: serde_json::Value = serde_json::from_str(&last).unwrap();
                assert_eq!((&last["id"], &last["result"]["by"]), (&call.into(), &own));
            }
        };
        tokio::join!(run_client(), run_client(), run_client());
    })
    .await;
}
