//! `self_test`: what was looked at, what was repaired, and how it is now.
//!
//! The names of the fields are those that clients of such a tool already know, so they are
//! written as those expect them: `webServer`, `restartCount`. What is one worker there is one
//! entry for each server here, its web server is the HTTP door, its database the state folder.

use serde::{Deserialize, Serialize};

use crate::server::{Era, Health, ServerName, ServerState};
use crate::time::Timestamp;

/// How to test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelfTest {
    /// Whether what is broken is also repaired.
    #[serde(skip_serializing_if = "Clone::clone", default = "super::yes")]
    pub repair: bool,
}

impl Default for SelfTest {
    fn default() -> Self {
        Self { repair: true }
    }
}

/// The answer to `self_test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfTested {
    /// Whether all is well now, also if it was not before.
    pub success: bool,
    /// When the test began.
    pub timestamp: Timestamp,
    /// What was looked at.
    pub health: TestedHealth,
    /// What was repaired, and then found well; and servers that were started again without that
    /// being proven.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub auto_repair: Vec<Repair>,
    /// What helps to understand it.
    pub diagnostics: TestDiagnostics,
    /// All of it in one sentence.
    pub summary: String,
}

/// Everything that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestedHealth {
    /// The daemon.
    pub supervisor: SupervisorHealth,
    /// Every server; one with several instances has an entry for each.
    pub worker: Vec<WorkerHealth>,
    /// Where clients come in over HTTP.
    pub web_server: WebServerHealth,
    /// The state folder.
    pub database: PlaceHealth,
    /// The folder of logs.
    pub logs: PlaceHealth,
    /// The sockets that the daemon listens at.
    pub sockets: Vec<PlaceHealth>,
    /// Processes of earlier lives that no server owns.
    pub orphans: OrphanHealth,
}

/// Whether something is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is.
    Ok,
    /// It is not.
    Error,
}

/// The daemon, which answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorHealth {
    /// Whether it can do its work.
    pub status: Verdict,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime: u64,
    /// What it uses.
    pub memory_usage: MemoryUsage,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// Bytes of it that are in memory; null where the system does not tell.
    pub rss: Option<u64>,
}

/// Whether a server is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerVerdict {
    /// It answers, or is not meant to.
    Ok,
    /// It did not, was started again, and answers now.
    Restarted,
    /// It does not.
    Failed,
}

/// One instance of a server, or a server that has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerHealth {
    /// Its name.
    pub name: ServerName,
    /// The client that this instance is for, unless all share it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<u64>,
    /// The era of this instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// How it is.
    pub status: WorkerVerdict,
    /// What it is doing.
    pub state: ServerState,
    /// What its probes say.
    pub health: Health,
    /// The leader of its processes, while there is one.
    pub pid: Option<u32>,
    /// Seconds since it became ready.
    pub uptime: Option<u64>,
    /// Restarts since an operator last started it.
    pub restart_count: u32,
    /// How long it took to answer a question of its protocol; null if it was not asked, or did
    /// not answer.
    pub round_trip_ms: Option<u64>,
    /// When a probe last told something about its health; null before the first.
    #[serde(default)]
    pub last_health_check: Option<Timestamp>,
    /// Why it is as it is, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Whether clients can come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoorVerdict {
    /// They can.
    Ok,
    /// They cannot.
    Error,
    /// They are not meant to.
    NotRunning,
}

/// Where clients come in over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebServerHealth {
    /// Whether it answered.
    pub status: DoorVerdict,
    /// Its port, while there is one.
    pub port: Option<u16>,
    /// Connections of clients, without that of the test.
    pub active_connections: u64,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// A folder or a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceHealth {
    /// Whether it can be used.
    pub status: Verdict,
    /// Where it is.
    pub path: String,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Processes and containers that no server owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanHealth {
    /// Whether there are none.
    pub status: Verdict,
    /// Those that are still there.
    pub pids: Vec<u32>,
    /// The ids of containers that are still there.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub containers: Vec<String>,
    /// Why it is not known, if so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Something that was broken, and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Repair {
    /// A server was started again.
    WorkerRestarted {
        /// Which.
        server: ServerName,
        /// The client that its instance is for, unless all share it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        client: Option<u64>,
        /// Its process before, if there was one.
        previous_pid: Option<u32>,
        /// Its process now.
        new_pid: Option<u32>,
        /// What was wrong.
        reason: String,
        /// Whether it answered after that. If not, it does not, or has yet to come up.
        #[serde(skip_serializing_if = "Clone::clone", default = "super::yes")]
        proven: bool,
    },
    /// A folder was made again.
    FolderCreated {
        /// Which.
        path: String,
        /// What was wrong.
        reason: String,
    },
    /// The daemon holds its lock again, without which a second one could start.
    LockTaken {
        /// Which file.
        path: String,
        /// What was wrong.
        reason: String,
    },
    /// The daemon listens at a socket again.
    SocketCreated {
        /// Where.
        path: String,
        /// What was wrong.
        reason: String,
    },
    /// Containers that no server owned were removed.
    ContainersRemoved {
        /// Their ids.
        containers: Vec<String>,
        /// What was wrong.
        reason: String,
    },
    /// Processes that no server owned were ended.
    ProcessesReaped {
        /// Which.
        pids: Vec<u32>,
        /// What was wrong.
        reason: String,
    },
}

