//! Stateless requests: each one is a session of its own in the gateway.

use serde_json::{Value, json};
use xy_mcp::revision::MODERN;

use super::super::limits::{FINISH_TIMEOUT, STATELESS_STREAM_DELAY};
use super::*;
use crate::fake::{ACKNOWLEDGED, FakeSession, answer_later};
use crate::frontend::{Lifetime, Route, View};

/// Sends a request on its own connection, and returns the response.
async fn ask(server: &TestServer, request: &Request) -> client::Answer {
    server.client().await.ask(request).await
}

/// Returns a client with an open request, and its session in the gateway.
async fn waiting(server: &TestServer, request: &Request) -> (Client, Rc<FakeSession>) {
    let before = server.frontend.sessions().len();
    let mut client = server.client().await;
    client.send(request.text().as_bytes()).await;
    server.wait_until(|| server.frontend.sessions().len() > before).await;
    let client_session = server.frontend.newest();
    server.wait_until(|| !client_session.streams_of("wait").is_empty()).await;
    (client, client_session)
}

/// Waits until the service has started to shut down.
async fn closing(addr: SocketAddr) {
    within(async { while tokio::net::TcpStream::connect(addr).await.is_ok() {} }).await;
}

/// Creates a request that is answered later, and then with JSON.
fn plain(id: u64) -> Request {
    Request::stateless_request(id, "wait", "{}").with("accept", "application/json")
}

fn answer(client_session: &FakeSession, message: &str) {
    client_session.send(message, Route::Response(client_session.streams_of("wait")[0]));
}

fn send_related(client_session: &FakeSession, message: &str) {
    client_session.send(message, Route::Related(client_session.streams_of("wait")[0]));
}

fn code(answer: &client::Answer) -> i64 {
    answer.json()["error"]["code"].as_i64().unwrap()
}

#[tokio::test]
async fn each_stateless_request_has_its_own_gateway_session() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        for (number, path, view) in [
            (0, "/mcp", View::Profile("default".to_owned())),
            (1, "/mcp/p/work", View::Profile("work".to_owned())),
            (2, "/mcp/s/git", View::Server("git".to_owned())),
        ] {
            let answer = client.ask(&Request::stateless_request_at(path, 7, "echo", "{}")).await;
            assert_eq!((answer.status, answer.json()["id"].as_u64()), (200, Some(7)));
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("mcp-session-id"), None);
            assert_eq!(answer.json()["result"]["by"], number);
            let client_session = server.frontend.newest();
            assert_eq!(
                (&client_session.entry.view, client_session.entry.lifetime),
                (&view, Lifetime::Request)
            );
            assert!(client_session.is_closed());
        }
        assert_eq!((server.gauges(), server.service.stateless_requests().count()), ((0, 0), 0));
        assert!(server.metrics().contains("xy_http_stateless_requests_total 3\n"));
        assert!(server.metrics().contains("xy_http_stateless_requests_abandoned_total 0\n"));
    })
    .await;
}

#[tokio::test]
async fn token_decides_identity_and_view() {
    let beta = Token { profile: Some("work".to_owned()), ..token("beta", false) };
    let auth = Auth::Tokens(vec![token("alpha", true), beta]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        let with = |path: &str, token: &str| {
            let request = Request::stateless_request_at(path, 1, "echo", "{}");
            request.with("authorization", &format!("Bearer {token}"))
        };
        assert_eq!(ask(server, &with("/mcp", "alpha")).await.status, 200);
        let alpha = server.frontend.newest();
        assert_eq!(ask(server, &with("/mcp/s/git", "beta")).await.status, 200);
        let beta = server.frontend.newest();
        assert_ne!(alpha.entry.principal, beta.entry.principal);
        assert_eq!((alpha.entry.may_manage, beta.entry.may_manage), (true, false));
        assert_eq!(beta.entry.bound.as_deref(), Some("work"), "the gateway knows more of servers");
        assert_eq!(ask(server, &with("/mcp", "beta")).await.status, 200);
        assert_eq!(server.frontend.newest().entry.view, View::Profile("work".to_owned()));
        assert_eq!(ask(server, &with("/mcp/p/work", "beta")).await.status, 200);
        let refused = ask(server, &with("/mcp/p/default", "beta")).await;
        assert_eq!(refused.status, 403);
        assert!(refused.message().contains("the profile `work` only"));
        assert_eq!(ask(server, &with("/mcp", "gamma")).await.status, 401);
        assert_eq!(server.frontend.sessions().len(), 4);
    })
    .await;
}

