//! Rendering of `self_test` as a table and a summary.

use unicode_width::UnicodeWidthStr;
use xy_protocol::control::{
    CheckStatus, OrphanHealth, PathHealth, Repair, SelfTestResult, WebServerHealth,
    WebServerStatus, WorkerHealth, WorkerStatus,
};
use xy_protocol::time::Timestamp;

use super::list::GAP;
use super::{BOLD, GREEN, RED, YELLOW, ago, paint, safe_text};

/// A row of the table: the checked part, its status, and details.
struct Row {
    what: String,
    status: (&'static str, anstyle::Style),
    words: String,
}

/// Renders the table, the repairs, and the summary.
pub(crate) fn render(tested: &SelfTestResult) -> String {
    let rows = rows(tested);
    let widest = rows.iter().map(|row| row.what.width()).max().unwrap_or_default();
    let mut text = String::new();
    for row in &rows {
        let (word, style) = row.status;
        let gap = " ".repeat(widest - row.what.width());
        text += &format!("{}{gap}{GAP}{}", row.what, paint(style, format!("{word:11}")));
        if !row.words.is_empty() {
            text += &format!("{GAP}{}", row.words);
        }
        text.truncate(text.trim_end().len());
        text += "\n";
    }
    for repair in &tested.auto_repair {
        let is_proven = !matches!(repair, Repair::WorkerRestarted { proven: false, .. });
        let word = if is_proven { "repaired:" } else { "not verified:" };
        text += &format!("{} {}\n", paint(YELLOW, word), repaired(repair));
    }
    let style = if tested.success { GREEN } else { RED };
    text + &paint(style.bold(), safe_text(&tested.summary)) + "\n"
}

fn rows(tested: &SelfTestResult) -> Vec<Row> {
    let health = &tested.health;
    let supervisor = &health.supervisor;
    let mut words = format!("pid {}, up {} s", supervisor.pid, supervisor.uptime);
    if let Some(note) = &supervisor.note {
        words += &format!(", {}", safe_text(note));
    }
    let mut rows = vec![row("daemon", status_label(supervisor.status), &words)];
    rows.extend(health.worker.iter().map(|it| worker(it, tested.timestamp)));
    rows.push(web_server(&health.web_server));
    rows.push(place("state folder", &health.database));
    rows.push(place("log folder", &health.logs));
    for (name, socket) in ["control socket", "MCP socket"].iter().zip(&health.sockets) {
        rows.push(place(name, socket));
    }
    rows.push(row("orphans", status_label(health.orphans.status), &orphans(&health.orphans)));
    rows
}

fn orphans(orphans: &OrphanHealth) -> String {
    let processes = match (orphans.pids.as_slice(), &orphans.note) {
        ([], note) => note.clone(),
        (pids, _) => Some(format!("orphaned processes: {pids:?}")),
    };
    let containers = orphans.containers.join(", ");
    let containers =
        Some(containers).filter(|it| !it.is_empty()).map(|it| format!("orphaned containers: {it}"));
    let words: Vec<String> = processes.into_iter().chain(containers).collect();
    words.join("; ")
}

fn row(what: &str, status: (&'static str, anstyle::Style), words: &str) -> Row {
    Row { what: safe_text(what).into_owned(), status, words: safe_text(words).into_owned() }
}

fn status_label(verdict: CheckStatus) -> (&'static str, anstyle::Style) {
    match verdict {
        CheckStatus::Ok => ("ok", GREEN),
        CheckStatus::Error => ("error", RED),
    }
}

fn worker(worker: &WorkerHealth, now: Timestamp) -> Row {
    let status = match worker.status {
        WorkerStatus::Ok => ("ok", GREEN),
        WorkerStatus::Restarted => ("restarted", YELLOW),
        WorkerStatus::Failed => ("failed", RED),
    };
    let mut words: Vec<String> = vec![worker.state.to_string()];
    words.extend(worker.pid.map(|pid| format!("pid {pid}")));
    words.extend(worker.round_trip_ms.map(|took| format!("answered in {took} ms")));
    words.extend(worker.last_health_check.map(|at| format!("checked {}", ago(at, now))));
    words.extend(worker.note.clone());
    let name = match (worker.client, worker.era) {
        (Some(client), _) => format!("server {} (client {client})", worker.name),
        (None, Some(era)) => format!("server {} ({era} clients)", worker.name),
        (None, None) => format!("server {}", worker.name),
    };
    row(&name, status, &words.join(", "))
}

fn web_server(server: &WebServerHealth) -> Row {
    let status = match server.status {
        WebServerStatus::Ok => ("ok", GREEN),
        WebServerStatus::Error => ("error", RED),
        WebServerStatus::NotRunning => ("not running", BOLD),
    };
    let mut words: Vec<String> = server.port.iter().map(|port| format!("port {port}")).collect();
    if server.status == WebServerStatus::Ok {
        words.push(super::count(
            usize::try_from(server.active_connections).unwrap_or(usize::MAX),
            "connection",
        ));
    }
    words.extend(server.note.clone());
    row("HTTP gateway", status, &words.join(", "))
}

fn place(what: &str, place: &PathHealth) -> Row {
    let words = match &place.note {
        Some(note) => format!("{}: {note}", place.path),
        None => place.path.clone(),
    };
    row(what, status_label(place.status), &words)
}

fn repaired(repair: &Repair) -> String {
    let pid = |pid: &Option<u32>| pid.map_or_else(|| "none".to_owned(), |pid| pid.to_string());
    let words = match repair {
        Repair::WorkerRestarted { server, previous_pid, new_pid, reason, .. } => {
            let (before, now) = (pid(previous_pid), pid(new_pid));
            format!("server {server} was restarted (pid {before} -> {now}): {reason}")
        }
        Repair::FolderCreated { path, reason } => {
            format!("the folder {path} was created again: {reason}")
        }
        Repair::LockTaken { path, reason } => {
            format!("the daemon's lock {path} was taken again: {reason}")
        }
        Repair::SocketCreated { path, reason } => {
            format!("the socket {path} was created again: {reason}")
        }
        Repair::ContainersRemoved { containers, reason } => {
            format!("containers {} were removed: {reason}", containers.join(", "))
        }
        Repair::ProcessesReaped { pids, reason } => {
            format!("processes {pids:?} were ended: {reason}")
        }
    };
    safe_text(&words).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::uncoloured;
    use super::*;

    fn tested() -> SelfTestResult {
        let text = r#"{
            "success": false, "timestamp": "2026-01-01T00:00:00.000Z",
            "health": {
                "supervisor": { "status": "ok", "pid": 1, "uptime": 65, "memoryUsage": { "rss": 7 } },
                "worker": [
                    { "name": "a", "status": "ok", "state": "running", "health": "unknown", "pid": 2,
                      "uptime": 3, "restartCount": 0, "roundTripMs": 4,
                      "lastHealthCheck": "2025-12-31T23:59:55.000Z" },
                    { "name": "longer", "client": 9, "status": "restarted", "state": "running",
                      "health": "unknown", "pid": 5, "uptime": 0, "restartCount": 0,
                      "roundTripMs": 1, "note": "it did not answer" },
                    { "name": "bad", "status": "failed", "state": "failed", "health": "unknown",
                      "pid": null, "uptime": null, "restartCount": 5, "roundTripMs": null,
                      "note": "red\u001b[31m" }
                ],
                "webServer": { "status": "ok", "port": 7979, "activeConnections": 1 },
                "database": { "status": "ok", "path": "/s" },
                "logs": { "status": "error", "path": "/s/logs", "note": "Not a directory" },
                "sockets": [ { "status": "ok", "path": "/r/a" }, { "status": "ok", "path": "/r/b" } ],
                "orphans": { "status": "error", "pids": [8] }
            },
            "autoRepair": [
                { "action": "worker_restarted", "server": "longer", "client": 9, "previousPid": 4,
                  "newPid": 5, "reason": "it did not answer" },
                { "action": "worker_restarted", "server": "bad", "previousPid": 6, "newPid": null,
                  "reason": "it had ended", "proven": false },
                { "action": "processes_reaped", "pids": [7], "reason": "no server owned them" }
            ],
            "diagnostics": {
                "system": { "platform": "linux", "nodeVersion": "1", "totalMemory": 1, "freeMemory": 1 },
                "restartHistory": []
            },
            "summary": "some checks failed"
        }"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn result_is_a_table_and_a_summary() {
        insta::assert_snapshot!(uncoloured(&render(&tested())));
    }
}
