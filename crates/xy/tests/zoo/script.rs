//! The steps after the lists. One rule serves all servers, so a new server needs only a tool that
//! can be called.

use serde_json::{Value, json};

use crate::drive::Record;
use crate::servers::Server;

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) label: &'static str,
    pub(crate) method: &'static str,
    /// The params; `<work>` and `<home>` are the folders of a run.
    pub(crate) params: Value,
}

/// Returns the steps for a server with these lists.
pub(crate) fn steps(server: &Server, lists: &[Record]) -> Vec<Step> {
    let step = |label, method, params| Step { label, method, params };
    let mut all = vec![
        step("good call", "tools/call", call(server, arguments(server))),
        step("bad call", "tools/call", call(server, invalid(&arguments(server)))),
        step("unknown tool", "tools/call", json!({ "name": "nothing", "arguments": {} })),
        step("unknown prompt", "prompts/get", json!({ "name": "nothing" })),
        step("unknown resource", "resources/read", json!({ "uri": "nothing://one" })),
    ];
    let prompt = first(lists, "prompts");
    if let Some(prompt) = &prompt {
        let params = json!({ "name": prompt["name"], "arguments": required(prompt) });
        all.push(step("prompt", "prompts/get", params));
    }
    if let Some(resource) = first(lists, "resources") {
        all.push(step("resource", "resources/read", json!({ "uri": resource["uri"] })));
    }
    all.push(step("completion", "completion/complete", completion(prompt.as_ref())));
    all.push(step("level", "logging/setLevel", json!({ "level": "error" })));
    all.push(step("ping", "ping", json!({})));
    if server.answers_unknown_methods() {
        all.push(step("unknown method", "nothing/such", json!({})));
    }
    all
}

fn call(server: &Server, arguments: Value) -> Value {
    let mut params = json!({ "name": server.tool });
    params["arguments"] = arguments;
    params
}

#[track_caller]
fn arguments(server: &Server) -> Value {
    serde_json::from_str(server.arguments)
        .unwrap_or_else(|cause| panic!("the arguments of `{}`: {cause}", server.name))
}

/// Returns arguments of the wrong types, or one that no tool has.
fn invalid(arguments: &Value) -> Value {
    let names: Vec<&String> = arguments.as_object().into_iter().flat_map(|it| it.keys()).collect();
    if names.is_empty() {
        return json!({ "wrong": 1 });
    }
    names.into_iter().map(|name| (name.clone(), json!([{ "wrong": 1 }]))).collect()
}

/// Returns the first entry of a list, if the server has one.
fn first(lists: &[Record], label: &str) -> Option<Value> {
    let page = lists.iter().find(|it| it.label == label)?;
    let mut result: Value = serde_json::from_str(&page.text).ok()?;
    result[label].get_mut(0).map(Value::take)
}

/// Returns a value for each argument that a prompt requires.
fn required(prompt: &Value) -> Value {
    let all = prompt["arguments"].as_array().into_iter().flatten();
    let required = all.filter(|it| it["required"] == true);
    required.filter_map(|it| Some((it["name"].as_str()?.to_owned(), json!("one")))).collect()
}

/// Returns a completion of the prompt's first argument, or of a prompt that does not exist.
fn completion(prompt: Option<&Value>) -> Value {
    let argument = prompt.and_then(|it| it["arguments"][0]["name"].as_str());
    let (name, argument) = match (prompt, argument) {
        (Some(prompt), Some(argument)) => (prompt["name"].clone(), argument),
        _ => (json!("nothing"), "one"),
    };
    let mut params = json!({ "argument": { "name": argument, "value": "o" } });
    params["ref"] = json!({ "type": "ref/prompt" });
    params["ref"]["name"] = name;
    params
}
