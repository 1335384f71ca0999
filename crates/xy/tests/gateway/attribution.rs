//! Attribution of what a shared server sends unasked: to one client, or to none.

use serde_json::{Value, json};

use crate::fixtures::{capabilities, capable_client, home_of_two, local_client, wait_until_idle};

fn elicited(name: &'static str) -> impl Fn(&Value) -> Option<Result<Value, Value>> + Send {
    move |question| {
        let is_it = question["method"] == "elicitation/create";
        is_it.then(|| Ok(json!({ "action": "accept", "content": { "name": name } })))
    }
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn request_goes_to_the_only_client_with_open_calls() {
    let home = home_of_two();
    let (socket, http) = (capable_client(&home), home.mcp_http("/mcp"));
    http.initialize_with(&capabilities());
    for (client, name) in [(&*socket, "Ada"), (&*http, "Grace")] {
        client.answer_with(elicited(name));
        let answer = client.call("a__ask_elicitation", json!({}));
        assert!(text(&answer).contains(name), "{answer}");
        client.answer_with(|question| {
            let content = json!({ "type": "text", "text": question["params"]["messages"][0]["content"]["text"] });
            Some(Ok(json!({ "role": "assistant", "content": content, "model": "m", "n": 1.0 })))
        });
        let answer = client.call("a__ask_sampling", json!({ "message": "well?" }));
        assert!(text(&answer).contains("well?"), "{answer}");
    }
    wait_until_idle(&home);
    home.finish();
}

#[test]
fn client_without_the_capability_is_not_asked() {
    let home = home_of_two();
    let client = local_client(&home);
    for tool in ["a__ask_sampling", "a__ask_elicitation", "a__ask_roots"] {
        let answer = client.call(tool, json!({}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(text(&answer).contains("-32601"), "{answer}");
    }
    home.finish();
}

#[test]
fn request_with_an_unknown_method_is_passed_to_the_client() {
    let home = home_of_two();
    let client = local_client(&home);
    let line = r#"{"jsonrpc":"2.0","id":"q-1","method":"vendor/ask","params":{"n":1.50}}"#;
    // Two calls, so that one is open when the request arrives.
    let never = client.start_call("a__never", json!({}));
    client.call_text("a__say", json!({ "line": line }));
    let question = client.wait_question();
    assert_eq!(question["method"], "vendor/ask");
    client.answer(&question, Ok(json!({ "well": 1 })));
    let answered = home.wait_until("the server has the answer", || {
        let lines = crate::fixtures::received(&home, "a");
        lines.into_iter().find(|it| it["id"] == "q-1")
    });
    assert_eq!(answered["result"], json!({ "well": 1 }));
    client.cancel(&json!(never));
    home.finish();
}
