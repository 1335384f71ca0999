//! What is said before, after and besides an answer.

use super::*;
use crate::fake::answer_later;
use crate::frontend::Route;

#[tokio::test]
async fn what_is_said_before_the_answer_makes_it_a_stream_in_order() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
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
        // The connection goes on.
        assert_eq!(client.ask(&Request::call(&id, 6, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn what_is_said_one_by_one_arrives_one_by_one() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        client.send(Request::call(&id, 5, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        let client_session = world.front.newest();
        let stream = client_session.streams_of("wait")[0];
        client_session.say("1", Route::Related(stream));
        assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
        assert_eq!(client.event().await.as_deref(), Some("1"));
        client_session.say("2", Route::Related(stream));
        assert_eq!(client.event().await.as_deref(), Some("2"));
        client_session.say("3", Route::Answer(stream));
        assert_eq!(client.event().await.as_deref(), Some("3"));
        assert_eq!(client.event().await, None);
        world.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn batch_of_one_request_is_answered_as_an_array_of_one() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
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
async fn a_quiet_stream_has_a_comment_now_and_then() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        client.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(client.head().await.status, 200);
        assert!(client.chunk().await.unwrap().ends_with("\nretry: 1000\ndata: \n\n"));
        for _ in 0..2 {
            jump(Duration::from_secs(16)).await;
            assert_eq!(client.chunk().await.as_deref(), Some(": still here\n\n"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_call_is_a_stream_without_events() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let answer = client.ask(&Request::call(&id, 5, "cancelled", "[]")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(answer.body, "");
    })
    .await;
}

#[tokio::test]
async fn who_reads_only_events_gets_the_answer_as_one() {
    at_the_door(rules(), async |world| {
        let mut client = world.client().await;
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
async fn who_reads_only_json_hears_the_rest_where_it_listens() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
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
async fn what_belongs_to_no_call_is_heard_by_exactly_one_and_kept_if_nobody_listens() {
    at_the_door(rules(), async |world| {
        let (mut first, id) = world.session().await;
        let client_session = world.front.newest();
        client_session.say("1", Route::Broadcast);
        client_session.say("2", Route::Broadcast);
        first.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(first.head().await.status, 200);
        assert_eq!(first.event().await.as_deref(), Some("1"));
        assert_eq!(first.event().await.as_deref(), Some("2"));

        let mut second = world.client().await;
        second.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(second.head().await.status, 200);
        client_session.say("3", Route::Broadcast);
        assert_eq!(second.event().await.as_deref(), Some("3"));
        drop(second);
        world.wait_for_gauges((1, 1)).await;
        client_session.say("4", Route::Broadcast);
        assert_eq!(first.event().await.as_deref(), Some("4"));
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_is_too_slow_loses_its_stream_and_no_other() {
    at_the_door(rules(), async |world| {
        let (mut slow, id) = world.session().await;
        slow.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(slow.head().await.status, 200);
        let client_session = world.front.newest();
        let message = "1".repeat(1024 * 1024);
        within(async {
            while !world.metrics().contains("xy_http_cut_total{reason=\"slow-reader\"} 1") {
                client_session.say(&message, Route::Broadcast);
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut other = world.client().await;
        assert_eq!(other.ask(&Request::call(&id, 1, "echo", "[]")).await.status, 200);
        // What was on its way is still read, and then there is an end.
        while slow.event().await.is_some() {}
        world.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn two_sessions_side_by_side_never_mix() {
    at_the_door(rules(), async |world| {
        let tell = async || {
            let (mut client, id) = world.session().await;
            let answer = client.ask(&Request::call(&id, 0, "echo", "[]")).await;
            let own = answer.json()["result"]["by"].clone();
            let place = usize::try_from(own.as_u64().unwrap()).unwrap();
            let client_session = Rc::clone(&world.front.conversations()[place]);
            for call in 1..100 {
                if call % 3 == 0 {
                    client.send(Request::call(&id, call, "wait", "[]").text().as_bytes()).await;
                    let waits = || client_session.streams_of("wait").len() as u64 == call / 3;
                    world.wait_until(waits).await;
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
        tokio::join!(tell(), tell(), tell());
    })
    .await;
}
