//! What belongs to a resource, a prompt, a log: subscriptions, completion, levels.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::McpClient;

use crate::stage::{
    bridged, code, heard_of, home, home_of_two, linger, local, local_of, ready, serve, told, web,
    who, who_at_last, words,
};
use crate::support::{running, running_after, signal};

const UPDATED: &str = "notifications/resources/updated";
const COUNTER: &str = "xy://a/test://counter";

#[track_caller]
fn done(client: &McpClient, method: &str, params: Value) -> Value {
    let answer = client.request(method, params);
    assert!(answer.get("result").is_some(), "{method}: {answer}");
    answer["result"].clone()
}

#[test]
fn who_unsubscribes_hears_no_more_and_the_others_still_do() {
    let home = home_of_two();
    let (one, other, plain) = (local(&home), web(&home), local_of(&home, "a"));
    assert_eq!(other.open_stream(), 200);
    done(&one, "resources/subscribe", json!({ "uri": COUNTER }));
    done(&other, "resources/subscribe", json!({ "uri": COUNTER }));
    done(&plain, "resources/subscribe", json!({ "uri": "test://counter" }));
    one.call_text("a__bump", json!({}));
    assert_eq!(one.wait_notification(UPDATED)["params"]["uri"], COUNTER);
    assert_eq!(other.wait_notification(UPDATED)["params"]["uri"], COUNTER);
    assert_eq!(plain.wait_notification(UPDATED)["params"]["uri"], "test://counter");

    done(&one, "resources/unsubscribe", json!({ "uri": COUNTER }));
    done(&plain, "resources/unsubscribe", json!({ "uri": "test://counter" }));
    one.call_text("a__bump", json!({}));
    other.wait_notification(UPDATED);
    linger();
    assert_eq!((told(&one, UPDATED), told(&plain, UPDATED), told(&other, UPDATED)), (0, 0, 0));
    assert_eq!(heard_of(&home, "a", "resources/unsubscribe").len(), 0, "one still watches");

    done(&other, "resources/unsubscribe", json!({ "uri": COUNTER }));
    assert_eq!(heard_of(&home, "a", "resources/unsubscribe").len(), 1);
    home.finish();
}

