//! `self_test`: the results of the checks, the repairs, and the state afterwards.
//!
//! The field names are those that clients of similar tools already know, such as `webServer` and
//! `restartCount`. One worker of those tools corresponds to one server here, the web server to the
//! HTTP listener, and the database to the state directory.

use serde::{Deserialize, Serialize};

use crate::server::{Era, Health, ServerName, ServerState};
use crate::time::Timestamp;

/// The params of `self_test`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelfTest {
    /// Repairs what is broken.
    #[serde(skip_serializing_if = "Clone::clone", default = "super::default_true")]
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
pub struct SelfTestResult {
    /// True if everything works now, even if it did not before.
    pub success: bool,
    /// When the test began.
    pub timestamp: Timestamp,
    /// The results of the checks.
    pub health: SelfTestHealth,
    /// Successful repairs, and servers that were restarted without proof that they work.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub auto_repair: Vec<Repair>,
    /// Details that help to understand the result.
    pub diagnostics: TestDiagnostics,
    /// The result in one sentence.
    pub summary: String,
}

/// The results of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfTestHealth {
    /// The daemon.
    pub supervisor: SupervisorHealth,
    /// The servers. One with several instances has an entry for each.
    pub worker: Vec<WorkerHealth>,
    /// The HTTP listener for clients.
    pub web_server: WebServerHealth,
    /// The state directory.
    pub database: PathHealth,
    /// The log directory.
    pub logs: PathHealth,
    /// The sockets that the daemon listens at.
    pub sockets: Vec<PathHealth>,
    /// Leftover processes that belong to no server.
    pub orphans: OrphanHealth,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// It works.
    Ok,
    /// It does not work.
    Error,
}

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorHealth {
    /// The result of the check.
    pub status: CheckStatus,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime: u64,
    /// Its memory.
    pub memory_usage: MemoryUsage,
    /// The problem, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// Resident memory in bytes; null where the system does not report it.
    pub rss: Option<u64>,
}

/// The result of checking a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// It answers, or is not expected to.
    Ok,
    /// It did not answer, was restarted, and answers now.
    Restarted,
    /// It does not answer.
    Failed,
}

/// One instance of a server, or a server that has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerHealth {
    /// The server's name.
    pub name: ServerName,
    /// The client that this instance belongs to, unless clients share it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<u64>,
    /// The era of this instance, if it is the second one of a server that speaks both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub era: Option<Era>,
    /// The result of the check.
    pub status: WorkerStatus,
    /// Its state.
    pub state: ServerState,
    /// The result of its probes.
    pub health: Health,
    /// The leader of its processes, if it runs.
    pub pid: Option<u32>,
    /// Seconds since it became ready.
    pub uptime: Option<u64>,
    /// Restarts since a user last started it.
    pub restart_count: u32,
    /// How long it took to answer a request of its protocol; null if none was sent or answered.
    pub round_trip_ms: Option<u64>,
    /// When a probe last reported its health; null before the first.
    #[serde(default)]
    pub last_health_check: Option<Timestamp>,
    /// The reason for its status, where that is not obvious.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// The state of the HTTP listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebServerStatus {
    /// Clients can connect.
    Ok,
    /// Clients cannot connect.
    Error,
    /// The listener is not configured to run.
    NotRunning,
}

