//! The debug log has a line for each request that is refused before the client gets a response.

use xy_transport::error_log::capture::Capture;

use super::*;
use crate::frontend::Route;
use crate::limits::STORED_BYTES_MAX;

/// Asserts that the only failed request in the log has all these parts.
#[track_caller]
fn assert_logged(log: &Capture, parts: &[&str]) {
    let line = log.failed_request();
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn request_with_a_removed_token_is_logged() {
    let rules = HttpRules { auth: Auth::Tokens(Vec::new()), ..rules() };
    with_service(rules, async |server| {
        server.service.set_tokens(&[token("s3cr3t", false)]);
        let log = Capture::begin();
        let mut client = server.client().await;
        let stateless_request =
            Request::stateless_request(1, "wait", "{}").with("authorization", "Bearer s3cr3t");
        client.send(stateless_request.text().as_bytes()).await;
        server.wait_for_stateless(1).await;
        server.service.set_tokens(&[]);
        assert_logged(
            &log,
            &["client=\"fake #0\"", "id=\"1\"", "method=\"wait\"", "outcome=\"token-gone\""],
        );
        client.head().await;
    })
    .await;
}

#[tokio::test]
async fn request_of_an_ended_session_is_logged_with_its_session() {
    with_service(rules(), async |server| {
        let (mut client, session) = server.session().await;
        client.send(Request::call(&session, 5, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        let client_session = server.frontend.newest();
        client_session.send("1", Route::Related(client_session.streams_of("wait")[0]));
        client.head().await;
        client.event().await;
        let log = Capture::begin();
        server.service.sessions().end_all();
        assert_logged(
            &log,
            &["client=\"session ", "id=\"5\"", "method=\"wait\"", "outcome=\"session-ended\""],
        );
    })
    .await;
}

#[tokio::test]
async fn lost_response_is_logged_with_its_method() {
    with_service(rules(), async |server| {
        let (mut client, session) = server.session().await;
        client.send(Request::call(&session, 6, "wait", "[]").text().as_bytes()).await;
        server.wait_for_gauges((1, 1)).await;
        let client_session = server.frontend.newest();
        let stream = client_session.streams_of("wait")[0];
        client_session.send("1", Route::Related(stream));
        client.head().await;
        client.event().await;
        drop(client);
        server.wait_until(|| server.disconnected() == 1).await;
        let log = Capture::begin();
        let too_large = "x".repeat(STORED_BYTES_MAX);
        let response = format!(r#"{{"jsonrpc":"2.0","id":6,"result":"{too_large}"}}"#);
        client_session.send(&response, Route::Response(stream));
        assert_logged(
            &log,
            &["client=\"session ", "id=\"6\"", "method=\"wait\"", "outcome=\"answer-lost\""],
        );
    })
    .await;
}

#[tokio::test]
async fn each_refused_http_request_is_logged() {
    let rules = HttpRules { auth: Auth::Tokens(vec![token("s3cr3t", false)]), ..rules() };
    with_service(rules, async |server| {
        let log = Capture::begin();
        let mut client = server.client().await;
        let with_token = |request: Request| request.with("authorization", "Bearer s3cr3t");
        let wrong = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer s3cr3t-no");
        let mismatch = Request::stateless_request(1, "echo", "{}").without("mcp-method");
        for (request, status, outcome) in [
            (Request::post("/mcp?s3cr3t", INITIALIZE), 401, "no-token"),
            (wrong, 401, "wrong-token"),
            (with_token(Request::call("none", 1, "echo", "{}")), 404, "unknown-session"),
            (with_token(mismatch.with("mcp-method", "other")), 400, "header-mismatch"),
        ] {
            assert_eq!(client.ask(&request).await.status, status, "{outcome}");
            let line = log.failed_request();
            let parts = [format!("outcome=\"{outcome}\""), format!("code={status}")];
            for part in parts
                .iter()
                .map(String::as_str)
                .chain(["client=\"127.0.0.1:", "method=\"POST /mcp\""])
            {
                assert!(line.contains(part), "{part}: {line}");
            }
            assert!(!line.contains("s3cr3t"), "{line}");
        }
    })
    .await;
}
