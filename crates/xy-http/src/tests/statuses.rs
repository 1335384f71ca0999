//! Every status that a client may get.

use super::*;

/// Sends a request on its own connection, and returns the response.
async fn ask(server: &TestServer, request: &Request) -> client::Answer {
    server.client().await.ask(request).await
}

#[tokio::test]
async fn initialize_opens_a_session_and_delete_ends_it() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        assert_eq!(server.gauges(), (1, 0));
        let client_session = server.frontend.newest();
        assert_eq!(client_session.entry.view, crate::frontend::View::Profile("default".to_owned()));
        assert!(!client_session.entry.may_manage);

        let answer = client.ask(&Request::call(&id, 7, "echo", "[1]")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("mcp-session-id"), None);
        assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":7,"result":{"by":0,"for":[1]}}"#);

        assert_eq!(client.ask(&Request::end(&id)).await.status, 204);
        assert!(client_session.is_closed());
        for request in
            [Request::end(&id), Request::call(&id, 8, "echo", "[]"), Request::listen(&id)]
        {
            assert_eq!(client.ask(&request).await.status, 404);
        }
    })
    .await;
}

#[tokio::test]
async fn each_path_has_its_own_view() {
    use crate::frontend::View;
    with_service(rules(), async |server| {
        for (path, view) in [
            ("/mcp/p/work", View::Profile("work".to_owned())),
            ("/mcp/s/git", View::Server("git".to_owned())),
        ] {
            server.session_at(path).await;
            assert_eq!(server.frontend.newest().entry.view, view);
        }
        for (path, status, word) in [
            ("/mcp/s/none", 404, "no server named `none`"),
            ("/mcp/p/none", 404, "no profile named `none`"),
            ("/mcp/p/full", 503, "3 clients"),
        ] {
            let answer = ask(server, &Request::post(path, INITIALIZE)).await;
            assert_eq!(answer.status, status);
            assert!(answer.message().contains(word), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn failed_initialize_leaves_no_session() {
    with_service(rules(), async |server| {
        let failing = INITIALIZE.replace("{}", "[]");
        let answer = ask(server, &Request::post("/mcp", &failing)).await;
        assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None));
        assert!(answer.body.contains("error"));
        assert_eq!(server.gauges(), (0, 0));
        assert!(server.frontend.newest().is_closed());
    })
    .await;
}

#[tokio::test]
async fn message_without_a_session_gets_a_hint() {
    with_service(rules(), async |server| {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","method":"initialize"}"#,
            "no JSON",
            "",
        ] {
            let answer = ask(server, &Request::post("/mcp", body)).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.message().contains("`initialize`"));
            assert_eq!(answer.json()["error"]["code"], -32600);
        }
        assert!(server.frontend.sessions().is_empty());
    })
    .await;
}

#[tokio::test]
async fn session_belongs_to_its_path_and_token() {
    let auth = Auth::Tokens(vec![token("alpha", true), token("beta", false)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        let mut client = server.client().await;
        let alpha = |request: Request| request.with("authorization", "Bearer alpha");
        let begun = client.ask(&alpha(Request::post("/mcp", INITIALIZE))).await;
        let id = begun.header("mcp-session-id").unwrap().to_owned();
        assert!(server.frontend.newest().entry.may_manage);

        let call = Request::call(&id, 1, "echo", "[]");
        assert_eq!(client.ask(&alpha(call.clone())).await.status, 200);
        let with_beta = call.with("authorization", "Bearer beta");
        assert_eq!(client.ask(&with_beta).await.status, 404);
        let elsewhere = Request::post("/mcp/p/work", r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#);
        let elsewhere = alpha(elsewhere).with("mcp-session-id", &id);
        assert_eq!(client.ask(&elsewhere).await.status, 404);

        let beta = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer beta");
        assert_eq!(client.ask(&beta).await.status, 200);
        assert!(!server.frontend.newest().entry.may_manage);
    })
    .await;
}

#[tokio::test]
async fn client_without_a_token_gets_a_hint_and_only_health_checks() {
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        for request in [Request::post("/mcp", INITIALIZE), Request::new("GET", "/metrics")] {
            let answer = ask(server, &request).await;
            assert_eq!(answer.status, 401);
            assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
            assert!(answer.message().contains("`xy info --token`"));
        }
        let health = ask(server, &Request::new("GET", "/healthz")).await;
        assert_eq!((health.status, &*health.body), (200, "ok\n"));
        assert_eq!(ask(server, &Request::new("GET", "/readyz")).await.status, 200);
        server.is_ready.set(false);
        assert_eq!(ask(server, &Request::new("GET", "/readyz")).await.status, 503);

        let metrics = Request::new("GET", "/metrics").with("authorization", "Bearer alpha");
        let metrics = ask(server, &metrics).await;
        assert_eq!(metrics.status, 200);
        for line in [
            "xy_http_requests_total{status=\"401\"} 2",
            "xy_http_refused_total{reason=\"no-token\"} 2",
            "xy_http_connections 1",
            "xy_core 1",
        ] {
            assert!(metrics.body.lines().any(|it| it == line), "{line} in {}", metrics.body);
        }
    })
    .await;
}

