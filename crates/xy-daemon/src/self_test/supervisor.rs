//! The test of the daemon itself. A client that receives the report has been answered by the
//! daemon; the daemon's parts have to answer, too.

use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{CheckStatus, MemoryUsage, SupervisorHealth};
use xy_supervisor::fleet::Operation;

use crate::daemon::Daemon;
use crate::machine;

/// Maximum time for each part to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The parts of the daemon that have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// The fleet, which owns all servers.
    pub(super) fleet: bool,
    /// The journal, which records events.
    pub(super) journal: bool,
    /// The gateway, which speaks with MCP clients; `None` without a gateway.
    pub(super) gateway: Option<bool>,
}

/// Sends each part a request that changes nothing.
pub(super) async fn query(daemon: &Daemon) -> Parts {
    let fleet = timeout(RESPONSE_TIMEOUT, daemon.fleet.operate(Operation::Start, Some(Vec::new())));
    let journal = timeout(RESPONSE_TIMEOUT, daemon.journal.follow());
    let gateway = async {
        let admin = daemon.admin().ok()?;
        Some(matches!(timeout(RESPONSE_TIMEOUT, admin.metrics()).await, Ok(Ok(_))))
    };
    let (fleet, journal, gateway) = tokio::join!(fleet, journal, gateway);
    Parts { fleet: matches!(fleet, Ok(Ok(_))), journal: journal.is_ok(), gateway }
}

/// Returns the health of the daemon.
pub(super) fn health(daemon: &Daemon, parts: Parts) -> SupervisorHealth {
    let note = unresponsive_parts(parts);
    SupervisorHealth {
        status: if note.is_some() { CheckStatus::Error } else { CheckStatus::Ok },
        pid: std::process::id(),
        uptime: daemon.started_at.elapsed().as_secs(),
        memory_usage: MemoryUsage { rss: machine::resident() },
        note,
    }
}

/// Returns a description of the parts that have not answered. Pure.
fn unresponsive_parts(parts: Parts) -> Option<String> {
    let all = [
        (parts.fleet, "the fleet"),
        (parts.journal, "the journal"),
        (parts.gateway.unwrap_or(true), "the gateway"),
    ];
    let unresponsive_parts: Vec<&str> =
        all.iter().filter(|(answered, _)| !answered).map(|it| it.1).collect();
    let within = RESPONSE_TIMEOUT.as_secs();
    (!unresponsive_parts.is_empty())
        .then(|| format!("{} did not answer within {within} s", unresponsive_parts.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresponsive_parts_are_named_and_a_missing_gateway_is_not() {
        let well = Parts { fleet: true, journal: true, gateway: Some(true) };
        assert_eq!(unresponsive_parts(well), None);
        assert_eq!(unresponsive_parts(Parts { gateway: None, ..well }), None);
        let describe = |parts| unresponsive_parts(parts).unwrap();
        assert_eq!(describe(Parts { fleet: false, ..well }), "the fleet did not answer within 5 s");
        assert_eq!(
            describe(Parts { journal: false, gateway: Some(false), ..well }),
            "the journal and the gateway did not answer within 5 s"
        );
    }
}
