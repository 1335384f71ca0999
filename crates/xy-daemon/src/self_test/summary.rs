//! A whole test in one sentence, and whether it went well: pure.

use xy_protocol::control::{
    DoorVerdict, PlaceHealth, Repair, TestedHealth, Verdict, WorkerHealth, WorkerVerdict,
};

/// So many things are named in it; the rest is counted.
const MOST_NAMED: usize = 5;

/// Whether nothing is broken now.
pub(super) fn is_well(health: &TestedHealth) -> bool {
    troubles(health).is_empty()
}

/// What a person wants to know first.
pub(super) fn of(health: &TestedHealth, repairs: &[Repair]) -> String {
    let troubles = troubles(health);
    let repaired: Vec<String> = repairs.iter().filter_map(repaired).collect();
    match (troubles.is_empty(), repaired.is_empty()) {
        (true, true) => format!("all is well: {}", servers(&health.worker)),
        (true, false) => format!("all is well again: {}", list(&repaired)),
        (false, true) => format!("not all is well: {}", list(&troubles)),
        (false, false) => {
            format!("not all is well: {}; but {}", list(&troubles), list(&repaired))
        }
    }
}

fn servers(worker: &[WorkerHealth]) -> String {
    let answers = worker.iter().filter(|it| it.pid.is_some() || it.round_trip_ms.is_some()).count();
    match (worker.len(), answers) {
        (0, _) => "there are no servers".to_owned(),
        (1, 1) => "the only server is running".to_owned(),
        (all, answers) if all == answers => format!("all {all} servers are running"),
        (all, answers) => format!("{answers} of {all} running, {} idle by design", all - answers),
    }
}

fn troubles(health: &TestedHealth) -> Vec<String> {
    let mut all: Vec<String> = health
        .worker
        .iter()
        .filter(|it| it.status == WorkerVerdict::Failed)
        .map(|it| format!("`{}` has failed{}", it.name, because(it.note.as_deref())))
        .collect();
    if health.web_server.status == DoorVerdict::Error {
        let words = "HTTP gateway is not listening";
        let note = health.web_server.note.as_deref();
        all.push(match note.filter(|note| note.starts_with(words)) {
            Some(note) => note.to_owned(),
            None => format!("{words}{}", because(note)),
        });
    }
    let places: [(&str, &[PlaceHealth]); 3] = [
        ("the state folder cannot be used", std::slice::from_ref(&health.database)),
        ("the folder of logs cannot be used", std::slice::from_ref(&health.logs)),
        ("a socket cannot be used", &health.sockets),
    ];
    for (words, places) in places {
        let bad = places.iter().filter(|it| it.status == Verdict::Error);
        all.extend(bad.map(|it| format!("{words}{}", because(it.note.as_deref()))));
    }
    if !health.orphans.pids.is_empty() {
        all.push(format!("processes {:?} belong to nobody", health.orphans.pids));
    }
    if !health.orphans.containers.is_empty() {
        let count = health.orphans.containers.len();
        all.push(format!("{count} containers belong to nobody"));
    }
    if health.supervisor.status == Verdict::Error {
        let note = health.supervisor.note.as_deref();
        all.push(format!("the daemon cannot do its work{}", because(note)));
    }
    all
}

fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}

/// What is well again. One of which that is not proven is among the troubles.
fn repaired(repair: &Repair) -> Option<String> {
    Some(match repair {
        Repair::WorkerRestarted { proven: false, .. } => return None,
        Repair::WorkerRestarted { server, .. } => format!("`{server}` was restarted"),
        Repair::FolderCreated { path, .. } => format!("the folder {path} was made again"),
        Repair::LockTaken { .. } => "the daemon's lock was taken again".to_owned(),
        Repair::SocketCreated { path, .. } => format!("the socket {path} was made again"),
        Repair::ContainersRemoved { containers, .. } => {
            format!("{} containers of nobody were removed", containers.len())
        }
        Repair::ProcessesReaped { pids, .. } => format!("{} orphans were ended", pids.len()),
    })
}

fn list(words: &[String]) -> String {
    let named = words.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match words.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use xy_protocol::control::{
        MemoryUsage, OrphanHealth, SelfTested, SupervisorHealth, TestDiagnostics, TestedSystem,
        WebServerHealth,
    };
    use xy_protocol::server::{Health, ServerName, ServerState};
    use xy_protocol::time::Timestamp;

    use super::*;

    /// A test of nothing that found nothing.
    pub(in crate::self_test) fn well() -> SelfTested {
        let place = PlaceHealth { status: Verdict::Ok, path: "/x".into(), note: None };
        SelfTested {
            success: true,
            timestamp: Timestamp::from_unix_millis(0),
            health: TestedHealth {
                supervisor: SupervisorHealth {
                    status: Verdict::Ok,
                    pid: 1,
                    uptime: 0,
                    memory_usage: MemoryUsage { rss: None },
                    note: None,
                },
                worker: Vec::new(),
                web_server: WebServerHealth {
                    status: DoorVerdict::NotRunning,
                    port: None,
                    active_connections: 0,
                    note: None,
                },
                database: place.clone(),
                logs: place.clone(),
                sockets: vec![place],
                orphans: OrphanHealth {
                    status: Verdict::Ok,
                    pids: Vec::new(),
                    containers: Vec::new(),
                    note: None,
                },
            },
            auto_repair: Vec::new(),
            diagnostics: TestDiagnostics {
                system: TestedSystem {
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

    fn worker(name: &str, status: WorkerVerdict) -> WorkerHealth {
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
            note: (status == WorkerVerdict::Failed).then(|| "it ended".to_owned()),
        }
    }

    #[test]
    fn one_sentence_says_what_matters() {
        let mut health = well().health;
        assert_eq!(of(&health, &[]), "all is well: there are no servers");
        health.worker = vec![worker("a", WorkerVerdict::Ok)];
        assert_eq!(of(&health, &[]), "all is well: the only server is running");
        let made = Repair::FolderCreated { path: "/x".into(), reason: "r".into() };
        let told = of(&health, std::slice::from_ref(&made));
        assert_eq!(told, "all is well again: the folder /x was made again");
        assert!(is_well(&health));
        health.worker.extend((0..7).map(|it| worker(&format!("b{it}"), WorkerVerdict::Failed)));
        health.logs.status = Verdict::Error;
        assert!(!is_well(&health));
        insta::assert_snapshot!(of(&health, &[made]), @"not all is well: `b0` has failed (it ended), `b1` has failed (it ended), `b2` has failed (it ended), `b3` has failed (it ended), `b4` has failed (it ended), and 3 more; but the folder /x was made again");
    }
}
