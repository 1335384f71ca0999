//! Bodies so large that another thread parses them.

use xy_transport::large::LARGE_THRESHOLD;

use super::super::limits::BODIES_BYTES_MAX;
use super::*;

fn roomy() -> HttpRules {
    HttpRules { body_max_bytes: 64 << 20, ..rules() }
}

/// Returns params with many keys, above the threshold for large messages.
fn many_keys() -> String {
    let keys: Vec<String> =
        (0..LARGE_THRESHOLD / 8).map(|number| format!("\"k{number}\":1")).collect();
    format!("{{{}}}", keys.join(","))
}

#[tokio::test]
async fn large_bodies_and_small_calls_are_all_answered() {
    with_service(roomy(), async |server| {
        let params = many_keys();
        let (mut large, large_id) = server.session().await;
        let (mut small, small_id) = server.session().await;
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
        let mut modern = server.client().await;
        let answer = modern
            .ask(&Request::stateless_request(5, "echo", &format!("{{{stateless_request}}}")))
            .await;
        assert_eq!((answer.status, answer.json()["id"].as_u64()), (200, Some(5)));
        server.wait_until(|| server.service.is_reading_nothing()).await;
    })
    .await;
}

#[tokio::test]
async fn messages_of_a_session_keep_their_order_behind_a_large_one() {
    with_service(roomy(), async |server| {
        let (mut large, id) = server.session().await;
        let client_session = server.frontend.newest();
        large.send(Request::call(&id, 1, "large", &many_keys()).text().as_bytes()).await;
        // Once its body has arrived, later messages of the client come after it.
        server.wait_until(|| server.service.is_reading()).await;
        let mut next = server.client().await;
        let notification = r#"{"jsonrpc":"2.0","method":"next"}"#;
        let notification = Request::post("/mcp", notification).with("mcp-session-id", &id);
        assert_eq!(next.ask(&notification).await.status, 202);
        assert_eq!(client_session.methods()[1..], ["large", "next"]);
        assert_eq!(large.answer().await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn client_that_leaves_during_its_body_frees_everything() {
    with_service(roomy(), async |server| {
        let (mut large, id) = server.session().await;
        large.send(Request::call(&id, 1, "echo", &many_keys()).text().as_bytes()).await;
        server.wait_until(|| server.service.is_reading()).await;
        drop(large);
        server.wait_until(|| server.service.is_reading_nothing()).await;
        let mut half = server.client().await;
        let text = Request::call(&id, 2, "echo", &many_keys()).text();
        half.send(&text.as_bytes()[..text.len() / 2]).await;
        drop(half);
        server.wait_until(|| server.service.is_reading_nothing()).await;
        let mut next = server.client().await;
        assert_eq!(next.ask(&Request::call(&id, 3, "echo", "[]")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn large_bodies_beyond_the_limit_are_refused() {
    let rules = HttpRules { body_max_bytes: BODIES_BYTES_MAX, ..rules() };
    with_service(rules, async |server| {
        let (_first, id) = server.session().await;
        // Neither body is complete: one takes three quarters of the limit, the other more than the
        // rest.
        let head = |length: usize| {
            Request::call(&id, 1, "echo", "[]").with("content-length", &length.to_string()).text()
        };
        let (mut one, mut other) = (server.client().await, server.client().await);
        let piece = vec![b' '; 1 << 20];
        one.send(head(BODIES_BYTES_MAX).as_bytes()).await;
        for _ in 0..BODIES_BYTES_MAX / 4 * 3 / piece.len() {
            one.send(&piece).await;
        }
        other.send(head(BODIES_BYTES_MAX).as_bytes()).await;
        for _ in 0..BODIES_BYTES_MAX / 4 / piece.len() + 8 {
            other.try_send(&piece).await;
        }
        let refused = other.answer().await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        assert!(refused.message().contains("too many large requests"), "{refused:?}");
        let hits = server.limit_hits.borrow().clone();
        assert!(hits.iter().any(|(limit, _)| *limit == "large HTTP requests"), "{hits:?}");
    })
    .await;
}
