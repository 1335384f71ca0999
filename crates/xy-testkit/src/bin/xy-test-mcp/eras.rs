//! The revision without `initialize`, as far as tests need it: `server/discover`, the required
//! `_meta` of each request, and `subscriptions/listen`.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::json::{Members, quoted};

use crate::die;
use crate::modern_tasks::TASKS;
use crate::request::{BAD_PARAMS, NO_METHOD, Request, notification};
use crate::server::Server;

const MODERN: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The delay of a late answer; longer than any client waits for `server/discover`.
const LATE_DELAY: Duration = Duration::from_secs(3);

/// The size of an answer that exceeds the maximum message size of every client.
const HUGE_SIZE: usize = 50 << 20;

/// The revisions that the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
    Both,
}

impl Era {
    pub(crate) fn read(word: &str) -> Self {
        match word {
            "legacy" => Self::Legacy,
            "modern" => Self::Modern,
            "both" => Self::Both,
            _ => panic!("no era `{word}`"),
        }
    }
}

/// Answers a request that this revision treats differently. Gives back any other request.
pub(crate) fn answer(
    server: &Arc<Server>,
    request: Request,
    method: &str,
    params: &Members,
) -> Option<Request> {
    if method == "server/discover" {
        return discover(server, request);
    }
    let meta = params.members("_meta");
    if !is_modern(server, params) {
        return Some(request);
    }
    if method == "initialize" {
        let data = json!({ "supported": [MODERN], "requested": params.string("protocolVersion") });
        let error =
            json!({ "code": -32022, "message": "Unsupported protocol version", "data": data });
        request.refuse_with(&error.to_string());
    } else if let Some(code) = server.options.refusal_code {
        request.refuse(code, &format!("no `{method}`, whatever it said"));
    } else if meta.string(VERSION).as_deref() != Some(MODERN) {
        request.refuse(BAD_PARAMS, "which revision is this?");
    } else {
        match method {
            "subscriptions/listen" if !server.options.has("--no-listen") => {
                listen(server, &request, &params.members("notifications"));
            }
            "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "subscriptions/listen" => {
                request.refuse(NO_METHOD, &format!("no method `{method}`"));
            }
            _ => return Some(request),
        }
    }
    None
}

/// Returns true if a request belongs to this revision.
pub(crate) fn is_modern(server: &Server, params: &Members) -> bool {
    let has_version = || params.members("_meta").has(VERSION);
    server.options.era == Era::Modern || server.options.era == Era::Both && has_version()
}

fn discover(server: &Arc<Server>, request: Request) -> Option<Request> {
    match server.options.discover.as_deref() {
        Some("silent") => return None,
        Some("dies") => die(1),
        Some("mute") => {
            let nowhere = File::options().write(true).open("/dev/null").expect("it is everywhere");
            rustix::stdio::dup2_stdout(nowhere).expect("stdout can be replaced");
            return None;
        }
        Some("late") => {
            server.spawn_worker(request, |server, request| {
                if server.wait(&request, LATE_DELAY) {
                    request.result(&discover_result(server).to_string());
                }
            });
            return None;
        }
        Some("huge") => {
            let filler = "x".repeat(HUGE_SIZE);
            request.result(&json!({ "supportedVersions": [MODERN], "filler": filler }).to_string());
        }
        Some("odd") => {
            let odd = format!(r#"{{"jsonrpc":"2.0","id":{},"neither":"nor"}}"#, request.id);
            request.responder.answer(odd);
        }
        Some("garbage") => request.responder.answer("}{ this is no message".to_owned()),
        Some(code) => request.refuse(code.parse().expect("a code"), "not like this"),
        None if server.options.era == Era::Legacy => return Some(request),
        None => {
            request.result(&discover_result(server).to_string());
            server.freeze_if_due();
        }
    }
    None
}

fn discover_result(server: &Server) -> Value {
    let mut introduction = server.initialize_result(MODERN);
    let members = introduction.as_object_mut().expect("it is an object");
    members.remove("protocolVersion");
    let info = members.remove("serverInfo");
    let tasks = members.get_mut("capabilities").and_then(|it| it.as_object_mut()?.remove("tasks"));
    if tasks.is_some() {
        members["capabilities"]["extensions"] = json!({ TASKS: {} });
    }
    members.insert("resultType".to_owned(), json!("complete"));
    members.insert("supportedVersions".to_owned(), json!([MODERN]));
    members.insert("ttlMs".to_owned(), json!(0));
    members.insert("cacheScope".to_owned(), json!("private"));
    members.insert("_meta".to_owned(), json!({ "io.modelcontextprotocol/serverInfo": info }));
    introduction
}

/// Registers a listener and acknowledges it. The request stays open until the client cancels
/// it.
fn listen(server: &Server, request: &Request, filter: &Members) {
    let uris: Vec<String> =
        serde_json::from_str(filter.raw("resourceSubscriptions").unwrap_or("[]")).expect("uris");
    let tasks: Vec<String> =
        serde_json::from_str(filter.raw("taskIds").unwrap_or("[]")).expect("ids");
    let text = filter_text(filter);
    server.state().resource_listeners.insert(request.id.clone(), uris);
    server.state().task_listeners.insert(request.id.clone(), tasks);
    let meta = meta_of(&request.id);
    let params = format!(r#"{{"_meta":{meta},"notifications":{text}}}"#);
    request.responder.send(notification("notifications/subscriptions/acknowledged", &params));
}

fn filter_text(filter: &Members) -> String {
    let names = [
        "toolsListChanged",
        "promptsListChanged",
        "resourcesListChanged",
        "resourceSubscriptions",
        "taskIds",
    ];
    let members =
        names.iter().filter_map(|name| Some(format!("{}:{}", quoted(name), filter.raw(name)?)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn meta_of(id: &str) -> String {
    format!(r#"{{"{SUBSCRIPTION}":{id}}}"#)
}

/// Notifies the clients that listen to a task of its state.
pub(crate) fn notify_task_listeners(server: &Server, request: &Request, task: &str, state: &Value) {
    let task_listeners = server.state().task_listeners.clone();
    for (id, _) in task_listeners.iter().filter(|(_, tasks)| tasks.iter().any(|it| it == task)) {
        let mut params = state.clone();
        let id: Value = serde_json::from_str(id).expect("an id");
        params["_meta"] = json!({ SUBSCRIPTION: id });
        request.responder.send(notification("notifications/tasks", &params.to_string()));
    }
}

/// Notifies all listeners, or those of the resource `uri`. Returns true if this revision's
/// notification replaces the legacy one.
pub(crate) fn notify_listeners(
    server: &Server,
    request: &Request,
    method: &str,
    uri: Option<&str>,
) -> bool {
    let resource_listeners = server.state().resource_listeners.clone();
    for (id, uris) in &resource_listeners {
        let meta = meta_of(id);
        let params = match uri {
            Some(uri) if uris.iter().any(|it| it == uri) => {
                format!(r#"{{"_meta":{meta},"uri":{}}}"#, quoted(uri))
            }
            Some(_) => continue,
            None => format!(r#"{{"_meta":{meta}}}"#),
        };
        request.responder.send(notification(method, &params));
    }
    !resource_listeners.is_empty() || server.options.era == Era::Modern
}