/// The HTTP listener for clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebServerHealth {
    /// The result of the check.
    pub status: WebServerStatus,
    /// Its port, if it listens.
    pub port: Option<u16>,
    /// Connections of clients, without the one of the test.
    pub active_connections: u64,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// A directory or a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathHealth {
    /// The result of the check.
    pub status: CheckStatus,
    /// Its path.
    pub path: String,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// Processes and containers that no server owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanHealth {
    /// `Ok` if there are none.
    pub status: CheckStatus,
    /// Processes that are still there.
    pub pids: Vec<u32>,
    /// The IDs of containers that are still there.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub containers: Vec<String>,
    /// Why the state is not known, if it is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// A repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Repair {
    /// A server was restarted.
    WorkerRestarted {
        /// The server.
        server: ServerName,
        /// The client that its instance belongs to, unless clients share it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        client: Option<u64>,
        /// Its previous process, if there was one.
        previous_pid: Option<u32>,
        /// Its process now.
        new_pid: Option<u32>,
        /// The problem.
        reason: String,
        /// True if it answered afterwards. Otherwise it does not, or has yet to start.
        #[serde(skip_serializing_if = "Clone::clone", default = "super::default_true")]
        proven: bool,
    },
    /// A directory was created again.
    FolderCreated {
        /// Its path.
        path: String,
        /// The problem.
        reason: String,
    },
    /// The daemon holds its lock again, which prevents a second daemon.
    LockTaken {
        /// The lock file.
        path: String,
        /// The problem.
        reason: String,
    },
    /// The daemon listens at a socket again.
    SocketCreated {
        /// The socket.
        path: String,
        /// The problem.
        reason: String,
    },
    /// Containers that belonged to no server were removed.
    ContainersRemoved {
        /// Their IDs.
        containers: Vec<String>,
        /// The problem.
        reason: String,
    },
    /// Processes that belonged to no server were ended.
    ProcessesReaped {
        /// Their process IDs.
        pids: Vec<u32>,
        /// The problem.
        reason: String,
    },
}

/// Details that help to understand a self-test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestDiagnostics {
    /// The machine.
    pub system: SelfTestSystem,
    /// The latest restarts of all servers, oldest first.
    pub restart_history: Vec<RestartRecord>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfTestSystem {
    /// `linux` or `darwin`.
    pub platform: String,
    /// The version of xy, in place of a Node version.
    pub node_version: String,
    /// Total memory in bytes; null where the system does not report it.
    pub total_memory: Option<u64>,
    /// Available memory in bytes.
    pub free_memory: Option<u64>,
}

/// A restart of a server, or the point where restarts ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// When it happened.
    pub timestamp: Timestamp,
    /// The reason.
    pub reason: String,
    /// The server.
    pub server: ServerName,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ServerName {
        ServerName::new(name).unwrap()
    }

    fn example() -> SelfTestResult {
        let at = Timestamp::from_unix_millis(0);
        let worker = WorkerHealth {
            name: name("a"),
            client: None,
            era: None,
            status: WorkerStatus::Restarted,
            state: ServerState::Running,
            health: Health::Unknown,
            pid: Some(8),
            uptime: Some(0),
            restart_count: 0,
            round_trip_ms: Some(1),
            last_health_check: Some(Timestamp::from_unix_millis(1)),
            note: None,
        };
        let folder = PathHealth { status: CheckStatus::Ok, path: "/s".into(), note: None };
        let reason = "it had ended".to_owned();
        SelfTestResult {
            success: true,
            timestamp: at,
            health: SelfTestHealth {
                supervisor: SupervisorHealth {
                    status: CheckStatus::Ok,
                    pid: 1,
                    uptime: 2,
                    memory_usage: MemoryUsage { rss: Some(3) },
                    note: None,
                },
                worker: vec![worker],
                web_server: WebServerHealth {
                    status: WebServerStatus::NotRunning,
                    port: None,
                    active_connections: 0,
                    note: None,
                },
                database: folder.clone(),
                logs: folder.clone(),
                sockets: vec![folder],
                orphans: OrphanHealth {
                    status: CheckStatus::Ok,
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
                system: SelfTestSystem {
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
    fn field_names_are_stable() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&example()).unwrap());
    }

    #[test]
    fn answer_round_trips_with_and_without_repairs() {
        let mut example = example();
        let round_trip = |it: &SelfTestResult| {
            serde_json::from_str::<SelfTestResult>(&serde_json::to_string(it).unwrap()).unwrap()
        };
        assert_eq!(round_trip(&example), example);
        example.auto_repair.clear();
        assert_eq!(round_trip(&example), example);
        assert!(!serde_json::to_string(&example).unwrap().contains("autoRepair"));
    }
}
