//! Bodies so large that they are read on another thread.

use super::super::limits::BODIES_MAX;
use super::*;
use crate::large::LARGE;

fn roomy() -> HttpRules {
    HttpRules { body_max_bytes: 64 << 20, ..rules() }
}

/// Params with many keys, larger than what is read at once.
fn many_keys() -> String {
    let keys: Vec<String> = (0..LARGE / 8).map(|number| format!("\"k{number}\":1")).collect();
    format!("{{{}}}", keys.join(","))
}

#[tokio::test]
async fn large_bodies_and_small_calls_are_all_answered() {
    at_the_door(roomy(), async |world| {
        let params = many_keys();
        let (mut large, large_id) = world.session().await;
        let (mut small, small_id) = world.session().await;
        for round in 0..3 {
            large.send(Request::call(&large_id, round, "echo", &params).text().as_bytes()).await;
            for id in 0..20 {
                let answer = small.ask(&Request::call(&small_id, id, "echo", "[7]")).await;
                assert_eq!(answer.json()["result"]["for"][0], 7);
                assert_eq!(answer.json()["id"], id);
            }
            let answer = large.answer().await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.json()["id"], round);
            assert_eq!(answer.json()["result"]["for"]["k7"], 1);
        }
        let stateless_request = format!("\"arguments\":{params}");
        let mut modern = world.client().await;
        let answer = modern
            .ask(&Request::stateless_request(5, "echo", &format!("{{{stateless_request}}}")))
            .await;
        assert_eq!((answer.status, answer.json()["id"].as_u64()), (200, Some(5)));
        world.wait_until(|| world.door.is_reading_nothing()).await;
    })
    .await;
}

#[tokio::test]
async fn messages_of_a_session_keep_their_order_behind_a_large_one() {
    at_the_door(roomy(), async |world| {
        let (mut large, id) = world.session().await;
        let client_session = world.front.newest();
        large.send(Request::call(&id, 1, "large", &many_keys()).text().as_bytes()).await;
        // Once its body is there, what the same client says next comes after it.
        world.wait_until(|| world.door.is_reading()).await;
        let mut next = world.client().await;
        let notification = r#"{"jsonrpc":"2.0","method":"next"}"#;
        let notification = Request::post("/mcp", notification).with("mcp-session-id", &id);
        assert_eq!(next.ask(&notification).await.status, 202);
        assert_eq!(client_session.methods()[1..], ["large", "next"]);
        assert_eq!(large.answer().await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn client_that_leaves_while_its_body_is_read_leaves_nothing() {
    at_the_door(roomy(), async |world| {
        let (mut large, id) = world.session().await;
        large.send(Request::call(&id, 1, "echo", &many_keys()).text().as_bytes()).await;
        world.wait_until(|| world.door.is_reading()).await;
        drop(large);
        world.wait_until(|| world.door.is_reading_nothing()).await;
        let mut half = world.client().await;
        let text = Request::call(&id, 2, "echo", &many_keys()).text();
        half.send(&text.as_bytes()[..text.len() / 2]).await;
        drop(half);
        world.wait_until(|| world.door.is_reading_nothing()).await;
        let mut next = world.client().await;
        assert_eq!(next.ask(&Request::call(&id, 3, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn more_large_bodies_than_there_is_room_for_are_refused() {
    let rules = HttpRules { body_max_bytes: BODIES_MAX, ..rules() };
    at_the_door(rules, async |world| {
        let (_first, id) = world.session().await;
        // Neither is whole: three quarters of the room, and more than the rest.
        let head = |length: usize| {
            Request::call(&id, 1, "echo", "[]").with("content-length", &length.to_string()).text()
        };
        let (mut one, mut other) = (world.client().await, world.client().await);
        let piece = vec![b' '; 1 << 20];
        one.send(head(BODIES_MAX).as_bytes()).await;
        for _ in 0..BODIES_MAX / 4 * 3 / piece.len() {
            one.send(&piece).await;
        }
        other.send(head(BODIES_MAX).as_bytes()).await;
        for _ in 0..BODIES_MAX / 4 / piece.len() + 8 {
            other.try_send(&piece).await;
        }
        let refused = other.answer().await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        assert!(refused.message().contains("too many large requests"), "{refused:?}");
        let hits = world.limit_hits.borrow().clone();
        assert!(hits.iter().any(|(limit, _)| *limit == "large HTTP requests"), "{hits:?}");
    })
    .await;
}
