//! The summary of a self-test in one sentence, and its overall result. Pure.

use xy_protocol::control::{
    CheckStatus, PathHealth, Repair, SelfTestHealth, WebServerStatus, WorkerHealth, WorkerStatus,
};

/// Maximum number of items that the sentence names; the others are counted.
const MAX_NAMED: usize = 5;

/// Returns true if nothing is broken after the test.
pub(super) fn is_healthy(health: &SelfTestHealth) -> bool {
    problems(health).is_empty()
}

/// Returns the summary for users: remaining problems first, then repairs.
pub(super) fn summarize(health: &SelfTestHealth, repairs: &[Repair]) -> String {
    let problems = problems(health);
    let repaired: Vec<String> = repairs.iter().filter_map(repaired).collect();
    match (problems.is_empty(), repaired.is_empty()) {
        (true, true) => format!("all checks passed: {}", servers(&health.worker)),
        (true, false) => format!("all checks passed after repairs: {}", join_limited(&repaired)),
        (false, true) => format!("some checks failed: {}", join_limited(&problems)),
        (false, false) => {
            format!(
                "some checks failed: {}; repaired: {}",
                join_limited(&problems),
                join_limited(&repaired)
            )
        }
    }
}

fn servers(worker: &[WorkerHealth]) -> String {
    let answers = worker.iter().filter(|it| it.pid.is_some() || it.round_trip_ms.is_some()).count();
    match (worker.len(), answers) {
        (0, _) => "there are no servers".to_owned(),
        (1, 1) => "the only server is running".to_owned(),
        (all, answers) if all == answers => format!("all {all} servers are running"),
        (all, answers) => format!("{answers} of {all} running, {} idle", all - answers),
    }
}

fn problems(health: &SelfTestHealth) -> Vec<String> {
    let mut all: Vec<String> = health
        .worker
        .iter()
        .filter(|it| it.status == WorkerStatus::Failed)
        .map(|it| format!("`{}` has failed{}", it.name, in_parentheses(it.note.as_deref())))
        .collect();
    if health.web_server.status == WebServerStatus::Error {
        let words = "HTTP gateway is not listening";
        let note = health.web_server.note.as_deref();
        all.push(match note.filter(|note| note.starts_with(words)) {
            Some(note) => note.to_owned(),
            None => format!("{words}{}", in_parentheses(note)),
        });
    }
    let places: [(&str, &[PathHealth]); 3] = [
        ("the state folder cannot be used", std::slice::from_ref(&health.database)),
        ("the folder of logs cannot be used", std::slice::from_ref(&health.logs)),
        ("a socket cannot be used", &health.sockets),
    ];
    for (words, places) in places {
        let bad = places.iter().filter(|it| it.status == CheckStatus::Error);
        all.extend(bad.map(|it| format!("{words}{}", in_parentheses(it.note.as_deref()))));
    }
    if !health.orphans.pids.is_empty() {
        all.push(format!("orphaned processes: {:?}", health.orphans.pids));
    }
    if !health.orphans.containers.is_empty() {
        let count = health.orphans.containers.len();
        all.push(format!("{count} orphaned containers"));
    }
    if health.supervisor.status == CheckStatus::Error {
        let note = health.supervisor.note.as_deref();
        all.push(format!("the daemon does not work correctly{}", in_parentheses(note)));
    }
    all
}

fn in_parentheses(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}

/// Describes a repair. Returns `None` for an unproven restart, which is listed as a problem.
fn repaired(repair: &Repair) -> Option<String> {
    Some(match repair {
        Repair::WorkerRestarted { proven: false, .. } => return None,
        Repair::WorkerRestarted { server, .. } => format!("`{server}` was restarted"),
        Repair::FolderCreated { path, .. } => format!("the folder {path} was created again"),
        Repair::LockTaken { .. } => "the daemon's lock was taken again".to_owned(),
        Repair::SocketCreated { path, .. } => format!("the socket {path} was created again"),
        Repair::ContainersRemoved { containers, .. } => {
            format!("{} orphaned containers were removed", containers.len())
        }
        Repair::ProcessesReaped { pids, .. } => {
            format!("{} orphaned processes were ended", pids.len())
        }
    })
}

fn join_limited(words: &[String]) -> String {
    let named = words.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match words.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use xy_protocol::control::{
        MemoryUsage, OrphanHealth, SelfTestResult, SelfTestSystem, SupervisorHealth,
        TestDiagnostics, WebServerHealth,
    };
    use xy_protocol::server::{Health, ServerName, ServerState};
    use xy_protocol::time::Timestamp;

    use super::*;

    /// Returns the result of a test without servers and without problems.
    pub(crate) fn healthy() -> SelfTestResult {
        let place = PathHealth { status: CheckStatus::Ok, path: "/x".into(), note: None };
        SelfTestResult {
            success: true,
            timestamp: Timestamp::from_unix_millis(0),
            health: SelfTestHealth {
                supervisor: SupervisorHealth {
                    status: CheckStatus::Ok,
                    pid: 1,
                    uptime: 0,
                    memory_usage: MemoryUsage { rss: None },
                    note: None,
                },
                worker: Vec::new(),
                web_server: WebServerHealth {
                    status: WebServerStatus::NotRunning,
                    port: None,
                    active_connections: 0,
                    note: None,
                },
                database: place.clone(),
                logs: place.clone(),
                sockets: vec![place],
                orphans: OrphanHealth {
                    status: CheckStatus::Ok,
                    pids: Vec::new(),
                    containers: Vec::new(),
                    note: None,
                },
            },
            auto_repair: Vec::new(),
            diagnostics: TestDiagnostics {
                system: SelfTestSystem {
                    platform: String::new(),
                    node_version: String::new(),
                    total_memory: None,
                    free_memory: None,
                },
                restart_history: Vec::new(),
            },
            summary: String::new(),
        }
    }

    fn worker(name: &str, status: WorkerStatus) -> WorkerHealth {
        WorkerHealth {
            name: ServerName::new(name).unwrap(),
            client: None,
            era: None,
            status,
            state: ServerState::Running,
            health: Health::Unknown,
            pid: Some(1),
            uptime: None,
            restart_count: 0,
            round_trip_ms: None,
            last_health_check: None,
            note: (status == WorkerStatus::Failed).then(|| "it ended".to_owned()),
        }
    }

    #[test]
    fn summary_names_problems_and_repairs() {
        let mut health = healthy().health;
        assert_eq!(summarize(&health, &[]), "all checks passed: there are no servers");
        health.worker = vec![worker("a", WorkerStatus::Ok)];
        assert_eq!(summarize(&health, &[]), "all checks passed: the only server is running");
        let repair = Repair::FolderCreated { path: "/x".into(), reason: "r".into() };
        let summary = summarize(&health, std::slice::from_ref(&repair));
        assert_eq!(summary, "all checks passed after repairs: the folder /x was created again");
        assert!(is_healthy(&health));
        health.worker.extend((0..7).map(|it| worker(&format!("b{it}"), WorkerStatus::Failed)));
        health.logs.status = CheckStatus::Error;
        assert!(!is_healthy(&health));
        insta::assert_snapshot!(summarize(&health, &[repair]), @"some checks failed: `b0` has failed (it ended), `b1` has failed (it ended), `b2` has failed (it ended), `b3` has failed (it ended), `b4` has failed (it ended), and 3 more; repaired: the folder /x was created again");
    }
}