#[tokio::test]
async fn invalid_requests_are_refused_with_a_message() {
    with_service(rules(), async |server| {
        let post = || Request::post("/mcp", INITIALIZE);
        for (request, status) in [
            (Request::new("GET", "/"), 404),
            (Request::new("PUT", "/mcp"), 405),
            (post().with("host", "evil.example"), 403),
            (post().without("host"), 403),
            (post().with("origin", "http://evil.example"), 403),
            (post().with("content-type", "text/plain"), 415),
            (post().with("accept", "text/html"), 406),
            (post().with("mcp-protocol-version", "2026-07-28"), 400),
            (post().with("mcp-session-id", "unknown"), 404),
            (Request::new("GET", "/mcp").with("accept", "text/event-stream"), 400),
            (Request::new("GET", "/mcp").with("accept", "application/json"), 406),
            (Request::new("DELETE", "/mcp"), 400),
        ] {
            let answer = ask(server, &request).await;
            assert_eq!(answer.status, status, "{request:?}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("access-control-allow-origin"), None);
            assert!(!answer.message().is_empty());
        }
        let put = ask(server, &Request::new("PUT", "/mcp")).await;
        assert_eq!(put.header("allow"), Some("GET, POST, DELETE, OPTIONS"));
        assert!(server.frontend.sessions().is_empty());
    })
    .await;
}

#[tokio::test]
async fn notifications_and_responses_are_accepted() {
    with_service(rules(), async |server| {
        let (mut client, id) = server.session().await;
        for (body, status) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, 202),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 202),
            ("nonsense", 400),
            ("[]", 400),
        ] {
            let answer = client.ask(&Request::post("/mcp", body).with("mcp-session-id", &id)).await;
            assert_eq!(answer.status, status, "{body}");
            if status == 202 {
                assert_eq!(answer.body, "");
            } else {
                assert!(answer.body.starts_with(r#"{"no":"#));
            }
        }
        assert_eq!(server.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn local_web_page_may_send_and_read() {
    with_service(rules(), async |server| {
        let page = "http://localhost:6274";
        let preflight = Request::new("OPTIONS", "/mcp").with("origin", page);
        let answer = ask(server, &preflight).await;
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header("access-control-allow-origin"), Some(page));
        assert_eq!(answer.header("access-control-allow-methods"), Some("GET, POST, DELETE"));
        assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));

        let answer = ask(server, &Request::post("/mcp", INITIALIZE).with("origin", page)).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(page));
        assert_eq!(answer.header("access-control-expose-headers"), Some("mcp-session-id"));
    })
    .await;
}

#[tokio::test]
async fn removed_token_ends_only_its_own_sessions_and_requests() {
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    with_service(HttpRules { auth, ..rules() }, async |server| {
        let with = |request: Request, token: &str| {
            request.with("authorization", &format!("Bearer {token}"))
        };
        let mut client = server.client().await;
        let hello = || Request::post("/mcp", INITIALIZE);
        assert_eq!(client.ask(&with(hello(), "made")).await.status, 401);
        server.service.set_tokens(&[token("made", false)]);
        let begun = client.ask(&with(hello(), "made")).await;
        let made = begun.header("mcp-session-id").unwrap().to_owned();
        let begun = client.ask(&with(hello(), "alpha")).await;
        let alpha = begun.header("mcp-session-id").unwrap().to_owned();
        let (mut waiting, mut visiting) = (server.client().await, server.client().await);
        waiting.send(with(Request::call(&made, 1, "wait", "[]"), "made").text().as_bytes()).await;
        visiting
            .send(with(Request::stateless_request(2, "wait", "{}"), "made").text().as_bytes())
            .await;
        server.wait_for_gauges((2, 1)).await;
        server.wait_for_stateless(1).await;
        server.service.set_tokens(&[]);
        assert_eq!(waiting.answer().await.status, 404);
        let response = visiting.answer().await;
        assert!(response.message().contains("the token has been removed"), "{response:?}");
        let call =
            |session: &str, token: &str| with(Request::call(session, 3, "echo", "[]"), token);
        assert_eq!(client.ask(&call(&made, "made")).await.status, 401);
        assert_eq!(client.ask(&call(&alpha, "alpha")).await.status, 200);
        assert_eq!(server.gauges().0, 1);
    })
    .await;
}