/// What helps to understand a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestDiagnostics {
    /// The machine.
    pub system: TestedSystem,
    /// The latest restarts of all servers, oldest first.
    pub restart_history: Vec<RestartRecord>,
}

/// The machine, and what runs on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestedSystem {
    /// `linux` or `darwin`.
    pub platform: String,
    /// The version of xy: there is no Node here.
    pub node_version: String,
    /// Bytes of memory; null where the system does not tell.
    pub total_memory: Option<u64>,
    /// Bytes of it that could be used.
    pub free_memory: Option<u64>,
}

/// One restart of a server, or the end of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// When.
    pub timestamp: Timestamp,
    /// Why.
    pub reason: String,
    /// Which server.
    pub server: ServerName,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ServerName {
        ServerName::new(name).unwrap()
    }

    fn tested() -> SelfTested {
        let at = Timestamp::from_unix_millis(0);
        let worker = WorkerHealth {
            name: name("a"),
            client: None,
            era: None,
            status: WorkerVerdict::Restarted,
            state: ServerState::Running,
            health: Health::Unknown,
            pid: Some(8),
            uptime: Some(0),
            restart_count: 0,
            round_trip_ms: Some(1),
            last_health_check: Some(Timestamp::from_unix_millis(1)),
            note: None,
        };
        let folder = PlaceHealth { status: Verdict::Ok, path: "/s".into(), note: None };
        let reason = "it had ended".to_owned();
        SelfTested {
            success: true,
            timestamp: at,
            health: TestedHealth {
                supervisor: SupervisorHealth {
                    status: Verdict::Ok,
                    pid: 1,
                    uptime: 2,
                    memory_usage: MemoryUsage { rss: Some(3) },
                    note: None,
                },
                worker: vec![worker],
                web_server: WebServerHealth {
                    status: DoorVerdict::NotRunning,
                    port: None,
                    active_connections: 0,
                    note: None,
                },
                database: folder.clone(),
                logs: folder.clone(),
                sockets: vec![folder],
                orphans: OrphanHealth {
                    status: Verdict::Ok,
                    pids: Vec::new(),
                    containers: Vec::new(),
                    note: None,
                },
            },
            auto_repair: vec![
                Repair::WorkerRestarted {
                    server: name("a"),
                    client: None,
                    previous_pid: None,
                    new_pid: Some(8),
                    reason: reason.clone(),
                    proven: true,
                },
                Repair::WorkerRestarted {
                    server: name("b"),
                    client: None,
                    previous_pid: Some(7),
                    new_pid: None,
                    reason: reason.clone(),
                    proven: false,
                },
                Repair::FolderCreated { path: "/s".into(), reason: reason.clone() },
                Repair::LockTaken { path: "/s".into(), reason: reason.clone() },
                Repair::SocketCreated { path: "/s".into(), reason: reason.clone() },
                Repair::ProcessesReaped { pids: vec![9], reason: reason.clone() },
            ],
            diagnostics: TestDiagnostics {
                system: TestedSystem {
                    platform: "linux".into(),
                    node_version: "0.1.0".into(),
                    total_memory: Some(4),
                    free_memory: None,
                },
                restart_history: vec![RestartRecord { timestamp: at, reason, server: name("a") }],
            },
            summary: "all is well".into(),
        }
    }

    #[test]
    fn every_field_has_the_name_that_clients_know() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&tested()).unwrap());
    }

    #[test]
    fn an_answer_survives_the_wire_and_tells_of_no_repair_where_there_was_none() {
        let mut tested = tested();
        let read = |it: &SelfTested| {
            serde_json::from_str::<SelfTested>(&serde_json::to_string(it).unwrap()).unwrap()
        };
        assert_eq!(read(&tested), tested);
        tested.auto_repair.clear();
        assert_eq!(read(&tested), tested);
        assert!(!serde_json::to_string(&tested).unwrap().contains("autoRepair"));
    }
}
