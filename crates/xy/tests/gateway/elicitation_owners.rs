//! Elicitations that are completed after their call: the completion goes to the client that was
//! asked.

use serde_json::json;
use xy_testkit::{Home, McpClient, McpSocket};

use crate::fixtures::{home, linger, notification_count, ready, serve, uninitialized_client};

const COMPLETE: &str = "notifications/elicitation/complete";

fn home_with_requesting_server() -> Home {
    let home = home();
    serve(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    home
}

fn url_capable_client(home: &Home) -> McpSocket {
    let client = uninitialized_client(home);
    client.initialize_with(&json!({ "elicitation": { "url": {} } }));
    client.answer_with(|_| Some(Ok(json!({ "action": "accept" }))));
    client
}

fn elicit(client: &McpClient, id: &str) {
    let params = json!({ "mode": "url", "message": "m", "url": "https://x/", "elicitationId": id });
    let arguments = json!({ "method": "elicitation/create", "params": params.to_string() });
    client.call_text("a__ask", arguments);
}

/// Makes the server send a completion during a call of `by`.
fn complete(by: &McpClient, id: &str) {
    let line = json!({ "jsonrpc": "2.0", "method": COMPLETE, "params": { "elicitationId": id } });
    by.call_text("a__say", json!({ "line": line.to_string() }));
}

#[test]
fn completion_goes_to_the_client_that_was_asked() {
    let home = home_with_requesting_server();
    let (one, other) = (url_capable_client(&home), url_capable_client(&home));
    elicit(&one, "mine");
    elicit(&other, "theirs");
    complete(&other, "mine");
    let received = one.wait_notification(COMPLETE);
    assert_eq!(received["params"]["elicitationId"], "mine");
    complete(&one, "theirs");
    assert_eq!(other.wait_notification(COMPLETE)["params"]["elicitationId"], "theirs");
    // Each completion is sent once, and unknown ids reach no client.
    for id in ["mine", "theirs", "unknown"] {
        complete(&one, id);
        complete(&other, id);
    }
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("unknown"))
    });
    linger();
    assert_eq!((notification_count(&one, COMPLETE), notification_count(&other, COMPLETE)), (0, 0));
    home.finish();
}

#[test]
fn completion_reaches_an_http_client() {
    let home = home_with_requesting_server();
    let (one, other) = (home.mcp_http("/mcp"), url_capable_client(&home));
    one.initialize_with(&json!({ "elicitation": { "url": {} } }));
    one.answer_with(|_| Some(Ok(json!({ "action": "accept" }))));
    assert_eq!(one.open_stream(), 200);
    elicit(&one, "mine");
    complete(&other, "mine");
    assert_eq!(one.wait_notification(COMPLETE)["params"]["elicitationId"], "mine");
    assert_eq!(notification_count(&other, COMPLETE), 0);
    home.finish();
}
