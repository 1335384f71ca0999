//! One server, as xy's own tools tell of it.

use std::rc::Rc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use xy_config::settings::Isolation;
use xy_protocol::control::{ByName, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{Health, ReasonKind, ServerEntry, ServerState, ServerStatus, Wanted};
use xy_supervisor::instance::Holder;

use super::{name_schema, object};
use crate::catalog::Kind;
use crate::router::Router;

/// How long an answer waits for a server that runs to say which tools it has.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// A server that has just begun to run: in short, with the tools it has now.
pub(super) async fn once_its_tools_are_known(
    router: &Rc<Router>,
    name: &str,
) -> Result<Value, CallError> {
    let mut news = router.news();
    let _ = timeout(TOLD_WITHIN, async {
        while !is_told(router, name) && news.changed().await.is_ok() {}
    })
    .await; // A server that is slow to list its tools runs all the same.
    let status = router.control.call(Request::Status(ByName { name: name.to_owned() })).await?;
    Ok(brief(&read(status)?, &tools_of(router, name)))
}

/// Whether the life that a server lives now has said what it offers.
fn is_told(router: &Router, name: &str) -> bool {
    router.server(name).is_some_and(|server| {
        let is_shared = server.settings.borrow().isolation == Isolation::Shared;
        let has_listed = || server.upstream(Holder::Shared).is_some_and(|it| it.known().is_some());
        !is_shared || (server.is_shown() && has_listed())
    })
}

/// The names outside of a server's tools, as far as clients are shown them.
pub(super) fn tools_of(router: &Router, name: &str) -> Vec<String> {
    let known = router.server(name).and_then(|server| server.shown());
    let shown = known.iter().flat_map(|known| known.shown(Kind::Tools));
    shown.map(|shown| shown.name.to_string()).collect()
}

/// Reads an answer of the daemon's.
pub(super) fn read<T: DeserializeOwned>(answer: Value) -> Result<T, CallError> {
    serde_json::from_value(answer).map_err(|cause| {
        CallError::new(ErrorKind::Internal, "the daemon's answer could not be read").cause(cause)
    })
}

fn brief(status: &ServerStatus, tools: &[String]) -> Value {
    let entry = &status.entry;
    let note = &entry.not_restarted;
    json!({ "name": entry.name, "status": word(entry), "tools": tools, "pid": entry.pid, "note": note })
}

/// The schema of that.
pub(super) fn brief_schema() -> Value {
    let properties = json!({
        "name": name_schema(),
        "status": status_schema(),
        "tools": tools_schema(),
        "pid": or_null("The leader of its processes"),
        "note": note_schema(),
    });
    object(properties, &["name", "status", "tools", "pid", "note"])
}

/// All that is told of a server in a list.
pub(super) fn full(status: &ServerStatus, tools: &[String]) -> Value {
    let mut words = status.command.iter();
    let command = words.next().map_or("", String::as_str);
    let args: Vec<&String> = words.collect();
    json!({
        "name": status.entry.name,
        "command": command,
        "args": args,
        "url": status.entry.url,
        "status": word(&status.entry),
        "tools": tools,
        "pid": status.entry.pid,
        "uptime_seconds": status.entry.uptime_secs,
        "note": status.entry.not_restarted,
        "warnings": warnings(&status.entry),
    })
}

/// A server that has failed for its file has no command to show why.
fn warnings(entry: &ServerEntry) -> Vec<String> {
    let is_bad = entry.reason_kind == Some(ReasonKind::BadFile);
    let reason = entry.reason.iter().filter(|_| is_bad);
    let reason =
        reason.map(|it| format!("{it}; correct it, test it with `xy check`, then `xy reload`"));
    reason.chain(entry.warnings.iter().cloned()).collect()
}

/// The schema of that.
pub(super) fn full_schema() -> Value {
    let properties = json!({
        "name": name_schema(),
        "command": { "type": "string" },
        "args": { "type": "array", "items": { "type": "string" } },
        "url": { "type": ["string", "null"], "description": "Where it is, if it lives somewhere else" },
        "status": status_schema(),
        "tools": tools_schema(),
        "pid": or_null("The leader of its processes"),
        "uptime_seconds": or_null("Since it became ready"),
        "note": note_schema(),
        "warnings": {
            "type": "array",
            "items": { "type": "string" },
            "description": "What does not work as it should, and what helps",
        },
    });
    let required = [
        "name",
        "command",
        "args",
        "url",
        "status",
        "tools",
        "pid",
        "uptime_seconds",
        "note",
        "warnings",
    ];
    object(properties, &required)
}

fn status_schema() -> Value {
    json!({ "type": "string", "enum": ["starting", "running", "crashed", "stopped"] })
}

fn tools_schema() -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": "What its tools are called here" })
}

fn note_schema() -> Value {
    json!({ "type": ["string", "null"], "description": "Who starts it again when it ends, if xy does not" })
}

fn or_null(what: &str) -> Value {
    json!({ "type": ["integer", "null"], "description": what })
}

/// What a server is doing, in the few words that matter to whoever manages it: it comes, it
/// is there, it has ended by itself, or somebody wants it to be down.
fn word(entry: &ServerEntry) -> &'static str {
    match (entry.state, entry.wanted) {
        (ServerState::Running, _) => "running",
        (ServerState::Starting, _) | (ServerState::Stopping, Wanted::Up) => "starting",
        // One that lives somewhere else has not died for being out of reach.
        (ServerState::Restarting, _) if entry.health == Health::Unreachable => "starting",
        (ServerState::Restarting | ServerState::Failed, _) => "crashed",
        // It lived and nobody stopped it: its policy leaves it as it is.
        (ServerState::Stopped, Wanted::Up) if entry.last_exit.is_some() => "crashed",
        (ServerState::Stopped | ServerState::Stopping | ServerState::Asleep, _) => "stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: &str, wanted: &str, has_lived: bool) -> ServerEntry {
        let mut entry = json!({
            "name": "a", "state": state, "wanted": wanted, "port": null, "restart_count": 0,
            "health": "unknown", "transport": "stdio", "restarts_total": 0,
        });
        if has_lived {
            entry["last_exit"] =
                json!({ "code": 0, "expected": false, "at": "2026-01-01T00:00:00.000Z" });
        }
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn a_server_is_there_comes_has_crashed_or_is_meant_to_be_down() {
        for (state, wanted, has_lived, expected) in [
            ("running", "up", false, "running"),
            ("starting", "up", false, "starting"),
            ("stopping", "up", false, "starting"),
            ("stopping", "down", false, "stopped"),
            ("restarting", "up", true, "crashed"),
            ("failed", "up", true, "crashed"),
            ("failed", "up", false, "crashed"),
            ("stopped", "up", true, "crashed"),
            ("stopped", "up", false, "stopped"),
            ("stopped", "down", true, "stopped"),
        ] {
            assert_eq!(word(&entry(state, wanted, has_lived)), expected, "{state} {wanted}");
        }
        let silent =
            ServerEntry { health: Health::Unreachable, ..entry("restarting", "up", false) };
        assert_eq!(word(&silent), "starting");
    }
}
