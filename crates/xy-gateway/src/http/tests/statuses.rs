//! Every status a client may see.

use super::*;

/// What comes of a request on a connection of its own.
async fn ask(world: &World, request: &Request) -> client::Answer {
    world.client().await.ask(request).await
}

#[tokio::test]
async fn an_initialize_begins_a_session_and_its_end_is_the_end_of_it() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
        assert_eq!(world.gauges(), (1, 0));
        let client_session = world.front.newest();
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
async fn each_path_shows_its_own_view() {
    use crate::frontend::View;
    at_the_door(rules(), async |world| {
        for (path, view) in [
            ("/mcp/p/work", View::Profile("work".to_owned())),
            ("/mcp/s/git", View::Server("git".to_owned())),
        ] {
            world.session_at(path).await;
            assert_eq!(world.front.newest().entry.view, view);
        }
        for (path, status, word) in [
            ("/mcp/s/none", 404, "no server named `none`"),
            ("/mcp/p/none", 404, "no profile named `none`"),
            ("/mcp/p/full", 503, "3 clients"),
        ] {
            let answer = ask(world, &Request::post(path, INITIALIZE)).await;
            assert_eq!(answer.status, status);
            assert!(answer.message().contains(word), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_initialize_that_fails_leaves_no_session() {
    at_the_door(rules(), async |world| {
        let failing = INITIALIZE.replace("{}", "[]");
        let answer = ask(world, &Request::post("/mcp", &failing)).await;
        assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None));
        assert!(answer.body.contains("error"));
        assert_eq!(world.gauges(), (0, 0));
        assert!(world.front.newest().is_closed());
    })
    .await;
}

#[tokio::test]
async fn a_message_without_a_session_is_told_how_to_begin() {
    at_the_door(rules(), async |world| {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","method":"initialize"}"#,
            "no JSON",
            "",
        ] {
            let answer = ask(world, &Request::post("/mcp", body)).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.message().contains("`initialize`"));
            assert_eq!(answer.json()["error"]["code"], -32600);
        }
        assert!(world.front.conversations().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_session_is_not_found_from_another_path_or_with_another_token() {
    let auth = Auth::Tokens(vec![token("alpha", true), token("beta", false)]);
    at_the_door(HttpRules { auth, ..rules() }, async |world| {
        let mut client = world.client().await;
        let alpha = |request: Request| request.with("authorization", "Bearer alpha");
        let begun = client.ask(&alpha(Request::post("/mcp", INITIALIZE))).await;
        let id = begun.header("mcp-session-id").unwrap().to_owned();
        assert!(world.front.newest().entry.may_manage);

        let call = Request::call(&id, 1, "echo", "[]");
        assert_eq!(client.ask(&alpha(call.clone())).await.status, 200);
        let with_beta = call.with("authorization", "Bearer beta");
        assert_eq!(client.ask(&with_beta).await.status, 404);
        let elsewhere = Request::post("/mcp/p/work", r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#);
        let elsewhere = alpha(elsewhere).with("mcp-session-id", &id);
        assert_eq!(client.ask(&elsewhere).await.status, 404);

        let beta = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer beta");
        assert_eq!(client.ask(&beta).await.status, 200);
        assert!(!world.front.newest().entry.may_manage);
    })
    .await;
}

#[tokio::test]
async fn who_shows_no_token_learns_where_to_find_it_and_sees_only_whether_we_are_there() {
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    at_the_door(HttpRules { auth, ..rules() }, async |world| {
        for request in [Request::post("/mcp", INITIALIZE), Request::new("GET", "/metrics")] {
            let answer = ask(world, &request).await;
            assert_eq!(answer.status, 401);
            assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
            assert!(answer.message().contains("`xy info --token`"));
        }
        let health = ask(world, &Request::new("GET", "/healthz")).await;
        assert_eq!((health.status, &*health.body), (200, "ok\n"));
        assert_eq!(ask(world, &Request::new("GET", "/readyz")).await.status, 200);
        world.is_ready.set(false);
        assert_eq!(ask(world, &Request::new("GET", "/readyz")).await.status, 503);

        let metrics = Request::new("GET", "/metrics").with("authorization", "Bearer alpha");
        let metrics = ask(world, &metrics).await;
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
async fn what_is_no_request_of_ours_is_refused_with_words() {
    at_the_door(rules(), async |world| {
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
            let answer = ask(world, &request).await;
            assert_eq!(answer.status, status, "{request:?}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("access-control-allow-origin"), None);
            assert!(!answer.message().is_empty());
        }
        let put = ask(world, &Request::new("PUT", "/mcp")).await;
        assert_eq!(put.header("allow"), Some("GET, POST, DELETE, OPTIONS"));
        assert!(world.front.conversations().is_empty());
    })
    .await;
}

#[tokio::test]
async fn notifications_and_answers_are_accepted_and_nonsense_is_not() {
    at_the_door(rules(), async |world| {
        let (mut client, id) = world.session().await;
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
        assert_eq!(world.gauges(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn a_page_of_this_machine_may_ask_and_read() {
    at_the_door(rules(), async |world| {
        let page = "http://localhost:6274";
        let preflight = Request::new("OPTIONS", "/mcp").with("origin", page);
        let answer = ask(world, &preflight).await;
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header("access-control-allow-origin"), Some(page));
        assert_eq!(answer.header("access-control-allow-methods"), Some("GET, POST, DELETE"));
        assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));

        let answer = ask(world, &Request::post("/mcp", INITIALIZE).with("origin", page)).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(page));
        assert_eq!(answer.header("access-control-expose-headers"), Some("mcp-session-id"));
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_removed_ends_what_was_begun_with_it_and_nothing_else() {
    let auth = Auth::Tokens(vec![token("alpha", true)]);
    at_the_door(HttpRules { auth, ..rules() }, async |world| {
        let with = |request: Request, token: &str| {
            request.with("authorization", &format!("Bearer {token}"))
        };
        let mut client = world.client().await;
        let hello = || Request::post("/mcp", INITIALIZE);
        assert_eq!(client.ask(&with(hello(), "made")).await.status, 401);
        world.door.set_tokens(&[token("made", false)]);
        let begun = client.ask(&with(hello(), "made")).await;
        let made = begun.header("mcp-session-id").unwrap().to_owned();
        let begun = client.ask(&with(hello(), "alpha")).await;
        let alpha = begun.header("mcp-session-id").unwrap().to_owned();
        let (mut waiting, mut visiting) = (world.client().await, world.client().await);
        waiting.send(with(Request::call(&made, 1, "wait", "[]"), "made").text().as_bytes()).await;
        visiting
            .send(with(Request::stateless_request(2, "wait", "{}"), "made").text().as_bytes())
            .await;
        world.wait_for_gauges((2, 1)).await;
        world.wait_for_visits(1).await;
        world.door.set_tokens(&[]);
        assert_eq!(waiting.answer().await.status, 404);
        let told = visiting.answer().await;
        assert!(told.message().contains("the token has been removed"), "{told:?}");
        let call =
            |session: &str, token: &str| with(Request::call(session, 3, "echo", "[]"), token);
        assert_eq!(client.ask(&call(&made, "made")).await.status, 401);
        assert_eq!(client.ask(&call(&alpha, "alpha")).await.status, 200);
        assert_eq!(world.gauges().0, 1);
    })
    .await;
}
