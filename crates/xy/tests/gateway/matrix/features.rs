//! The features of the matrix, independent of eras.

use serde_json::{Value, json};

use super::Era;
use super::clients::{Client, Endpoint, Response};

/// A test of one feature.
pub(super) type Feature = fn(&dyn Client);

/// All features. Cancellation comes last: for a minute a shared server may still refer to a
/// cancelled call, so that its requests are ambiguous.
pub(super) const FEATURES: &[(&str, Feature)] = &[
    ("tool", tool),
    ("prompt", prompt),
    ("resource", resource),
    ("completion", completion),
    ("progress", progress),
    ("logging", logging),
    ("elicitation", elicitation),
    ("sampling", sampling),
    ("roots", roots),
    ("list_changed", list_changed),
    ("resource updates", resource_updates),
    ("cancellation", cancellation),
];

/// The `_meta` key under which a modern client learns the server.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

fn tool(client: &dyn Client) {
    let names = tools(client);
    let name = client.endpoint().name("test_simple_text");
    assert!(names.contains(&name), "it is not listed: {names:?}");
    let response = client.call("test_simple_text", json!({}));
    assert_eq!(response.text(), "This is a simple text response for testing.");
    if client.era() == Era::Modern {
        let who = &response.answer["result"]["_meta"][SERVER_INFO];
        assert_eq!(who["name"], "xy-test-fixture", "{}", response.answer);
    }
    let failed = client.call("test_error_handling", json!({})).answer;
    assert_eq!(failed["result"]["isError"], true, "{failed}");
}

fn prompt(client: &dyn Client) {
    let arguments = json!({ "arg1": "one", "arg2": "two" });
    let params = client.named("test_prompt_with_arguments", arguments);
    let answer = client.ask("prompts/get", params).answer;
    let text = &answer["result"]["messages"][0]["content"]["text"];
    assert_eq!(*text, "Prompt with arguments: arg1='one', arg2='two'", "{answer}");
}

fn resource(client: &dyn Client) {
    let uri = uri(client, "test://static-text");
    let answer = client.ask("resources/read", json!({ "uri": uri })).answer;
    let text = &answer["result"]["contents"][0]["text"];
    assert_eq!(*text, "This is the content of the static text resource.", "{answer}");
    if client.era() == Era::Modern {
        let result = &answer["result"];
        assert!(result["ttlMs"].is_u64() && result["cacheScope"].is_string(), "{answer}");
    }
    if client.endpoint() != Endpoint::All {
        let answer = client.ask("resources/read", json!({ "uri": "test://none" })).answer;
        let code = answer["error"]["code"].as_i64();
        assert!(code == Some(-32602) || client.era() == Era::Legacy, "{answer}");
        assert!(matches!(code, Some(-32602 | -32002)), "{answer}");
    }
}

fn completion(client: &dyn Client) {
    let params = json!({
        "ref": { "type": "ref/prompt", "name": client.endpoint().name("test_prompt_with_arguments") },
        "argument": { "name": "arg1", "value": "par" },
    });
    let answer = client.ask("completion/complete", params).answer;
    let values = &answer["result"]["completion"]["values"];
    assert_eq!(*values, json!(["paris", "park", "party"]), "{answer}");
}

fn progress(client: &dyn Client) {
    let mut params = client.named("test_tool_with_progress", json!({}));
    params["_meta"] = json!({ "progressToken": "m\u{ed}ne/1" });
    let response = client.ask("tools/call", params);
    response.text();
    let notifications = response.of("notifications/progress");
    let steps: Vec<(&str, f64)> = notifications
        .iter()
        .map(|it| (it["progressToken"].as_str().unwrap(), it["progress"].as_f64().unwrap()))
        .collect();
    let mine = "m\u{ed}ne/1";
    assert_eq!(steps, [(mine, 0.0), (mine, 50.0), (mine, 100.0)], "{response:?}");
    let silent = client.call("test_tool_with_progress", json!({}));
    assert!(
        silent.of("notifications/progress").is_empty(),
        "no progress was requested: {silent:?}"
    );
}

