//! Everything that is too much, too long or too slow.

use super::super::limits::{
    AUTHENTICATED_MAX, BODY_WITHIN, CONNECTIONS_MAX, DISCARD_MAX, HEAD_BYTES_MAX, HEAD_WITHIN,
    IDLE_CONNECTION, IDLE_UNAUTHENTICATED, UNAUTHENTICATED_MAX, WRITE_WITHIN,
};
use super::*;

const SMALL: usize = 1000;

fn small() -> HttpRules {
    HttpRules { body_max_bytes: SMALL, ..rules() }
}

#[tokio::test]
async fn a_body_that_says_it_is_too_large_is_refused_before_it_comes() {
    at_the_door(small(), async |world| {
        let mut client = world.client().await;
        let request = Request::post("/mcp", "").with("content-length", "10000000000");
        let answer = client.ask(&request).await;
        assert_eq!(answer.status, 413);
        assert!(answer.message().contains("1000 bytes"));
        // It may be sent for a while, and then no more.
        let piece = vec![b' '; 1024 * 1024];
        for _ in 0..=2 * DISCARD_MAX / piece.len() {
            client.try_send(&piece).await;
        }
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn who_sends_all_of_a_body_that_is_too_large_still_reads_why_and_may_go_on() {
    at_the_door(small(), async |world| {
        let mut client = world.client().await;
        let answer = client.ask(&Request::post("/mcp", &" ".repeat(8 * 1024 * 1024))).await;
        assert_eq!(answer.status, 413);
        assert_eq!(client.ask(&Request::post("/mcp", INITIALIZE)).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_body_in_chunks_is_counted_as_it_comes() {
    at_the_door(small(), async |world| {
        let chunked = || {
            Request::post("/mcp", "").without("content-length").with("transfer-encoding", "chunked")
        };
        let mut client = world.client().await;
        let (head, tail) = INITIALIZE.split_at(20);
        client.send(chunked().text().as_bytes()).await;
        client.send(format!("{:x}\r\n{head}\r\n", head.len()).as_bytes()).await;
        tokio::task::yield_now().await;
        client.send(format!("{:x}\r\n{tail}\r\n0\r\n\r\n", tail.len()).as_bytes()).await;
        assert_eq!(client.answer().await.status, 200);

        client.send(chunked().text().as_bytes()).await;
        for _ in 0..3 {
            client.send(format!("{:x}\r\n{}\r\n", 500, " ".repeat(500)).as_bytes()).await;
        }
        assert_eq!(client.answer().await.status, 413);
    })
    .await;
}

#[tokio::test]
async fn a_large_body_that_is_allowed_arrives_whole() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let params = format!("[\"{}\"]", "x".repeat(1_000_000));
        let answer = client.ask(&Request::call(&id, 1, "echo", &params)).await;
        assert_eq!(answer.json()["result"]["for"][0].as_str().unwrap().len(), 1_000_000);
    })
    .await;
}

#[tokio::test]
async fn who_asks_before_it_sends_a_body_is_answered_without_it() {
    at_the_door(small(), async |world| {
        let mut client = world.client().await;
        let expecting = |length: &str| {
            Request::post("/mcp", "").with("expect", "100-continue").with("content-length", length)
        };
        client.send(expecting(&INITIALIZE.len().to_string()).text().as_bytes()).await;
        assert_eq!(client.head().await.status, 100);
        client.send(INITIALIZE.as_bytes()).await;
        assert_eq!(client.answer().await.status, 200);
        client.send(expecting("2000").text().as_bytes()).await;
        assert_eq!(client.answer().await.status, 413);
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn what_is_not_http_is_turned_away() {
    at_the_door(rules(), async |world| {
        for garbage in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"hello\r\n\r\n",
            b"GET /mcp HTTP/9.9\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            b"GET /mcp HTTP/1.1\r\nbad header\r\n\r\n",
        ] {
            let mut client = world.client().await;
            client.send(garbage).await;
            assert_eq!(client.head().await.status, 400, "{garbage:?}");
            assert!(client.is_closed().await);
        }
        world.wait_until(|| world.metrics().contains("reason=\"not-http\"} 6")).await;
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_headers_is_turned_away() {
    at_the_door(rules(), async |world| {
        let mut many = Request::new("GET", "/healthz");
        for number in 0..200 {
            many = many.with(&format!("x-{number}"), "1");
        }
        let large = Request::new("GET", "/healthz").with("x", &"1".repeat(HEAD_BYTES_MAX));
        for flood in [many, large] {
            let mut client = world.client().await;
            client.try_send(flood.text().as_bytes()).await;
            assert_eq!(client.head().await.status, 431);
        }
    })
    .await;
}

#[tokio::test]
async fn who_is_slow_to_say_what_it_wants_is_left() {
    at_the_door(rules(), async |world| {
        let (mut silent, mut slow_head) = (world.client().await, world.client().await);
        let mut slow_body = world.client().await;
        slow_head.send(b"GET /healthz HT").await;
        let text = Request::post("/mcp", INITIALIZE).text();
        slow_body.send(&text.as_bytes()[..text.len() - 10]).await;
        // Once this is answered, what was sent before it has been read.
        assert_eq!(world.client().await.ask(&Request::new("GET", "/healthz")).await.status, 200);
        jump(HEAD_WITHIN).await;
        assert!(silent.is_closed().await);
        assert!(slow_head.is_closed().await);
        jump(BODY_WITHIN).await;
        assert!(slow_body.is_closed().await);
        let metrics = world.metrics();
        for reason in ["slow-head\"} 2", "slow-body\"} 1"] {
            assert!(metrics.contains(reason), "{metrics}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_may_be_idle_longer_than_a_head_may_take_but_not_for_ever() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        for call in 0..3 {
            jump(IDLE_CONNECTION / 2).await;
            assert_eq!(client.ask(&Request::call(&id, call, "echo", "[]")).await.status, 200);
        }
        jump(IDLE_CONNECTION).await;
        assert!(client.is_closed().await);
        assert!(world.metrics().contains("reason=\"idle-connection\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn who_begins_the_next_request_before_it_has_an_answer_must_end_it_soon() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        client.send(call.text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        client.send(b"GET /heal").await;
        assert_eq!(world.client().await.ask(&Request::new("GET", "/healthz")).await.status, 200);
        jump(HEAD_WITHIN * 2).await; // The answer is ours to give, and that takes its time.
        let client_session = world.front.newest();
        client_session
            .say("{}", crate::frontend::Route::Answer(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
        jump(HEAD_WITHIN).await;
        assert!(client.is_closed().await);
        assert!(world.metrics().contains("reason=\"slow-head\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn who_does_not_read_its_answer_is_left() {
    at_the_door(HttpRules { body_max_bytes: 64 << 20, ..rules() }, async |world| {
        let (mut client, id) = world.session().await;
        let params = format!("[\"{}\"]", "x".repeat(32 << 20)); // More than any socket holds.
        client.send(Request::call(&id, 1, "echo", &params).text().as_bytes()).await;
        let answered = || world.metrics().contains("xy_http_requests_total{status=\"200\"} 2");
        world.wait_until(answered).await;
        jump(WRITE_WITHIN).await;
        world.wait_until(|| world.metrics().contains("reason=\"slow-reader\"} 1")).await;
        world.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_may_take_as_long_as_it_takes() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        client.send(call.text().as_bytes()).await;
        world.wait_for_gauges((1, 1)).await;
        jump(IDLE_CONNECTION * 3).await;
        let client_session = world.front.newest();
        client_session
            .say("{}", crate::frontend::Route::Answer(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
    })
    .await;
}

#[tokio::test]
async fn there_are_only_so_many_sessions() {
    at_the_door(HttpRules { sessions_max: 2, ..rules() }, async |world| {
        let (mut client, id) = world.session().await;
        world.session().await;
        let refused = client.ask(&Request::post("/mcp", INITIALIZE)).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        assert!(refused.message().contains("2 sessions"));
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(client.ask(&Request::post("/mcp", INITIALIZE)).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn there_are_only_so_many_streams_but_a_notification_always_comes_through() {
    at_the_door(HttpRules { streams_per_session_max: 2, ..rules() }, async |world| {
        let (mut listener, id) = world.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let mut waiting = world.client().await;
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        world.wait_for_gauges((1, 2)).await;

        let mut client = world.client().await;
        assert_eq!(client.ask(&Request::call(&id, 2, "echo", "[]")).await.status, 429);
        assert_eq!(client.ask(&Request::listen(&id)).await.status, 429);
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
        let notification = Request::post("/mcp", notification).with("mcp-session-id", &id);
        assert_eq!(client.ask(&notification).await.status, 202);
        drop(waiting);
        world.wait_for_gauges((1, 1)).await;
        assert_eq!(client.ask(&Request::call(&id, 3, "echo", "[]")).await.status, 200);
    })
    .await;
}

/// Lets this process open enough files for a full door, on both ends.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = 3 * CONNECTIONS_MAX as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    assert!(
        maximum.is_none_or(|most| most >= needed),
        "this test needs {needed} open files, and the hard limit is {maximum:?}: raise it (`ulimit -Hn`)"
    );
    if current.is_some_and(|now| now < needed) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).unwrap();
    }
}

const UNAUTHENTICATED: &str = "unauthenticated HTTP connections";

#[tokio::test]
async fn idle_unauthenticated_connections_keep_nobody_out() {
    raise_open_files();
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    at_the_door(HttpRules { auth, ..rules() }, async |world| {
        let alpha = |request: Request| request.with("authorization", "Bearer alpha");
        let mut honest = world.client().await;
        let initialize = || alpha(Request::post("/mcp", INITIALIZE));
        assert_eq!(honest.ask(&initialize()).await.status, 200);
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 76 {
            let mut client = world.client().await;
            assert_eq!(client.ask(&Request::new("GET", "/healthz")).await.status, 200);
            idle.push(client);
        }
        let full = format!("xy_http_connections {}\n", UNAUTHENTICATED_MAX + 1);
        world.wait_until(|| world.metrics().contains(&full)).await;
        assert!(idle[0].is_closed().await, "the oldest has gone");
        let newest = idle.last_mut().unwrap();
        assert_eq!(newest.ask(&Request::new("GET", "/healthz")).await.status, 200);
        let mut late = world.client().await;
        assert_eq!(late.ask(&initialize()).await.status, 200);
        assert_eq!(honest.ask(&initialize()).await.status, 200, "it was not ended for others");
        assert!(world.limit_hits.borrow().contains(&(UNAUTHENTICATED, None)));
        jump(IDLE_UNAUTHENTICATED).await;
        assert!(idle.last_mut().unwrap().is_closed().await, "idle for long enough");
        assert_eq!(honest.ask(&initialize()).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn connections_that_send_nothing_go_for_those_that_do() {
    raise_open_files();
    at_the_door(rules(), async |world| {
        let mut silent = Vec::new();
        for _ in 0..2 * UNAUTHENTICATED_MAX {
            let mut client = world.client().await;
            client.send(b"GET /heal").await;
            silent.push(client);
        }
        let mut late = world.client().await;
        assert_eq!(late.ask(&Request::post("/mcp", INITIALIZE)).await.status, 200);
        assert!(silent[0].is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn one_token_leaves_connections_for_others() {
    raise_open_files();
    let tokens = [token("alpha", true), token("beta", true)];
    let (alpha_id, auth) = (tokens[0].id, Auth::Tokens(tokens.to_vec()));
    let streams_per_session_max = CONNECTIONS_MAX;
    at_the_door(HttpRules { auth, streams_per_session_max, ..rules() }, async |world| {
        let with =
            |name: &str, request: Request| request.with("authorization", &format!("Bearer {name}"));
        let mut first = world.client().await;
        let answer = first.ask(&with("alpha", Request::post("/mcp", INITIALIZE))).await;
        let id = answer.header("mcp-session-id").unwrap().to_owned();
        // Calls that take long: their connections are in use.
        let wait = |number| with("alpha", Request::call(&id, number, "wait", "[]"));
        first.send(wait(0).text().as_bytes()).await;
        let mut busy = vec![first];
        for number in 1..AUTHENTICATED_MAX / 4 * 3 {
            let mut client = world.client().await;
            client.send(wait(number as u64).text().as_bytes()).await;
            busy.push(client);
            world.wait_for_gauges((1, busy.len())).await;
        }
        let mut refused = world.client().await;
        let answer = refused.ask(&with("alpha", Request::post("/mcp", INITIALIZE))).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert!(answer.message().contains("connections"), "{answer:?}");
        assert!(refused.is_closed().await);
        assert!(world.limit_hits.borrow().contains(&("HTTP connections", Some(alpha_id))));
        let mut other = world.client().await;
        let answer = other.ask(&with("beta", Request::post("/mcp", INITIALIZE))).await;
        assert_eq!(answer.status, 200);
    })
    .await;
}

#[tokio::test]
async fn one_token_leaves_sessions_for_others() {
    let tokens = [token("alpha", true), token("beta", true)];
    let (alpha_id, auth) = (tokens[0].id, Auth::Tokens(tokens.to_vec()));
    at_the_door(HttpRules { auth, sessions_max: 8, ..rules() }, async |world| {
        let mut client = world.client().await;
        let mut begin = async |name: &str| {
            let request = Request::post("/mcp", INITIALIZE);
            client.ask(&request.with("authorization", &format!("Bearer {name}"))).await
        };
        for _ in 0..6 {
            assert_eq!(begin("alpha").await.status, 200);
        }
        let refused = begin("alpha").await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        assert!(refused.message().contains("6 of the 8 sessions"), "{refused:?}");
        assert_eq!(*world.limit_hits.borrow(), [("HTTP sessions", Some(alpha_id))]);
        assert_eq!(begin("beta").await.status, 200);
        // Sessions that nobody has used for a while make room for those of the same token.
        jump(Duration::from_secs(61)).await;
        assert_eq!(begin("alpha").await.status, 200);
    })
    .await;
}
