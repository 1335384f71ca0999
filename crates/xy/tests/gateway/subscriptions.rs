//! Resource subscriptions, completion, prompts and log levels.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::McpClient;

use crate::fixtures::{
    bridge_client, error_code, error_message, home, home_of_two, http_client, linger, local_client,
    notification_count, ready, received_of, serve, single_server_client, who, who_once_up,
};
use crate::support::{running, running_after, signal};

const UPDATED: &str = "notifications/resources/updated";
const COUNTER: &str = "xy://a/test://counter";

#[track_caller]
fn request_ok(client: &McpClient, method: &str, params: Value) -> Value {
    let answer = client.request(method, params);
    assert!(answer.get("result").is_some(), "{method}: {answer}");
    answer["result"].clone()
}

#[test]
fn unsubscribed_client_gets_no_updates_and_others_do() {
    let home = home_of_two();
    let (one, other, plain) =
        (local_client(&home), http_client(&home), single_server_client(&home, "a"));
    assert_eq!(other.open_stream(), 200);
    request_ok(&one, "resources/subscribe", json!({ "uri": COUNTER }));
    request_ok(&other, "resources/subscribe", json!({ "uri": COUNTER }));
    request_ok(&plain, "resources/subscribe", json!({ "uri": "test://counter" }));
    one.call_text("a__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], COUNTER);
    assert_eq!(other.wait_notification(UPDATED)["params"]["uri"], COUNTER);
    assert_eq!(plain.wait_notification(UPDATED)["params"]["uri"], "test://counter");

    request_ok(&one, "resources/unsubscribe", json!({ "uri": COUNTER }));
    request_ok(&plain, "resources/unsubscribe", json!({ "uri": "test://counter" }));
    one.call_text("a__bump", json!({}));
    other.wait_notification(UPDATED);
    linger();
    assert_eq!(
        (
            notification_count(&one, UPDATED),
            notification_count(&plain, UPDATED),
            notification_count(&other, UPDATED)
        ),
        (0, 0, 0)
    );
    assert_eq!(
        received_of(&home, "a", "resources/unsubscribe").len(),
        0,
        "one client is still subscribed"
    );

    request_ok(&other, "resources/unsubscribe", json!({ "uri": COUNTER }));
    assert_eq!(received_of(&home, "a", "resources/unsubscribe").len(), 1);
    home.finish();
}

#[test]
fn leaving_client_is_unsubscribed() {
    let home = home_of_two();
    let client = local_client(&home);
    request_ok(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    drop(client);
    home.wait_until("the server gets the level", || {
        received_of(&home, "a", "resources/unsubscribe").len() == 1
    });
    home.finish();
}

#[test]
fn subscriptions_are_renewed_after_a_restart() {
    let home = home_of_two();
    let (client, plain) = (local_client(&home), single_server_client(&home, "b"));
    request_ok(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    request_ok(&plain, "resources/subscribe", json!({ "uri": "test://counter" }));
    for name in ["a", "b"] {
        signal(running(&home, name), Signal::KILL);
        running_after(&home, name, 1);
    }
    home.wait_until("both servers get the subscription", || {
        who(&client, "a__who")["subscribed"] == json!(["test://counter"])
            && who(&client, "b__who")["subscribed"] == json!(["test://counter"])
    });
    client.call_text("a__bump", json!({}));
    client.call_text("b__bump", json!({}));
    assert_eq!(client.wait_notification(UPDATED)["params"]["uri"], COUNTER);
    assert_eq!(plain.wait_notification(UPDATED)["params"]["uri"], "test://counter");
    home.finish();
}

#[test]
fn subscriptions_survive_a_killed_daemon() {
    let home = home();
    serve(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = bridge_client(&home);
    request_ok(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    let before = who(&client, "a__who");
    daemon.kill9();
    home.daemon();
    let after = who_once_up(&home, &client, "a__who");
    assert_eq!(after["pid"], before["pid"]);
    client.call_text("a__bump", json!({}));
    let updated = client.wait_notification(UPDATED);
    assert_eq!(updated["params"]["uri"], COUNTER);
    // No other client gets the update.
    let stranger = local_client(&home);
    client.call_text("a__bump", json!({}));
    client.wait_notification(UPDATED);
    assert_eq!(stranger.notifications(), [Value::Null; 0]);
    drop(client);
    home.finish();
}

#[test]
fn plain_uri_is_read_if_only_one_server_has_it() {
    let home = home_of_two();
    let client = local_client(&home);
    let read = request_ok(&client, "resources/read", json!({ "uri": "xy://b/test://item/7" }));
    assert_eq!(read["contents"][0]["text"], "item 7");
    assert_eq!(read["contents"][0]["uri"], "test://item/7", "the inside is the server's own");
    client.list("resources/list", "resources"); // From here on all resources are known.
    let both = client.request("resources/read", json!({ "uri": "test://static" }));
    assert_eq!(error_code(&both), -32602);
    assert!(error_message(&both).contains("xy://a/test://static"), "{both}");
    assert!(error_message(&both).contains("xy://b/test://static"), "{both}");
    crate::support::ask(&home, "stop", json!({ "name": "b" }));
    let read = request_ok(&client, "resources/read", json!({ "uri": "test://item/9" }));
    assert_eq!(read["contents"][0]["text"], "item 9");
    home.finish();
}

#[test]
fn prompts_and_completion_go_to_their_server() {
    let home = home_of_two();
    let client = local_client(&home);
    let prompts = client.list("prompts/list", "prompts");
    let names: Vec<&str> = prompts.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["a__greet", "a__plain", "b__greet", "b__plain"]);
    let params = json!({ "name": "b__greet", "arguments": { "name": "Ada" } });
    let prompt = request_ok(&client, "prompts/get", params);
    assert_eq!(prompt["messages"][0]["content"]["text"], "Greet Ada, please.");
    for reference in [
        json!({ "type": "ref/prompt", "name": "b__greet" }),
        json!({ "type": "ref/resource", "uri": "xy://b/test://item/{id}" }),
    ] {
        let argument = json!({ "name": "name", "value": "Al" });
        let params = json!({ "ref": reference, "argument": argument });
        let completed = request_ok(&client, "completion/complete", params);
        assert_eq!(completed["completion"]["values"], json!(["Alan"]));
    }
    let received = received_of(&home, "b", "completion/complete");
    assert_eq!(received[0]["params"]["ref"]["name"], "greet");
    assert_eq!(received[1]["params"]["ref"]["uri"], "test://item/{id}");
    assert_eq!(received_of(&home, "a", "completion/complete").len(), 0);
    home.finish();
}

#[track_caller]
fn logs(client: &McpClient, level: &str, text: &str) {
    client.call_text("a__log", json!({ "level": level, "message": text }));
}

/// Returns the texts of the received log messages.
fn logged(client: &McpClient) -> Vec<String> {
    let all = client.notifications();
    let messages = all.iter().filter(|it| it["method"] == "notifications/message");
    messages.map(|it| it["params"]["data"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn quiet_client_does_not_silence_others() {
    let home = home_of_two();
    let quiet = local_client(&home);
    request_ok(&quiet, "logging/setLevel", json!({ "level": "emergency" }));
    let usual = local_client(&home);
    home.wait_until("the server gets the level", || who(&usual, "a__who")["level"] == 1);
    logs(&usual, "info", "good to know");
    assert_eq!(logged(&usual), ["good to know"]);
    drop(usual);
    home.wait_until("only one client is left", || who(&quiet, "a__who")["level"] == 7);
    drop(quiet);
    let later = local_client(&home);
    home.wait_until("no client has a quiet level", || who(&later, "a__who")["level"] == 1);
    // A server adopted by another daemon forgets the levels of the old clients.
    request_ok(&later, "logging/setLevel", json!({ "level": "emergency" }));
    home.wait_until("it is silent again", || who(&later, "a__who")["level"] == 7);
    home.daemon_with(&["--replace"]);
    later.wait_closed();
    let later = local_client(&home);
    home.wait_until("no client of the new daemon has a quiet level", || {
        who(&later, "a__who")["level"] == 1
    });
    // A restarted server gets the level again.
    request_ok(&later, "logging/setLevel", json!({ "level": "warning" }));
    signal(running(&home, "a"), Signal::KILL);
    home.wait_until("the next process gets the level", || {
        who_once_up(&home, &later, "a__who")["level"] == 3
    });
    home.finish();
}
