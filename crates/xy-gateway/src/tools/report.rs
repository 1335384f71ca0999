//! Reports on one server for xy's own tools.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use xy_config::settings::Isolation;
use xy_mcp::kind::Kind;
use xy_protocol::control::{ByName, Request};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{Health, ReasonKind, ServerEntry, ServerState, ServerStatus, Wanted};
use xy_supervisor::instance::Holder;

use super::Servers;
use super::{name_schema, object_schema};

/// How long to wait for a running server to list its tools.
const TOOLS_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports on a server that has just started, as soon as its tools are known.
pub(super) async fn report_with_tools(
    servers: &dyn Servers,
    name: &str,
) -> Result<Value, CallError> {
    let mut changes = servers.changes();
    let _ = timeout(TOOLS_TIMEOUT, async {
        while !has_listed_tools(servers, name) && changes.changed().await.is_ok() {}
    })
    .await; // A server that is slow to list its tools runs all the same.
    let status = servers.control().call(Request::Status(ByName { name: name.to_owned() })).await?;
    Ok(summary(&read(status)?, &tools_of(servers, name)))
}

/// Returns true if the current instance of a server has listed its tools.
fn has_listed_tools(servers: &dyn Servers, name: &str) -> bool {
    servers.server(name).is_some_and(|server| {
        let is_shared = server.settings.borrow().isolation == Isolation::Shared;
        let has_listed = || server.upstream(Holder::Shared).is_some_and(|it| it.known().is_some());
        !is_shared || (server.is_shown() && has_listed())
    })
}

/// Returns the exposed names of a server's tools.
pub(super) fn tools_of(servers: &dyn Servers, name: &str) -> Vec<String> {
    let known = servers.server(name).and_then(|server| server.shown());
    let shown = known.iter().flat_map(|known| known.exposed(Kind::Tools));
    shown.map(|shown| shown.name.to_string()).collect()
}

/// Parses an answer of the daemon.
pub(super) fn read<T: DeserializeOwned>(answer: Value) -> Result<T, CallError> {
    serde_json::from_value(answer).map_err(|cause| {
        CallError::new(ErrorKind::Internal, "could not parse the response of the daemon")
            .cause(cause)
    })
}

fn summary(status: &ServerStatus, tools: &[String]) -> Value {
    let entry = &status.entry;
    let note = &entry.not_restarted;
    json!({ "name": entry.name, "status": status_word(entry), "tools": tools, "pid": entry.pid, "note": note })
}

/// Returns the schema of a summary.
pub(super) fn summary_schema() -> Value {
    let properties = json!({
        "name": name_schema(),
        "status": status_schema(),
        "tools": tools_schema(),
        "pid": or_null("Process id of the server"),
        "note": note_schema(),
    });
    object_schema(properties, &["name", "status", "tools", "pid", "note"])
}

/// Returns the details of a server for a list.
pub(super) fn details(status: &ServerStatus, tools: &[String]) -> Value {
    let mut words = status.command.iter();
    let command = words.next().map_or("", String::as_str);
    let args: Vec<&String> = words.collect();
    json!({
        "name": status.entry.name,
        "command": command,
        "args": args,
        "url": status.entry.url,
        "status": status_word(&status.entry),
        "tools": tools,
        "pid": status.entry.pid,
        "uptime_seconds": status.entry.uptime_secs,
        "note": status.entry.not_restarted,
        "warnings": warnings(&status.entry),
    })
}

/// Returns the warnings about a server. A server with a malformed file has no command that would
/// show the problem.
fn warnings(entry: &ServerEntry) -> Vec<String> {
    let is_bad = entry.reason_kind == Some(ReasonKind::BadFile);
    let reason = entry.reason.iter().filter(|_| is_bad);
    let reason =
        reason.map(|it| format!("{it}; correct it, test it with `xy check`, then `xy reload`"));
    reason.chain(entry.warnings.iter().cloned()).collect()
}

/// Returns the schema of the details.
pub(super) fn details_schema() -> Value {
    let properties = json!({
        "name": name_schema(),
        "command": { "type": "string" },
        "args": { "type": "array", "items": { "type": "string" } },
        "url": { "type": ["string", "null"], "description": "URL of a remote server; null for a local one" },
        "status": status_schema(),
        "tools": tools_schema(),
        "pid": or_null("Process id of the server"),
        "uptime_seconds": or_null("Seconds since the server became ready"),
        "note": note_schema(),
        "warnings": {
            "type": "array",
            "items": { "type": "string" },
            "description": "Warnings, each with a remedy",
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
    object_schema(properties, &required)
}

fn status_schema() -> Value {
    json!({ "type": "string", "enum": ["starting", "running", "crashed", "stopped"] })
}

fn tools_schema() -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": "Exposed names of the server's tools" })
}

fn note_schema() -> Value {
    json!({ "type": ["string", "null"], "description": "Reason why xy does not restart the server when it exits, or null" })
}

fn or_null(what: &str) -> Value {
    json!({ "type": ["integer", "null"], "description": what })
}

/// Returns the state of a server in the words of xy's own tools.
fn status_word(entry: &ServerEntry) -> &'static str {
    match (entry.state, entry.wanted) {
        (ServerState::Running, _) => "running",
        (ServerState::Starting, _) | (ServerState::Stopping, Wanted::Up) => "starting",
        // An unreachable remote server has not crashed.
        (ServerState::Restarting, _) if entry.health == Health::Unreachable => "starting",
        (ServerState::Restarting | ServerState::Failed, _) => "crashed",
        // The process ended by itself, and the policy does not restart it.
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
    fn status_word_follows_from_state_and_wanted_state() {
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
            assert_eq!(status_word(&entry(state, wanted, has_lived)), expected, "{state} {wanted}");
        }
        let silent =
            ServerEntry { health: Health::Unreachable, ..entry("restarting", "up", false) };
        assert_eq!(status_word(&silent), "starting");
    }
}