#[test]
fn a_client_that_goes_watches_nothing_any_more() {
    let home = home_of_two();
    let client = local(&home);
    done(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    drop(client);
    home.wait_until("the server is told", || {
        heard_of(&home, "a", "resources/unsubscribe").len() == 1
    });
    home.finish();
}

#[test]
fn what_is_watched_is_watched_again_after_a_restart() {
    let home = home_of_two();
    let (client, plain) = (local(&home), local_of(&home, "b"));
    done(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    done(&plain, "resources/subscribe", json!({ "uri": "test://counter" }));
    for name in ["a", "b"] {
        signal(running(&home, name), Signal::KILL);
        running_after(&home, name, 1);
    }
    home.wait_until("both are told", || {
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
fn what_is_watched_is_watched_when_another_daemon_has_taken_over() {
    let home = home();
    serve(&home, "a", &[]);
    let daemon = home.daemon();
    ready(&home, &["a"]);
    let client = bridged(&home);
    done(&client, "resources/subscribe", json!({ "uri": COUNTER }));
    let before = who(&client, "a__who");
    daemon.kill9();
    home.daemon();
    let after = who_at_last(&home, &client, "a__who");
    assert_eq!(after["pid"], before["pid"]);
    client.call_text("a__bump", json!({}));
    let updated = client.wait_notification(UPDATED);
    assert_eq!(updated["params"]["uri"], COUNTER);
    // Nobody else hears of it.
    let stranger = local(&home);
    client.call_text("a__bump", json!({}));
    client.wait_notification(UPDATED);
    assert_eq!(stranger.notifications(), [Value::Null; 0]);
    drop(client);
    home.finish();
}

#[test]
fn a_plain_uri_is_read_where_only_one_server_has_it() {
    let home = home_of_two();
    let client = local(&home);
    let read = done(&client, "resources/read", json!({ "uri": "xy://b/test://item/7" }));
    assert_eq!(read["contents"][0]["text"], "item 7");
    assert_eq!(read["contents"][0]["uri"], "test://item/7", "the inside is the server's own");
    client.list("resources/list", "resources"); // From here on all of them are known.
    let both = client.request("resources/read", json!({ "uri": "test://static" }));
    assert_eq!(code(&both), -32602);
    assert!(words(&both).contains("xy://a/test://static"), "{both}");
    assert!(words(&both).contains("xy://b/test://static"), "{both}");
    crate::support::ask(&home, "stop", json!({ "name": "b" }));
    let read = done(&client, "resources/read", json!({ "uri": "test://item/9" }));
    assert_eq!(read["contents"][0]["text"], "item 9");
    home.finish();
}

#[test]
fn prompts_and_completion_go_to_the_server_they_belong_to() {
    let home = home_of_two();
    let client = local(&home);
    let prompts = client.list("prompts/list", "prompts");
    let names: Vec<&str> = prompts.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["a__greet", "a__plain", "b__greet", "b__plain"]);
    let params = json!({ "name": "b__greet", "arguments": { "name": "Ada" } });
    let prompt = done(&client, "prompts/get", params);
    assert_eq!(prompt["messages"][0]["content"]["text"], "Greet Ada, please.");
    for reference in [
        json!({ "type": "ref/prompt", "name": "b__greet" }),
        json!({ "type": "ref/resource", "uri": "xy://b/test://item/{id}" }),
    ] {
        let argument = json!({ "name": "name", "value": "Al" });
        let params = json!({ "ref": reference, "argument": argument });
        let completed = done(&client, "completion/complete", params);
        assert_eq!(completed["completion"]["values"], json!(["Alan"]));
    }
    let heard = heard_of(&home, "b", "completion/complete");
    assert_eq!(heard[0]["params"]["ref"]["name"], "greet");
    assert_eq!(heard[1]["params"]["ref"]["uri"], "test://item/{id}");
    assert_eq!(heard_of(&home, "a", "completion/complete").len(), 0);
    home.finish();
}

#[track_caller]
fn logs(client: &McpClient, level: &str, text: &str) {
    client.call_text("a__log", json!({ "level": level, "message": text }));
}

/// The texts of the log messages that came.
fn logged(client: &McpClient) -> Vec<String> {
    let all = client.notifications();
    let messages = all.iter().filter(|it| it["method"] == "notifications/message");
    messages.map(|it| it["params"]["data"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_client_hears_its_own_messages_from_its_own_level_on() {
    let home = home_of_two();
    let (quiet, curious, silent) = (local(&home), local(&home), local(&home));
    done(&quiet, "logging/setLevel", json!({ "level": "error" }));
    done(&curious, "logging/setLevel", json!({ "level": "debug" }));
    home.wait_until("the server is told the lower one", || {
        let told = heard_of(&home, "a", "logging/setLevel");
        told.last().is_some_and(|it| it["params"]["level"] == "debug")
    });
    for client in [&quiet, &curious] {
        logs(client, "debug", "a detail");
        logs(client, "error", "a problem");
    }
    assert_eq!(logged(&quiet), ["a problem"]);
    assert_eq!(logged(&curious), ["a detail", "a problem"]);
    assert_eq!(logged(&silent), [""; 0]);
    home.finish();
}

#[test]
fn what_one_client_does_not_want_is_not_kept_from_the_others() {
    let home = home_of_two();
    let quiet = local(&home);
    done(&quiet, "logging/setLevel", json!({ "level": "emergency" }));
    let usual = local(&home);
    home.wait_until("the server is told", || who(&usual, "a__who")["level"] == 1);
    logs(&usual, "info", "good to know");
    assert_eq!(logged(&usual), ["good to know"]);
    drop(usual);
    home.wait_until("only one is left to ask", || who(&quiet, "a__who")["level"] == 7);
    drop(quiet);
    let later = local(&home);
    home.wait_until("nobody wants silence", || who(&later, "a__who")["level"] == 1);
    // A server that another daemon goes on with has heard enough of those who are gone.
    done(&later, "logging/setLevel", json!({ "level": "emergency" }));
    home.wait_until("it is silent again", || who(&later, "a__who")["level"] == 7);
    home.daemon_with(&["--replace"]);
    later.wait_closed();
    let later = local(&home);
    home.wait_until("nobody wants silence here", || who(&later, "a__who")["level"] == 1);
    // A server that begins anew is told too.
    done(&later, "logging/setLevel", json!({ "level": "warning" }));
    signal(running(&home, "a"), Signal::KILL);
    home.wait_until("the next life knows", || who_at_last(&home, &later, "a__who")["level"] == 3);
    home.finish();
}