#[tokio::test]
async fn session_headers_are_ignored_in_stateless_requests() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for session in [&*id, "nonsense"] {
            let stateless_request = Request::stateless_request(1, "echo", "{}");
            let stateless_request =
                stateless_request.with("mcp-session-id", session).with("last-event-id", "nonsense");
            let answer = client.ask(&stateless_request).await;
            assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None));
        }
        assert!(server.frontend.sessions()[0].streams_of("echo").is_empty());
        for method in ["GET", "DELETE"] {
            let request = Request::new(method, "/mcp").with("accept", "text/event-stream");
            let request = request.with("mcp-session-id", &id).with("mcp-protocol-version", MODERN);
            let answer = client.ask(&request).await;
            assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
        }
        assert_eq!(server.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn eras_alternate_on_one_connection() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for number in 0..20 {
            let legacy = Request::call(&id, number, "echo", "[]");
            let legacy = client.ask(&legacy.with("mcp-protocol-version", "2025-11-25")).await;
            assert_eq!((legacy.status, &legacy.json()["result"]["by"]), (200, &json!(0)));
            let streamed =
                client.ask(&Request::stateless_request(number, "tell", r#"{"count":1}"#)).await;
            assert_eq!((streamed.status, streamed.events().len()), (200, 2));
            let echo = client.ask(&Request::stateless_request(number, "echo", "{}")).await;
            assert_eq!(echo.json()["result"]["by"], 2 * number + 2);
        }
        assert_eq!(server.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn modern_body_without_modern_headers_is_a_header_mismatch() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        let bare = |request: Request| request.without("mcp-protocol-version").without("mcp-method");
        for request in [
            bare(Request::stateless_request(1, "echo", "{}")),
            bare(Request::stateless_request(1, "echo", "{}")).with("mcp-session-id", &id),
            bare(Request::stateless_request(1, "server/discover", "{}")),
        ] {
            let answer = client.ask(&request).await;
            assert_eq!((answer.status, code(&answer)), (400, -32020), "{answer:?}");
            assert_eq!(answer.json()["id"], 1);
        }
        let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#;
        let answer = client.ask(&Request::post("/mcp", discover)).await;
        assert_eq!((answer.status, code(&answer)), (400, -32602));
        // The method header means nothing in an older revision.
        let legacy = |request: Request| request.with("mcp-protocol-version", "2025-11-25");
        let begins = legacy(Request::post("/mcp", INITIALIZE)).with("mcp-method", "initialize");
        let answer = client.ask(&begins).await;
        assert!(answer.header("mcp-session-id").is_some(), "{answer:?}");
        let call = legacy(Request::call(&id, 2, "echo", "[]")).with("mcp-method", "echo");
        assert_eq!(client.ask(&call).await.json()["result"]["by"], 0);
        // `initialize` opens a session, whatever its body says.
        let body = Request::stateless_request(1, "initialize", "{}");
        let answer = client.ask(&bare(body)).await;
        assert!(answer.header("mcp-session-id").is_some(), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn headers_that_contradict_the_body_are_refused() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let call =
            || Request::stateless_request(7, "tools/call", r#"{"name":"a"}"#).with("mcp-name", "a");
        for (request, expected, words) in [
            (call().without("mcp-protocol-version"), -32020, "`mcp-protocol-version`"),
            (call().with("mcp-protocol-version", "2027-01-01"), -32020, "2027-01-01"),
            (call().without("mcp-method"), -32020, "`mcp-method`"),
            (call().with("mcp-method", "TOOLS/CALL"), -32020, "TOOLS/CALL"),
            (call().without("mcp-name"), -32020, "`mcp-name`"),
            (call().with("mcp-name", "=?base64?YQ?="), -32020, "not valid encoded text"),
            (call().with("mcp-name", "\u{e9}"), -32020, "`mcp-name`"),
            (call().with("mcp-name", ""), -32020, "`mcp-name`"),
        ] {
            let answer = client.ask(&request).await;
            assert_eq!((answer.status, code(&answer)), (400, expected), "{request:?}");
            assert_eq!(answer.json()["id"], 7);
            assert!(answer.message().contains(words), "{answer:?}");
        }
        let text = Request::stateless_request(7, "echo", "{}").text().replace(MODERN, "v999.00.00");
        client.send(text.as_bytes()).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, code(&answer)), (400, -32022));
        assert_eq!(answer.json()["error"]["data"]["requested"], "v999.00.00");
        let lacks = Request::stateless_request(7, "echo", "{}")
            .text()
            .replace("clientCapabilities", "x".repeat(18).as_str());
        client.send(lacks.as_bytes()).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, code(&answer)), (400, -32602));
        assert!(server.frontend.sessions().is_empty());
        assert_eq!(client.ask(&call().with("mcp-name", "  a  ")).await.status, 200);
        assert!(server.metrics().contains("reason=\"header-mismatch\"} 8\n"));
    })
    .await;
}

