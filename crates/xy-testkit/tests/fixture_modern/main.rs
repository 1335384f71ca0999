//! Tests of the fixture in the modern era, over stdio and HTTP, alone and beside the legacy era.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod client;
mod eras;
mod http;
mod peer;

use serde_json::{Value, json};

use crate::peer::{Fixture, code, listen, modern, stdio, text, tool};

const WATCHED: &str = "test://watched-resource";

/// Exercises all features over the transport of `ask`.
fn exercise(ask: &dyn Fn(&str, &Value) -> Value) {
    let discovered = ask("server/discover", &modern(json!({})))["result"].take();
    assert_eq!(discovered["supportedVersions"], json!(["2026-07-28"]));
    let me = &discovered["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(
        (&me["name"], &discovered["resultType"]),
        (&json!("xy-test-fixture"), &json!("complete"))
    );
    let listed = ask("tools/list", &modern(json!({})))["result"].take();
    assert_eq!((&listed["ttlMs"], &listed["cacheScope"]), (&json!(60000), &json!("public")));
    assert!(listed["tools"].as_array().unwrap().len() > 40);
    let odd = ask("tools/call", &tool("odd_result", json!({})))["result"].take();
    assert_eq!(
        (&odd["resultType"], &odd["x-last"]),
        (&json!("complete"), &json!([true, false, null]))
    );
    assert!(odd["_meta"]["vendor.example/answer"].is_object(), "its own `_meta` stays");
    let gone = ask("resources/read", &modern(json!({ "uri": "test://none" })));
    assert_eq!((code(&gone), code(&ask("ping", &modern(json!({}))))), (-32602, -32601));
    assert_eq!(code(&ask("tools/list", &json!({}))), -32602, "without `_meta`");
    elicitation_needs_a_second_call(ask);
    tasks_advance_with_each_poll(ask);
}

fn elicitation_needs_a_second_call(ask: &dyn Fn(&str, &Value) -> Value) {
    let mut params = tool("ask_roots", json!({}));
    let asked = ask("tools/call", &params)["result"].take();
    assert_eq!(asked["resultType"], "input_required");
    let (key, question) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["method"], "roots/list");
    params["inputResponses"] = json!({ key: { "roots": [] } });
    let again = ask("tools/call", &params)["result"].take();
    assert_eq!(again["resultType"], "input_required", "the state is missing");
    params["requestState"] = asked["requestState"].clone();
    assert_eq!(text(&ask("tools/call", &params)), r#"{"roots":[]}"#);
    params["name"] = json!("ask_oddly");
    assert_eq!(code(&ask("tools/call", &params)), -32602, "a state of another tool");
    params["requestState"] = json!("made up.0000000000000000");
    assert_eq!(code(&ask("tools/call", &params)), -32602);
    params["requestState"].take();
    params["inputResponses"] = json!([]);
    assert_eq!(code(&ask("tools/call", &params)), -32602);
    let mut params = tool("ask_url", json!({}));
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({ "elicitation": {} });
    let needed = ask("tools/call", &params)["error"].take();
    let capabilities = json!({ "requiredCapabilities": { "elicitation": { "url": {} } } });
    assert_eq!((&needed["code"], &needed["data"]), (&json!(-32021), &capabilities));
}

fn tasks_advance_with_each_poll(ask: &dyn Fn(&str, &Value) -> Value) {
    let begin = |name: &str, arguments: Value| {
        let begun = ask("tools/call", &tool(name, arguments))["result"].take();
        assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")));
        modern(json!({ "taskId": begun["taskId"] }))
    };
    let look = |task: &Value| ask("tasks/get", task)["result"].take();
    let slow = begin("slow_compute", json!({ "seconds": 2 }));
    assert_eq!(
        [look(&slow)["status"].take(), look(&slow)["status"].take()],
        ["working", "completed"]
    );
    let two = begin("multi_input", json!({}));
    assert_eq!(look(&two)["inputRequests"].as_object().unwrap().len(), 2);
    let mut update = two.clone();
    update["inputResponses"] = json!({ "first": { "action": "decline" }, "unknown": {} });
    assert_eq!(ask("tasks/update", &update)["result"]["resultType"], "complete");
    assert_eq!(look(&two)["status"], "input_required");
    assert_eq!(ask("tasks/cancel", &two)["result"]["resultType"], "complete");
    assert_eq!(look(&two)["status"], "cancelled");
    let failing = begin("protocol_error_job", json!({}));
    look(&failing);
    assert_eq!(look(&failing)["error"]["code"], -32603);
    let unknown = modern(json!({ "taskId": "none" }));
    assert_eq!(code(&ask("tasks/get", &unknown)), -32602);
    let mut undeclared = slow;
    undeclared["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    assert_eq!(code(&ask("tasks/get", &undeclared)), -32021);
}

#[test]
fn stdio_and_http_behave_alike() {
    let client = stdio("modern");
    exercise(&|method, params| client.request(method, params.clone()));
    assert!(client.close().success());
    for era in ["modern", "both"] {
        let server = Fixture::start(era);
        exercise(&|method, params| server.ask(method, params));
    }
}

#[test]
fn stdio_subscription_has_id_and_ends_on_cancel() {
    let client = stdio("modern");
    let filter = json!({ "resourceSubscriptions": [WATCHED], "resourcesListChanged": true });
    let id = client.start_request("subscriptions/listen", listen(filter));
    let told = client.wait_notification("notifications/subscriptions/acknowledged");
    assert_eq!(told["params"]["notifications"], json!({ "resourceSubscriptions": [WATCHED] }));
    let other =
        client.start_request("subscriptions/listen", listen(json!({ "toolsListChanged": true })));
    client.wait_notification("notifications/subscriptions/acknowledged");
    let touch = || {
        let answer = client.request("tools/call", tool("touch", json!({ "uri": WATCHED })));
        text(&answer).to_owned()
    };
    assert_eq!(touch(), "touched");
    let told = client.wait_notification("notifications/resources/updated");
    assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
    client.cancel(&json!(id));
    assert_eq!(touch(), "nobody watches");
    client.request("tools/call", tool("more_tools", json!({})));
    let told = client.wait_notification("notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], other);
    client.request("tools/call", tool("hang_up", json!({})));
    assert_eq!(client.wait_answer(other)["result"]["resultType"], "complete");
    assert!(client.notifications().is_empty());
}

#[test]
fn cancelled_call_is_silent_and_logging_is_opt_in() {
    let client = stdio("modern");
    let id = client.start_request("tools/call", tool("wait_for_cancel", json!({})));
    client.wait_notification("notifications/fixture/waiting");
    client.notify("notifications/cancelled", json!({ "requestId": id, "reason": "enough" }));
    let last = client.request("tools/call", tool("last_cancelled", json!({})));
    assert_eq!(text(&last), r#"{"reason":"enough","x-more":null}"#);
    let mut loud = tool("every_level", json!({}));
    client.request("tools/call", loud.clone());
    assert!(client.notifications().is_empty());
    loud["_meta"]["io.modelcontextprotocol/logLevel"] = json!("critical");
    client.request("tools/call", loud.clone());
    let levels = client.notifications();
    let levels: Vec<_> = levels.iter().map(|it| &it["params"]["level"]).collect();
    assert_eq!(levels, ["critical", "emergency"]);
    loud["_meta"]["io.modelcontextprotocol/logLevel"] = json!("deafening");
    assert_eq!(code(&client.request("tools/call", loud)), -32602);
}