fn logging(client: &dyn Client) {
    let levels = |response: &Response| -> Vec<String> {
        let notifications = response.of("notifications/message");
        notifications.iter().map(|it| it["level"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let response = client.call_logging("every_level", Some("error"));
    assert_eq!(levels(&response), ["error", "critical", "emergency"], "{response:?}");
    let response = client.call_logging("every_level", Some("debug"));
    assert_eq!(levels(&response).len(), 7, "{response:?}");
    if client.era() == Era::Modern {
        let silent = client.call_logging("every_level", None);
        assert_eq!(levels(&silent), [""; 0], "no log level was requested");
    }
    let response = client.call_logging("every_level", Some("critical"));
    assert_eq!(levels(&response), ["critical", "emergency"], "{response:?}");
}

fn elicitation(client: &dyn Client) {
    let message = "Who are \u{201e}you\u{201c}?";
    let params = client.named("test_elicitation", json!({ "message": message }));
    let content = json!({ "username": "Ada", "email": "a@example.com" });
    let reply = json!({ "action": "accept", "content": content });
    let (request, response) = client.ask_and_reply("tools/call", params.clone(), &reply);
    assert_eq!(request["method"], "elicitation/create", "{request}");
    assert_eq!(request["params"]["message"], message, "{request}");
    let schema = &request["params"]["requestedSchema"];
    assert_eq!(schema["required"], json!(["username", "email"]), "{request}");
    let (action, got) = outcome(&response);
    assert_eq!((action.as_str(), got), ("accept", content));
    let (_, response) = client.ask_and_reply("tools/call", params, &json!({ "action": "decline" }));
    assert_eq!(outcome(&response).0, "decline");
}

/// Returns the action and content that the server was answered with.
#[track_caller]
fn outcome(response: &Response) -> (String, Value) {
    let text = response.text().strip_prefix("User response: action=");
    let parts = text.and_then(|it| it.split_once(", content="));
    let (action, content) = parts.unwrap_or_else(|| panic!("{response:?}"));
    (action.to_owned(), serde_json::from_str(content).unwrap())
}

fn sampling(client: &dyn Client) {
    let prompt = "What is the capital of \u{d6}sterreich?";
    let params = client.named("test_sampling", json!({ "prompt": prompt }));
    let content = json!({ "type": "text", "text": "Vienna" });
    let reply = json!({
        "role": "assistant", "content": content, "model": "m", "stopReason": "endTurn",
    });
    let (request, response) = client.ask_and_reply("tools/call", params, &reply);
    assert_eq!(request["method"], "sampling/createMessage", "{request}");
    assert_eq!(request["params"]["messages"][0]["content"]["text"], prompt, "{request}");
    assert_eq!(response.text(), "LLM response: Vienna");
}

fn roots(client: &dyn Client) {
    let params = client.named("ask_roots", json!({}));
    let reply = json!({ "roots": [{ "uri": "file:///home/ada", "name": "Ada's" }] });
    let (request, response) = client.ask_and_reply("tools/call", params, &reply);
    assert_eq!(request["method"], "roots/list", "{request}");
    assert_eq!(serde_json::from_str::<Value>(response.text()).unwrap(), reply);
}

fn list_changed(client: &dyn Client) {
    let new = client.endpoint().name("test_dynamic");
    client.home().wait_until("all tools are known", || {
        tools(client).contains(&client.endpoint().name("test_simple_text"))
    });
    assert!(!tools(client).contains(&new));
    let mut listening = client.listen(None);
    assert_eq!(client.call("more_tools", json!({})).text(), "the list is another");
    listening.wait_notification("notifications/tools/list_changed");
    assert!(tools(client).contains(&new), "the change was announced before it was visible");
    listening.end();
}

fn resource_updates(client: &dyn Client) {
    let inside = "test://watched-resource";
    let uri = uri(client, inside);
    let touch = || client.call("touch", json!({ "uri": inside })).text().to_owned();
    assert_eq!(touch(), "nobody watches");
    let mut listening = client.listen(Some(&uri));
    for _ in 0..2 {
        assert_eq!(touch(), "touched");
        let notification = listening.wait_notification("notifications/resources/updated");
        assert_eq!(notification["uri"], uri, "{notification}");
    }
    listening.end();
    client.home().wait_until("the subscription has ended", || touch() == "nobody watches");
}

fn cancellation(client: &dyn Client) {
    client.cancel_once_started("wait_for_cancel", "notifications/fixture/waiting");
    client.call("test_simple_text", json!({})).text();
}

/// Returns the names of all tools.
#[track_caller]
fn tools(client: &dyn Client) -> Vec<String> {
    names(client, "tools/list", "tools", "name")
}

/// Returns the public URI of a resource.
#[track_caller]
fn uri(client: &dyn Client, inside: &str) -> String {
    client.home().wait_until("the resource is listed", || {
        let all = names(client, "resources/list", "resources", "uri");
        all.into_iter().find(|it| it.ends_with(inside))
    })
}

/// Returns one member of each list entry, over all pages.
#[track_caller]
fn names(client: &dyn Client, method: &str, list: &str, member: &str) -> Vec<String> {
    let (mut all, mut params) = (Vec::new(), json!({}));
    loop {
        let mut answer = client.ask(method, params).answer;
        let entries = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
        all.extend(entries.iter().map(|it| it[member].as_str().unwrap_or_default().to_owned()));
        match answer["result"]["nextCursor"].take() {
            Value::Null => return all,
            cursor => params = json!({ "cursor": cursor }),
        }
    }
}