#[tokio::test]
async fn mirrored_arguments_are_checked() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let call = |arguments: &str| {
            let params = format!(r#"{{"name":"mirrored","arguments":{arguments}}}"#);
            let call =
                Request::stateless_request(1, "tools/call", &params).with("mcp-name", "mirrored");
            call.with("mcp-param-unknown", "\u{e9}")
        };
        let region = |value| call(r#"{"region":"Hello"}"#).with("Mcp-Param-Region", value);
        for request in [
            call("{}"),
            region("Hello"),
            region("=?base64?SGVsbG8=?="),
            call(r#"{"shelf":42.0}"#).with("mcp-param-shelf", "42"),
        ] {
            assert_eq!(client.ask(&request).await.status, 200, "{request:?}");
        }
        for request in [
            call(r#"{"region":"Hello"}"#),
            region("hello"),
            region("=?base64?SGVsbG8?="),
            call("{}").with("mcp-param-shelf", "42"),
        ] {
            let answer = client.ask(&request).await;
            assert_eq!((answer.status, code(&answer)), (400, -32020), "{request:?}");
            assert!(server.frontend.newest().streams_of("tools/call").is_empty());
        }
        assert_eq!(server.service.stateless_requests().count(), 0);
    })
    .await;
}

#[tokio::test]
async fn other_messages_than_requests_do_not_reach_the_gateway() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let call = Request::stateless_request(1, "echo", "{}");
        let post = |body: &str| {
            let request = Request::post("/mcp", body).with("mcp-protocol-version", MODERN);
            request.with("mcp-method", "x")
        };
        for (body, status) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#, 202),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 400),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, 400),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, 400),
            (r#"{"jsonrpc":"2.0","id":1}"#, 400),
            ("nonsense", 400),
            ("", 400),
        ] {
            let answer = client.ask(&post(body)).await;
            assert_eq!(answer.status, status, "{body}");
            assert_eq!(answer.body.is_empty(), status == 202);
        }
        assert!(server.frontend.sessions().is_empty());
        assert_eq!(client.ask(&call).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn stateless_event_stream_cannot_be_resumed() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let answer = client.ask(&Request::stateless_request(5, "tell", r#"{"count":3}"#)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(answer.header("x-accel-buffering"), Some("no"));
        assert_eq!(answer.events().len(), 4);
        assert!(answer.events()[3].contains(r#""id":5"#));
        for word in ["id: ", "retry: "] {
            assert!(!answer.body.contains(word), "{}", answer.body);
        }
        assert!(server.frontend.newest().is_closed());
    })
    .await;
}

#[tokio::test]
async fn slow_stateless_request_becomes_a_kept_alive_stream() {
    with_service(rules(), async |server| {
        let (mut client, client_session) =
            waiting(server, &Request::stateless_request(5, "wait", "{}")).await;
        advance_time(STATELESS_STREAM_DELAY).await;
        assert_eq!(client.head().await.header("content-type"), Some("text/event-stream"));
        for _ in 0..2 {
            advance_time(Duration::from_secs(16)).await;
            assert_eq!(client.chunk().await.as_deref(), Some(": still here\n\n"));
        }
        client_session.send("9", Route::Broadcast);
        send_related(&client_session, "1");
        assert_eq!(client.event().await.as_deref(), Some("1"));
        assert!(!client_session.is_closed());
        answer(&client_session, "2");
        assert_eq!(client.event().await.as_deref(), Some("2"));
        assert_eq!(client.event().await, None);
        server.wait_for_stateless(0).await;
        assert!(client_session.is_closed());
        assert_eq!(client.ask(&Request::stateless_request(6, "echo", "{}")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn client_that_accepts_only_json_waits_for_its_answer() {
    with_service(rules(), async |server| {
        let (mut client, client_session) = waiting(server, &plain(5)).await;
        send_related(&client_session, "1");
        advance_time(STATELESS_STREAM_DELAY * 10).await;
        answer(&client_session, "{}");
        let answer = client.answer().await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.body, "{}");
        let listen = Request::stateless_request(6, "subscriptions/listen", "{}");
        let answer = client.ask(&listen.with("accept", "application/json")).await;
        assert_eq!((answer.status, &answer.json()["id"]), (406, &json!(6)));
    })
    .await;
}

#[tokio::test]
async fn some_errors_have_their_own_status() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        for (minus, status) in
            [(32601, 404), (32020, 400), (32021, 400), (32022, 400), (32602, 200)]
        {
            let params = format!(r#"{{"minus":{minus}}}"#);
            let answer = client.ask(&Request::stateless_request(1, "error", &params)).await;
            assert_eq!((answer.status, code(&answer)), (status, -minus));
        }
        let (mut late, client_session) =
            waiting(server, &Request::stateless_request(5, "wait", "{}")).await;
        advance_time(STATELESS_STREAM_DELAY / 2).await;
        answer(&client_session, r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32601,"message":""}}"#);
        assert_eq!(late.answer().await.status, 404, "also if it takes a while");
        let refused = client.ask(&Request::stateless_request(1, "refuse", "{}")).await;
        assert_eq!((refused.status, code(&refused)), (400, -32602));
        let cancelled = client.ask(&Request::stateless_request(1, "cancelled", "{}")).await;
        assert_eq!((cancelled.status, &*cancelled.body), (200, ""));
        for (path, status) in [("/mcp/s/none", 404), ("/mcp/p/none", 404), ("/mcp/p/full", 503)] {
            let answer = client.ask(&Request::stateless_request_at(path, 9, "echo", "{}")).await;
            assert_eq!((answer.status, &answer.json()["id"]), (status, &json!(9)));
        }
    })
    .await;
}

#[tokio::test]
async fn disconnect_before_the_answer_cancels_the_request() {
    with_service(rules(), async |server| {
        let begun = Request::stateless_request(5, "wait", "{}");
        for (request, is_stream) in [(plain(5), false), (begun.clone(), false), (begun, true)] {
            for sends_more in [false, true] {
                for only_says_so in [false, true] {
                    let (mut client, client_session) = waiting(server, &request).await;
                    if is_stream {
                        send_related(&client_session, "1");
                        assert_eq!(client.head().await.status, 200);
                        assert_eq!(client.event().await.as_deref(), Some("1"));
                    }
                    if sends_more {
                        client.send(b"POST /mcp HTTP/1.1\r\n").await;
                        server.client().await.ask(&Request::new("GET", "/healthz")).await;
                    }
                    assert!(!client_session.is_closed());
                    if only_says_so {
                        client.hang_up().await;
                    } else {
                        drop(client);
                    }
                    server.wait_until(|| client_session.is_closed()).await;
                    server.wait_for_stateless(0).await;
                }
            }
        }
        assert!(server.metrics().contains("xy_http_stateless_requests_abandoned_total 12\n"));
    })
    .await;
}

#[tokio::test]
async fn disconnect_after_the_answer_is_not_counted_as_abandoned() {
    with_service(rules(), async |server| {
        for method in ["echo", "tell"] {
            let mut client = server.client().await;
            client.ask(&Request::stateless_request(1, method, r#"{"count":1}"#)).await;
            drop(client);
        }
        server.wait_until(|| server.metrics().contains("xy_http_connections 0\n")).await;
        let metrics = server.metrics();
        assert!(metrics.contains("xy_http_stateless_requests_abandoned_total 0\n"), "{metrics}");
        assert!(!metrics.contains("broken-connection"), "{metrics}");
    })
    .await;
}

#[tokio::test]
async fn incomplete_body_does_not_reach_the_gateway() {
    with_service(rules(), async |server| {
        let mut client = server.client().await;
        let text = Request::stateless_request(1, "echo", "{}").text();
        client.send(&text.as_bytes()[..text.len() - 10]).await;
        drop(client);
        server.wait_until(|| server.metrics().contains("reason=\"body-broken\"} 1\n")).await;
        assert!(server.frontend.sessions().is_empty());
    })
    .await;
}

#[tokio::test]
async fn too_large_body_does_not_reach_the_gateway() {
    with_service(HttpRules { body_max_bytes: 1000, ..rules() }, async |server| {
        let mut client = server.client().await;
        let params = format!(r#"{{"a":"{}"}}"#, "x".repeat(1000));
        assert_eq!(client.ask(&Request::stateless_request(1, "echo", &params)).await.status, 413);
        assert_eq!(client.ask(&Request::stateless_request(1, "echo", "{}")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn slow_stateless_reader_loses_only_its_own_request() {
    with_service(rules(), async |server| {
        let (mut slow, client_session) =
            waiting(server, &Request::stateless_request(5, "wait", "{}")).await;
        let (mut other, others) = waiting(server, &plain(6)).await;
        let message = "1".repeat(1024 * 1024);
        within(async {
            while !client_session.is_closed() {
                send_related(&client_session, &message);
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(server.metrics().contains("xy_http_closed_total{reason=\"slow-reader\"} 1"));
        assert_eq!(server.stored(), StorageUse::default());
        answer(&others, "{}");
        assert_eq!(other.answer().await.body, "{}");
        // Events already in transit are still read, then the stream ends.
        assert_eq!(slow.head().await.status, 200);
        while slow.event().await.is_some() {}
        server.wait_for_stateless(0).await;
    })
    .await;
}

#[tokio::test]
async fn stateless_requests_are_limited_in_all_and_per_token() {
    let auth = Auth::Tokens(vec![token("alpha", true), token("beta", true), token("gamma", true)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        server.service.stateless_requests().set_max(4);
        let with = |token: &str, method: &str| {
            let request = Request::stateless_request(1, method, "{}");
            request.with("authorization", &format!("Bearer {token}"))
        };
        let mut waiting_clients = Vec::new();
        for token in ["alpha"; 3] {
            waiting_clients.push(waiting(server, &with(token, "wait")).await);
        }
        let refused = ask(server, &with("alpha", "echo")).await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        assert!(refused.message().contains("3 of the 4 requests at one time"));
        assert_eq!(refused.json()["id"], 1);
        waiting_clients.push(waiting(server, &with("beta", "wait")).await);
        let refused = ask(server, &with("gamma", "echo")).await;
        assert_eq!(refused.status, 503);
        assert!(refused.message().contains("4 requests"));
        assert!(server.metrics().contains("xy_http_stateless_requests 4\n"));
        // A client with a session is accepted anyway.
        let legacy = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer gamma");
        assert_eq!(ask(server, &legacy).await.status, 200);
        waiting_clients.pop();
        server.wait_for_stateless(3).await;
        assert_eq!(ask(server, &with("gamma", "echo")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn concurrent_stateless_requests_never_mix() {
    with_service(rules(), async |server| {
        let run_client = async |first: u64| {
            let mut client = server.client().await;
            for id in first..first + 50 {
                let answer = if id % 3 == 0 {
                    client
                        .send(Request::stateless_request(id, "wait", "{}").text().as_bytes())
                        .await;
                    let mine = async || loop {
                        let all = server.frontend.sessions();
                        let waits = |it: &&Rc<FakeSession>| {
                            !it.is_closed()
                                && !it.streams_of("wait").is_empty()
                                && it.has_request(id)
                        };
                        if let Some(found) = all.iter().find(waits) {
                            return Rc::clone(found);
                        }
                        tokio::task::yield_now().await;
                    };
                    answer_later(within(mine()).await, id, Duration::from_millis(id % 4));
                    client.answer().await
                } else {
                    let params = format!(r#"{{"count":{}}}"#, id % 4);
                    client.ask(&Request::stateless_request(id, "tell", &params)).await
                };
                let last = answer.events().pop().unwrap_or_else(|| answer.body.clone());
                let last: Value = serde_json::from_str(&last).unwrap();
                assert_eq!(last["id"], id);
            }
        };
        tokio::join!(run_client(0), run_client(1000), run_client(2000));
        server.wait_for_stateless(0).await;
    })
    .await;
}

#[tokio::test]
async fn shutdown_waits_for_requests_and_ends_subscriptions() {
    with_service(rules(), async |server| {
        let mut listener = server.client().await;
        listener.open(&Request::stateless_request(3, "subscriptions/listen", "{}")).await;
        assert_eq!(listener.event().await.as_deref(), Some(ACKNOWLEDGED));
        let listening = server.frontend.newest();
        let (mut client, client_session) = waiting(server, &plain(5)).await;
        server.spawn(async move {
            let last: Value = serde_json::from_str(&listener.event().await.unwrap()).unwrap();
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": 3 });
            let result = json!({ "resultType": "complete", "_meta": meta });
            assert_eq!(last, json!({ "jsonrpc": "2.0", "id": 3, "result": result }));
            assert_eq!(listener.event().await, None);
            assert!(listener.is_closed().await);
            assert!(listening.is_closed());
            answer(&client_session, "{}");
            drop((client_session, listening));
            assert_eq!(client.answer().await.body, "{}");
            assert!(client.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn shutdown_reports_lost_stateless_requests() {
    with_service(rules(), async |server| {
        let (mut plain, one) = waiting(server, &plain(5)).await;
        let (mut streaming, other) =
            waiting(server, &Request::stateless_request(6, "wait", "{}")).await;
        send_related(&other, "1");
        assert_eq!(streaming.head().await.status, 200);
        assert_eq!(streaming.event().await.as_deref(), Some("1"));
        drop((one, other));
        let addr = server.addr;
        server.spawn(async move {
            closing(addr).await;
            advance_time(FINISH_TIMEOUT).await;
            let last: Value = serde_json::from_str(&streaming.event().await.unwrap()).unwrap();
            assert_eq!((&last["id"], &last["error"]["code"]), (&json!(6), &json!(-32010)));
            assert_eq!(streaming.event().await, None);
            let answer = plain.answer().await;
            assert_eq!((answer.status, &answer.json()["id"]), (503, &json!(5)));
            assert!(plain.is_closed().await);
        });
    })
    .await;
}

#[tokio::test]
async fn request_during_shutdown_is_refused() {
    with_service(rules(), async |server| {
        let (mut client, client_session) = waiting(server, &plain(5)).await;
        let mut late = server.client().await;
        let text = Request::stateless_request(6, "subscriptions/listen", "{}").text();
        late.send(&text.as_bytes()[..text.len() - 1]).await;
        assert_eq!(ask(server, &Request::new("GET", "/healthz")).await.status, 200);
        let addr = server.addr;
        server.spawn(async move {
            closing(addr).await;
            late.send(&text.as_bytes()[text.len() - 1..]).await;
            let answer = late.answer().await;
            assert_eq!((answer.status, &answer.json()["id"]), (503, &json!(6)));
            answer_and_forget(client_session);
            assert_eq!(client.answer().await.status, 200);
        });
    })
    .await;
}

fn answer_and_forget(client_session: Rc<FakeSession>) {
    answer(&client_session, "{}");
    drop(client_session);
}

#[tokio::test]
async fn web_page_may_send_the_stateless_headers() {
    with_service(rules(), async |server| {
        let preflight = Request::new("OPTIONS", "/mcp").with("origin", "http://localhost:6274");
        let requested = "content-type, x-evil, Mcp-Param-Region,mcp-param-shelf";
        let preflight = preflight.with("access-control-request-headers", requested);
        let answer = ask(server, &preflight).await;
        let allowed = answer.header("access-control-allow-headers").unwrap();
        for name in ["mcp-method", "mcp-name", "Mcp-Param-Region", "mcp-param-shelf"] {
            assert!(allowed.contains(name), "{allowed}");
        }
        assert!(!allowed.contains("x-evil"));
    })
    .await;
}
