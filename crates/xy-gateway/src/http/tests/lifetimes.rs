//! How connections, calls and sessions end.

use super::*;
use crate::frontend::Route;

#[tokio::test]
async fn a_thousand_requests_go_over_one_connection() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        for call in 0..1000 {
            let answer = client.ask(&Request::call(&id, call, "echo", "[]")).await;
            assert_eq!(answer.json()["id"], call);
        }
        assert_eq!(world.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn requests_that_come_all_at_once_are_answered_in_order() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
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
async fn a_request_may_come_letter_by_letter() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        for byte in Request::call(&id, 9, "echo", "[]").text().bytes() {
            client.send(&[byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.answer().await.json()["id"], 9);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing_and_hears_the_rest_where_it_listens() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        client.send(Request::call(&id, 5, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        drop(client);
        world.wait_for_gauges((1, 0)).await;
        let client_session = world.front.newest();
        let stream = client_session.streams_of("wait")[0];
        client_session.say("1", Route::Related(stream));
        client_session.say("2", Route::Answer(stream));
        assert!(world.metrics().contains("xy_http_lost_messages_total{reason=\"no-reader\"} 1"));
        let mut again = world.client().await;
        assert_eq!(again.ask(&Request::call(&id, 6, "echo", "[]")).await.status, 200);
        again.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(again.head().await.status, 200);
        assert_eq!(again.event().await.as_deref(), Some("1"));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_before_it_has_a_session_leaves_nothing() {
    at_the_door(rules(), async |world| {
        let mut client = world.client().await;
        let never = INITIALIZE.replace("{}", "[1]");
        client.send(Request::post("/mcp", &never).text().as_bytes()).await;
        world.wait_until(|| world.door.sessions().opening() == 1).await;
        drop(client);
        world.wait_until(|| world.door.sessions().opening() == 0).await;
        assert!(world.front.newest().is_closed());
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_all_that_is_open() {
    at_the_door(rules(), async |world| {
        let (mut listener, id) = world.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let (mut waiting, mut told) = (world.client().await, world.client().await);
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 2)).await;
        told.send(Request::call(&id, 2, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 3)).await;
        let client_session = world.front.newest();
        client_session.say("1", Route::Related(client_session.streams_of("wait")[1]));
        assert_eq!(told.head().await.status, 200);

        let mut client = world.client().await;
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(listener.event().await, None);
        assert_eq!(told.event().await.as_deref(), Some("1"));
        assert_eq!(told.event().await, None);
        let answer = waiting.answer().await;
        assert_eq!(answer.status, 200);
        // On a slow machine it has become an event stream meanwhile, with an empty first event.
        assert!(!answer.body.contains("jsonrpc"), "{}", answer.body);
        assert_eq!(world.gauges(), (0, 0));
        // Their connections go on.
        world.is_ready.set(true);
        for client in [&mut listener, &mut told, &mut waiting] {
            assert_eq!(client.ask(&Request::new("GET", "/readyz")).await.status, 200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_that_is_idle_ends_but_not_while_something_is_open() {
    let idle = Duration::from_secs(30);
    at_the_door(HttpRules { idle, ..rules() }, async |world| {
        let (_idle, _) = world.session().await;
        let (mut listening, id) = world.session().await;
        listening.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listening.head().await.status, 200);
        jump(idle).await;
        world.wait_for_gauges((1, 1)).await;
        assert!(world.front.conversations()[0].is_closed());
        jump(idle).await;
        drop(listening);
        world.wait_for_gauges((1, 0)).await;
        jump(idle / 2).await; // It was used when its stream ended.
        tokio::task::yield_now().await;
        assert_eq!(world.gauges(), (1, 0));
        jump(idle).await;
        jump(idle).await;
        world.wait_for_gauges((0, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_may_be_idle_for_ever() {
    at_the_door(HttpRules { idle: Duration::MAX, ..rules() }, async |world| {
        let (_client, id) = world.session().await;
        jump(Duration::from_secs(3 * 24 * 60 * 60)).await;
        let mut again = world.client().await;
        assert_eq!(again.ask(&Request::call(&id, 1, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_door_that_closes_lets_calls_finish_and_ends_what_only_listens() {
    at_the_door(rules(), async |world| {
        let (mut listener, id) = world.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let mut waiting = world.client().await;
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 2)).await;
        let client_session = world.front.newest();
        world.meanwhile(async move {
            assert_eq!(listener.event().await, None);
            assert!(listener.is_closed().await);
            client_session.say("{}", Route::Answer(client_session.streams_of("wait")[0]));
            drop(client_session);
            assert_eq!(waiting.answer().await.body, "{}");
            assert!(waiting.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn a_door_that_closes_does_not_wait_for_ever() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        client.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        world.meanwhile(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            jump(super::super::limits::FINISH_WITHIN).await;
            client.answer().await; // That there is none.
            assert!(client.is_closed().await);
        });
    })
    .await;
}
