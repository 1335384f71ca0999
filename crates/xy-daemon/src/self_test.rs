//! The self-test: checks the whole system, repairs what it may, checks again, and reports.
//!
//! Folders and sockets come first, since a restarted server needs them. `diagnosis.rs` decides what
//! an observation means. A server that answers is never restarted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use xy_protocol::control::{SelfTestHealth, SelfTestResult, SelfTestSystem, TestDiagnostics};
use xy_protocol::error::CallError;

use crate::daemon::Daemon;
use crate::machine;

mod diagnosis;
mod folders;
pub(crate) mod history;
pub(crate) mod http_listener;
mod orphans;
mod servers;
mod sockets;
pub(crate) mod summary;
mod supervisor;

/// Maximum time of the whole test. Steps that have begun may exceed it within their own short
/// limits.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of restarts in the report.
const MAX_RESTARTS: usize = 100;

/// Tests the whole system, or joins a test that is running.
pub(crate) async fn run(
    daemon: &Arc<Daemon>,
    repair: bool,
) -> Result<Arc<SelfTestResult>, CallError> {
    daemon.self_test.join(repair, || test(daemon.clone(), repair)).await
}

async fn test(daemon: Arc<Daemon>, repair: bool) -> SelfTestResult {
    let timestamp = machine::wall_clock();
    let give_up_at = Instant::now() + TEST_TIMEOUT;
    let mut repairs = Vec::new();
    let (database, logs) = folders::test(&daemon, repair, &mut repairs).await;
    let sockets = sockets::test(&daemon.sockets, repair, &mut repairs).await;
    let (worker, web_server, parts) = tokio::join!(
        servers::test(&daemon, repair, give_up_at),
        http_listener::test(&daemon),
        supervisor::query(&daemon)
    );
    let (worker, restarts) = worker;
    repairs.extend(restarts);
    let orphans = orphans::test(&daemon, repair, &mut repairs).await;
    let health = SelfTestHealth {
        supervisor: supervisor::health(&daemon, parts),
        worker,
        web_server,
        database,
        logs,
        sockets,
        orphans,
    };
    let success = summary::is_healthy(&health);
    let summary = summary::summarize(&health, &repairs);
    let restart_history = if parts.journal {
        history::of(&daemon.journal, MAX_RESTARTS).await
    } else {
        Vec::new() // The journal does not answer.
    };
    let diagnostics = TestDiagnostics { system: system(), restart_history };
    SelfTestResult { success, timestamp, health, auto_repair: repairs, diagnostics, summary }
}

fn system() -> SelfTestSystem {
    SelfTestSystem {
        platform: machine::platform().to_owned(),
        node_version: env!("CARGO_PKG_VERSION").to_owned(),
        total_memory: machine::total_memory(),
        free_memory: machine::free_memory(),
    }
}
