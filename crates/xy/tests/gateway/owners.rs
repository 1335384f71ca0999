//! Ids that outlive the call they came with: elicitations that are completed elsewhere.

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient, McpSocket};

use crate::stage::{home, linger, ready, serve, stranger, told};

const COMPLETE: &str = "notifications/elicitation/complete";

fn home_of_talker() -> Home {
    let home = home();
    serve(&home, "a", &["--talks"]);
    home.daemon();
    ready(&home, &["a"]);
    home
}

fn browsing(home: &Home) -> McpSocket {
    let client = stranger(home);
    client.initialize_with(&json!({ "elicitation": { "url": {} } }));
    client.answer_with(|_| Some(Ok(json!({ "action": "accept" }))));
    client
}

fn elicit(client: &McpClient, id: &str) {
    let params = json!({ "mode": "url", "message": "m", "url": "https://x/", "elicitationId": id });
    let arguments = json!({ "method": "elicitation/create", "params": params.to_string() });
    client.call_text("a__ask", arguments);
}

/// Has somebody's call make the server say that it is done.
fn complete(by: &McpClient, id: &str) {
    let line = json!({ "jsonrpc": "2.0", "method": COMPLETE, "params": { "elicitationId": id } });
    by.call_text("a__say", json!({ "line": line.to_string() }));
}

#[test]
fn what_is_completed_later_is_told_to_whoever_was_asked() {
    let home = home_of_talker();
    let (one, other) = (browsing(&home), browsing(&home));
    elicit(&one, "mine");
    elicit(&other, "theirs");
    complete(&other, "mine");
    let heard = one.wait_notification(COMPLETE);
    assert_eq!(heard["params"]["elicitationId"], "mine");
    complete(&one, "theirs");
    assert_eq!(other.wait_notification(COMPLETE)["params"]["elicitationId"], "theirs");
    // It is told once, and what nobody was asked is nobody's.
    for id in ["mine", "theirs", "unknown"] {
        complete(&one, id);
        complete(&other, id);
    }
    home.wait_until("its log has it", || {
        xy_testkit::read_log_lines(&home, "a").iter().any(|it| it.contains("unknown"))
    });
    linger();
    assert_eq!((told(&one, COMPLETE), told(&other, COMPLETE)), (0, 0));
    home.finish();
}

#[test]
fn an_error_that_asks_for_it_first_has_an_owner_too() {
    let home = home_of_talker();
    let (one, other) = (browsing(&home), browsing(&home));
    let elicitations: Vec<Value> = ["e-1", "e-2"]
        .map(
            |id| json!({ "mode": "url", "elicitationId": id, "url": "https://x/", "message": "m" }),
        )
        .to_vec();
    let error =
        json!({ "code": -32042, "message": "first", "data": { "elicitations": elicitations } });
    let answer = one.call("a__refuse", json!({ "error": error.to_string() }));
    assert_eq!(answer["error"], error);
    for id in ["e-2", "e-1"] {
        complete(&other, id);
        assert_eq!(one.wait_notification(COMPLETE)["params"]["elicitationId"], id);
    }
    assert_eq!(told(&other, COMPLETE), 0);
    home.finish();
}

#[test]
fn an_id_that_was_given_to_two_or_whose_client_is_gone_reaches_nobody() {
    let home = home_of_talker();
    let (one, other, third) = (browsing(&home), browsing(&home), browsing(&home));
    elicit(&one, "same");
    elicit(&other, "same");
    elicit(&third, "gone");
    drop(third);
    home.wait_until("it is gone", || {
        crate::stage::metrics(&home).lines().any(|it| it == "xy_ids_owned 1")
    });
    complete(&one, "same");
    complete(&other, "gone");
    linger();
    assert_eq!((told(&one, COMPLETE), told(&other, COMPLETE)), (0, 0));
    home.finish();
}

#[test]
fn a_later_life_of_the_server_knows_no_earlier_ones_ids() {
    let home = home_of_talker();
    let (one, other) = (browsing(&home), browsing(&home));
    elicit(&one, "old");
    other.call("a__crash", json!({}));
    crate::stage::who_at_last(&home, &other, "a__who");
    complete(&other, "old");
    linger();
    assert_eq!((told(&one, COMPLETE), told(&other, COMPLETE)), (0, 0));
    home.finish();
}
