//! The revision without `initialize`, as far as the tests need it: what is asked first, what
//! each request has to say of itself, and whoever listens.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::json::{Members, quoted};

use crate::answer::{Asked, BAD_PARAMS, NO_METHOD, notification};
use crate::die;
use crate::errands::TASKS;
use crate::server::Server;

const MODERN: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Longer than anybody waits for an answer to the first question.
const LATE: Duration = Duration::from_secs(3);

/// Longer than anybody reads.
const HUGE: usize = 50 << 20;

/// The revisions it speaks.
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

/// Answers what this revision answers otherwise; gives back what it does not.
pub(crate) fn answer(
    server: &Arc<Server>,
    asked: Asked,
    method: &str,
    params: &Members,
) -> Option<Asked> {
    if method == "server/discover" {
        return discover(server, asked);
    }
    let meta = params.members("_meta");
    if !is_modern(server, params) {
        return Some(asked);
    }
    if method == "initialize" {
        let data = json!({ "supported": [MODERN], "requested": params.string("protocolVersion") });
        let error =
            json!({ "code": -32022, "message": "Unsupported protocol version", "data": data });
        asked.refuse_with(&error.to_string());
    } else if let Some(code) = server.plan.lies {
        asked.refuse(code, &format!("no `{method}`, whatever it said"));
    } else if meta.string(VERSION).as_deref() != Some(MODERN) {
        asked.refuse(BAD_PARAMS, "which revision is this?");
    } else {
        match method {
            "subscriptions/listen" if !server.plan.has("--no-listen") => {
                listen(server, &asked, &params.members("notifications"));
            }
            "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "subscriptions/listen" => {
                asked.refuse(NO_METHOD, &format!("no method `{method}`"));
            }
            _ => return Some(asked),
        }
    }
    None
}

/// Whether a request is of this revision.
pub(crate) fn is_modern(server: &Server, params: &Members) -> bool {
    let is_said = || params.members("_meta").has(VERSION);
    server.plan.era == Era::Modern || server.plan.era == Era::Both && is_said()
}

fn discover(server: &Arc<Server>, asked: Asked) -> Option<Asked> {
    match server.plan.discover.as_deref() {
        Some("silent") => return None,
        Some("dies") => die(1),
        Some("mute") => {
            let nowhere = File::options().write(true).open("/dev/null").expect("it is everywhere");
            rustix::stdio::dup2_stdout(nowhere).expect("stdout can be replaced");
            return None;
        }
        Some("late") => {
            server.work(asked, |server, asked| {
                if server.wait(&asked, LATE) {
                    asked.result(&introduction(server).to_string());
                }
            });
            return None;
        }
        Some("huge") => {
            let filler = "x".repeat(HUGE);
            asked.result(&json!({ "supportedVersions": [MODERN], "filler": filler }).to_string());
        }
        Some("odd") => {
            let odd = format!(r#"{{"jsonrpc":"2.0","id":{},"neither":"nor"}}"#, asked.id);
            asked.outlet.answer(odd);
        }
        Some("garbage") => asked.outlet.answer("}{ this is no message".to_owned()),
        Some(code) => asked.refuse(code.parse().expect("a code"), "not like this"),
        None if server.plan.era == Era::Legacy => return Some(asked),
        None => {
            asked.result(&introduction(server).to_string());
            server.freeze_if_due();
        }
    }
    None
}

fn introduction(server: &Server) -> Value {
    let mut introduction = server.introduction(MODERN);
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

/// Never answered: what is asked for is told, until somebody cancels it.
fn listen(server: &Server, asked: &Asked, filter: &Members) {
    let uris: Vec<String> =
        serde_json::from_str(filter.raw("resourceSubscriptions").unwrap_or("[]")).expect("uris");
    let tasks: Vec<String> =
        serde_json::from_str(filter.raw("taskIds").unwrap_or("[]")).expect("ids");
    let text = filter_text(filter);
    server.state().listening.insert(asked.id.clone(), uris);
    server.state().following.insert(asked.id.clone(), tasks);
    let meta = meta_of(&asked.id);
    let params = format!(r#"{{"_meta":{meta},"notifications":{text}}}"#);
    asked.outlet.say(notification("notifications/subscriptions/acknowledged", &params));
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

/// Tells whoever listens to a task how that is doing.
pub(crate) fn tell_of_task(server: &Server, asked: &Asked, task: &str, told: &Value) {
    let following = server.state().following.clone();
    for (id, _) in following.iter().filter(|(_, tasks)| tasks.iter().any(|it| it == task)) {
        let mut params = told.clone();
        let id: Value = serde_json::from_str(id).expect("an id");
        params["_meta"] = json!({ SUBSCRIPTION: id });
        asked.outlet.say(notification("notifications/tasks", &params.to_string()));
    }
}

/// Tells whoever listens; whether that is how it is told here.
pub(crate) fn tell(server: &Server, asked: &Asked, method: &str, uri: Option<&str>) -> bool {
    let listening = server.state().listening.clone();
    for (id, uris) in &listening {
        let meta = meta_of(id);
        let params = match uri {
            Some(uri) if uris.iter().any(|it| it == uri) => {
                format!(r#"{{"_meta":{meta},"uri":{}}}"#, quoted(uri))
            }
            Some(_) => continue,
            None => format!(r#"{{"_meta":{meta}}}"#),
        };
        asked.outlet.say(notification(method, &params));
    }
    !listening.is_empty() || server.plan.era == Era::Modern
}
