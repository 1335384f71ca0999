//! The daemon itself: whoever reads the answer has been answered by it, but what it consists of
//! has to answer too.

use std::time::Duration;

use tokio::time::timeout;
use xy_protocol::control::{MemoryUsage, SupervisorHealth, Verdict};
use xy_supervisor::fleet::Ask;

use crate::daemon::Daemon;
use crate::machine;

/// How long each part may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Which parts have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// Whoever has all servers.
    pub(super) fleet: bool,
    /// Whoever writes down what happens.
    pub(super) journal: bool,
    /// Whoever speaks with clients; `None` where nobody does.
    pub(super) gateway: Option<bool>,
}

/// Asks each of them something that changes nothing.
pub(super) async fn ask(daemon: &Daemon) -> Parts {
    let fleet = timeout(ANSWERS_WITHIN, daemon.fleet.ask(Ask::Start, Some(Vec::new())));
    let journal = timeout(ANSWERS_WITHIN, daemon.journal.follow());
    let gateway = async {
        let admin = daemon.admin().ok()?;
        Some(matches!(timeout(ANSWERS_WITHIN, admin.numbers()).await, Ok(Ok(_))))
    };
    let (fleet, journal, gateway) = tokio::join!(fleet, journal, gateway);
    Parts { fleet: matches!(fleet, Ok(Ok(_))), journal: journal.is_ok(), gateway }
}

/// How the daemon is.
pub(super) fn health(daemon: &Daemon, parts: Parts) -> SupervisorHealth {
    let note = silent(parts);
    SupervisorHealth {
        status: if note.is_some() { Verdict::Error } else { Verdict::Ok },
        pid: std::process::id(),
        uptime: daemon.started_at.elapsed().as_secs(),
        memory_usage: MemoryUsage { rss: machine::resident() },
        note,
    }
}

/// Who has not answered, in words. Pure.
fn silent(parts: Parts) -> Option<String> {
    let all = [
        (parts.fleet, "whoever has the servers"),
        (parts.journal, "whoever writes the journal"),
        (parts.gateway.unwrap_or(true), "whoever speaks with MCP clients"),
    ];
    let silent: Vec<&str> = all.iter().filter(|(answered, _)| !answered).map(|it| it.1).collect();
    let within = ANSWERS_WITHIN.as_secs();
    (!silent.is_empty())
        .then(|| format!("{} did not answer within {within} s", silent.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_answer_is_named_and_a_gateway_that_is_not_there_need_not() {
        let well = Parts { fleet: true, journal: true, gateway: Some(true) };
        assert_eq!(silent(well), None);
        assert_eq!(silent(Parts { gateway: None, ..well }), None);
        let told = |parts| silent(parts).unwrap();
        assert_eq!(
            told(Parts { fleet: false, ..well }),
            "whoever has the servers did not answer within 5 s"
        );
        assert_eq!(
            told(Parts { journal: false, gateway: Some(false), ..well }),
            "whoever writes the journal and whoever speaks with MCP clients did not answer within 5 s"
        );
    }
}
