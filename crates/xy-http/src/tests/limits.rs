//! Requests and connections beyond the limits: too many, too large or too slow.

use super::super::limits::{
    AUTHENTICATED_MAX, BODY_TIMEOUT, CONNECTIONS_MAX, DISCARD_BYTES_MAX, HEAD_BYTES_MAX,
    HEAD_TIMEOUT, IDLE_TIMEOUT, UNAUTHENTICATED_IDLE_TIMEOUT, UNAUTHENTICATED_MAX, WRITE_TIMEOUT,
};
use super::*;

const SMALL: usize = 1000;

fn small() -> HttpRules {
    HttpRules { body_max_bytes: SMALL, ..rules() }
}

#[tokio::test]
async fn body_with_too_large_length_is_refused_at_once() {
    with_service(small(), async |server| {
        let mut client = server.client().await;
        let request = Request::post("/mcp", "").with("content-length", "10000000000");
        let answer = client.ask(&request).await;
        assert_eq!(answer.status, 413);
        assert!(answer.message().contains("1000 bytes"));
        // The client may send for a while, then the connection is closed.
        let piece = vec![b' '; 1024 * 1024];
        for _ in 0..=2 * DISCARD_BYTES_MAX / piece.len() {
            client.try_send(&piece).await;
        }
        assert!(client.is_closed().await);
    })
    .await;
}

#[tokio::test]
async fn client_that_sends_a_too_large_body_gets_the_error_and_may_go_on() {
    with_service(small(), async |server| {
        let mut client = server.client().await;
        let answer = client.ask(&Request::post("/mcp", &" ".repeat(8 * 1024 * 1024))).await;
        assert_eq!(answer.status, 413);
        assert_eq!(client.ask(&Request::post("/mcp", INITIALIZE)).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn chunked_body_is_counted_as_it_arrives() {
    with_service(small(), async |server| {
        let chunked = || {
            Request::post("/mcp", "").without("content-length").with("transfer-encoding", "chunked")
        };
        let mut client = server.client().await;
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
async fn large_body_within_the_limit_arrives_whole() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let params = format!("[\"{}\"]", "x".repeat(1_000_000));
        let answer = client.ask(&Request::call(&id, 1, "echo", &params)).await;
        assert_eq!(answer.json()["result"]["for"][0].as_str().unwrap().len(), 1_000_000);
    })
    .await;
}

#[tokio::test]
async fn expect_continue_is_answered_before_the_body() {
    with_service(small(), async |server| {
        let mut client = server.client().await;
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
async fn non_http_bytes_are_refused() {
    with_service(rules(), async |server| {
        for garbage in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"hello\r\n\r\n",
            b"GET /mcp HTTP/9.9\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            b"GET /mcp HTTP/1.1\r\nbad header\r\n\r\n",
        ] {
            let mut client = server.client().await;
            client.send(garbage).await;
            assert_eq!(client.head().await.status, 400, "{garbage:?}");
            assert!(client.is_closed().await);
        }
        server.wait_until(|| server.metrics().contains("reason=\"not-http\"} 6")).await;
    })
    .await;
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    with_service(rules(), async |server| {
        let mut many = Request::new("GET", "/healthz");
        for number in 0..200 {
            many = many.with(&format!("x-{number}"), "1");
        }
        let large = Request::new("GET", "/healthz").with("x", &"1".repeat(HEAD_BYTES_MAX));
        for flood in [many, large] {
            let mut client = server.client().await;
            client.try_send(flood.text().as_bytes()).await;
            assert_eq!(client.head().await.status, 431);
        }
    })
    .await;
}

#[tokio::test]
async fn slow_request_times_out() {
    with_service(rules(), async |server| {
        let (mut silent, mut slow_head) = (server.client().await, server.client().await);
        let mut slow_body = server.client().await;
        slow_head.send(b"GET /healthz HT").await;
        let text = Request::post("/mcp", INITIALIZE).text();
        slow_body.send(&text.as_bytes()[..text.len() - 10]).await;
        // The response shows that everything sent before has been read.
        assert_eq!(server.client().await.ask(&Request::new("GET", "/healthz")).await.status, 200);
        advance_time(HEAD_TIMEOUT).await;
        assert!(silent.is_closed().await);
        assert!(slow_head.is_closed().await);
        advance_time(BODY_TIMEOUT).await;
        assert!(slow_body.is_closed().await);
        let metrics = server.metrics();
        for reason in ["slow-head\"} 2", "slow-body\"} 1"] {
            assert!(metrics.contains(reason), "{metrics}");
        }
    })
    .await;
}

#[tokio::test]
async fn idle_connection_is_closed_in_time() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for call in 0..3 {
            advance_time(IDLE_TIMEOUT / 2).await;
            assert_eq!(client.ask(&Request::call(&id, call, "echo", "[]")).await.status, 200);
        }
        advance_time(IDLE_TIMEOUT).await;
        assert!(client.is_closed().await);
        assert!(server.metrics().contains("reason=\"idle-connection\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn slow_pipelined_request_times_out() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        client.send(call.text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        client.send(b"GET /heal").await;
        assert_eq!(server.client().await.ask(&Request::new("GET", "/healthz")).await.status, 200);
        // The service's own response may take longer than this.
        advance_time(HEAD_TIMEOUT * 2).await;
        let client_session = server.frontend.newest();
        client_session
            .send("{}", crate::frontend::Route::Response(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
        advance_time(HEAD_TIMEOUT).await;
        assert!(client.is_closed().await);
        assert!(server.metrics().contains("reason=\"slow-head\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    with_service(HttpRules { body_max_bytes: 64 << 20, ..rules() }, async |server| {
        let (mut client, id) = server.session().await;
        // More than any socket buffer holds.
        let params = format!("[\"{}\"]", "x".repeat(32 << 20));
        client.send(Request::call(&id, 1, "echo", &params).text().as_bytes()).await;
        let answered = || server.metrics().contains("xy_http_requests_total{status=\"200\"} 2");
        server.wait_until(answered).await;
        advance_time(WRITE_TIMEOUT).await;
        server.wait_until(|| server.metrics().contains("reason=\"slow-reader\"} 1")).await;
        server.wait_for_gauges((1, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn long_call_does_not_time_out() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let call = Request::call(&id, 1, "wait", "[]").with("accept", "application/json");
        client.send(call.text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        advance_time(IDLE_TIMEOUT * 3).await;
        let client_session = server.frontend.newest();
        client_session
            .send("{}", crate::frontend::Route::Response(client_session.streams_of("wait")[0]));
        assert_eq!(client.answer().await.body, "{}");
    })
    .await;
}

#[tokio::test]
async fn sessions_are_limited() {
    with_service(HttpRules { sessions_max: 2, ..rules() }, async |server| {
        let (mut client, id) = server.session().await;
        server.session().await;
        let refused = client.ask(&Request::post("/mcp", INITIALIZE)).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        assert!(refused.message().contains("2 sessions"));
        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert_eq!(client.ask(&Request::post("/mcp", INITIALIZE)).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn streams_are_limited_but_notifications_are_accepted() {
    with_service(HttpRules { streams_per_session_max: 2, ..rules() }, async |server| {
        let (mut listener, id) = server.session().await;
        listener.send(Request::listen(&id).text().as_bytes()).await;
        assert_eq!(listener.head().await.status, 200);
        let mut waiting = server.client().await;
        waiting.send(Request::call(&id, 1, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 2)).await;

        let mut client = server.client().await;
        assert_eq!(client.ask(&Request::call(&id, 2, "echo", "[]")).await.status, 429);
        assert_eq!(client.ask(&Request::listen(&id)).await.status, 429);
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
        let notification = Request::post("/mcp", notification).with("mcp-session-id", &id);
        assert_eq!(client.ask(&notification).await.status, 202);
        drop(waiting);
        server.wait_for_gauges((1, 1)).await;
        assert_eq!(client.ask(&Request::call(&id, 3, "echo", "[]")).await.status, 200);
    })
    .await;
}

/// Allows this process to open enough files for both ends of all connections.
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
async fn idle_unauthenticated_connections_block_no_client() {
    raise_open_files();
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        let alpha = |request: Request| request.with("authorization", "Bearer alpha");
        let mut honest = server.client().await;
        let initialize = || alpha(Request::post("/mcp", INITIALIZE));
        assert_eq!(honest.ask(&initialize()).await.status, 200);
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 76 {
            let mut client = server.client().await;
            assert_eq!(client.ask(&Request::new("GET", "/healthz")).await.status, 200);
            idle.push(client);
        }
        let full = format!("xy_http_connections {}\n", UNAUTHENTICATED_MAX + 1);
        server.wait_until(|| server.metrics().contains(&full)).await;
        assert!(idle[0].is_closed().await, "the oldest has gone");
        let newest = idle.last_mut().unwrap();
        assert_eq!(newest.ask(&Request::new("GET", "/healthz")).await.status, 200);
        let mut late = server.client().await;
        assert_eq!(late.ask(&initialize()).await.status, 200);
        assert_eq!(honest.ask(&initialize()).await.status, 200, "it was not ended for others");
        assert!(server.limit_hits.borrow().contains(&(UNAUTHENTICATED, None)));
        advance_time(UNAUTHENTICATED_IDLE_TIMEOUT).await;
        assert!(idle.last_mut().unwrap().is_closed().await, "idle for long enough");
        assert_eq!(honest.ask(&initialize()).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn connections_without_a_request_make_room() {
    raise_open_files();
    with_service(rules(), async |server| {
        let mut silent = Vec::new();
        for _ in 0..2 * UNAUTHENTICATED_MAX {
            let mut client = server.client().await;
            client.send(b"GET /heal").await;
            silent.push(client);
        }
        let mut late = server.client().await;
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
    with_service(HttpRules { auth, streams_per_session_max, ..rules() }, async |server| {
        let with =
            |name: &str, request: Request| request.with("authorization", &format!("Bearer {name}"));
        let mut first = server.client().await;
        let answer = first.ask(&with("alpha", Request::post("/mcp", INITIALIZE))).await;
        let id = answer.header("mcp-session-id").unwrap().to_owned();
        // Slow calls keep their connections in use.
        let wait = |number| with("alpha", Request::call(&id, number, "wait", "[]"));
        first.send(wait(0).text().as_bytes()).await;
        let mut busy = vec![first];
        for number in 1..AUTHENTICATED_MAX / 4 * 3 {
            let mut client = server.client().await;
            client.send(wait(number as u64).text().as_bytes()).await;
            busy.push(client);
            server.wait_for_gauges((1, busy.len())).await;
        }
        let mut refused = server.client().await;
        let answer = refused.ask(&with("alpha", Request::post("/mcp", INITIALIZE))).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert!(answer.message().contains("connections"), "{answer:?}");
        assert!(refused.is_closed().await);
        assert!(server.limit_hits.borrow().contains(&("HTTP connections", Some(alpha_id))));
        let mut other = server.client().await;
        let answer = other.ask(&with("beta", Request::post("/mcp", INITIALIZE))).await;
        assert_eq!(answer.status, 200);
    })
    .await;
}

#[tokio::test]
async fn one_token_leaves_sessions_for_others() {
    let tokens = [token("alpha", true), token("beta", true)];
    let (alpha_id, auth) = (tokens[0].id, Auth::Tokens(tokens.to_vec()));
    with_service(HttpRules { auth, sessions_max: 8, ..rules() }, async |server| {
        let mut client = server.client().await;
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
        assert_eq!(*server.limit_hits.borrow(), [("HTTP sessions", Some(alpha_id))]);
        assert_eq!(begin("beta").await.status, 200);
        // A session that was unused for a while makes room for others of the same token.
        advance_time(Duration::from_secs(61)).await;
        assert_eq!(begin("alpha").await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn one_token_leaves_body_bytes_for_others() {
    const MOST: usize = 4 << 20;
    let tokens = [token("alpha", true), token("beta", true)];
    let (alpha_id, auth) = (tokens[0].id, Auth::Tokens(tokens.to_vec()));
    with_service(HttpRules { auth, body_max_bytes: MOST, ..rules() }, async |server| {
        server.service.bodies().set_max(MOST);
        let with =
            |name: &str, request: Request| request.with("authorization", &format!("Bearer {name}"));
        let in_pieces = |name: &str| with(name, Request::post("/mcp", &padded(MOST / 8)));
        // Each body of alpha lacks its last byte.
        let incomplete = |bytes: usize| {
            let length = (bytes + 1).to_string();
            with("alpha", Request::post("/mcp", &" ".repeat(bytes))).with("content-length", &length)
        };
        let (mut first, mut second) = (server.client().await, server.client().await);
        first.send(incomplete(MOST / 2).text().as_bytes()).await;
        server.wait_until(|| server.service.bodies().used() == MOST / 2).await;
        second.try_send(incomplete(MOST / 2).text().as_bytes()).await;
        let refused = second.head().await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        let hits = server.limit_hits.borrow().clone();
        assert_eq!(hits, [("large HTTP requests", Some(alpha_id))]);
        server.wait_until(|| server.service.bodies().used() == MOST / 2).await;
        // A body of alpha that just fits, too.
        let mut third = server.client().await;
        third.send(incomplete(MOST / 4).text().as_bytes()).await;
        server.wait_until(|| server.service.bodies().used() == MOST / 4 * 3).await;
        assert_eq!(server.client().await.ask(&in_pieces("alpha")).await.status, 429);
        assert_eq!(server.client().await.ask(&in_pieces("beta")).await.status, 200);
        let whole = with("alpha", Request::post("/mcp", INITIALIZE));
        assert_eq!(
            server.client().await.ask(&whole).await.status,
            200,
            "a small body is not counted"
        );
        drop((first, third));
        server.wait_until(|| server.service.is_reading_nothing()).await;
        assert_eq!(server.client().await.ask(&in_pieces("alpha")).await.status, 200);
    })
    .await;
}

/// Returns `initialize` with so many more bytes that it does not arrive in one piece.
fn padded(bytes: usize) -> String {
    INITIALIZE.to_owned() + &" ".repeat(bytes)
}
