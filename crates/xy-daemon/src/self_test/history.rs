//! The latest restarts of all servers according to the journal, including those under earlier
//! daemons and those of removed servers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use xy_protocol::control::RestartRecord;
use xy_protocol::server::ServerState;
use xy_supervisor::journal::{self, Change, Entry, EntryKind, Journal};
use xy_supervisor::lifecycle::{Reason, Retirement, reason};

use super::folders::run_with_timeout;

/// Maximum time for reading from disk. After it, only changes in memory are used.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// The permit to read: a disk that never responds blocks one thread, not one per request.
static READING: Semaphore = Semaphore::const_new(1);

/// Returns the latest `most` restarts, oldest first.
pub(crate) async fn of(journal: &Journal, limit: usize) -> Vec<RestartRecord> {
    let following = journal.follow().await;
    let recent = following.recent().to_vec();
    let journal = journal.clone();
    let read = move || journal.before(&following, usize::MAX, None);
    match run_with_timeout(DISK_TIMEOUT, &READING, read).await {
        Ok((entries, None)) => restarts(&entries, limit),
        Ok((entries, Some(problem))) => {
            tracing::warn!("some earlier restarts are missing: {problem}");
            restarts(&entries, limit)
        }
        Err(problem) => {
            tracing::warn!("earlier restarts are missing: {problem}");
            restarts(&recent, limit)
        }
    }
}

/// Returns the latest restarts from the journal on disk, for when no daemon is running.
pub(crate) fn on_disk(file: &Path, limit: usize) -> Vec<RestartRecord> {
    restarts(&journal::read_disk(file).0, limit)
}

fn restarts(entries: &[Arc<Entry>], limit: usize) -> Vec<RestartRecord> {
    let mut latest: Vec<RestartRecord> = entries
        .iter()
        .rev()
        .filter_map(|entry| match &entry.kind {
            EntryKind::Changed(change) if is_restart(change) => Some(RestartRecord {
                timestamp: entry.time,
                reason: change.reason.clone(),
                server: change.server.clone(),
            }),
            _ => None,
        })
        .take(limit)
        .collect();
    latest.reverse();
    latest
}

/// Returns true if a change is a restart: an instance ended that was not meant to end for good, or
/// one was started by hand.
///
/// A change to `Restarting` already reports the end, so the automatic start after it is not counted
/// again. A requested stop was reported when it was requested.
fn is_restart(change: &Change) -> bool {
    use ServerState::{Failed, Restarting, Running, Starting, Stopping};
    match (change.from, change.to) {
        (Stopping, Restarting | Failed) => false,
        (_, Restarting | Failed) | (Running, Starting) => true,
        (Restarting | Failed, Starting) => !is_automatic(&change.reason),
        (_, Stopping) => {
            let reason = change.reason.as_str();
            let ends = [Reason::StopRequested, Reason::StopOverdue];
            let is_end = ends.iter().any(|end| end.to_string() == reason)
                || Retirement::ALL.iter().any(|end| end.to_string() == reason)
                || reason == Retirement::ANY;
            let is_internal = reason.starts_with(reason::RESTARTED_BY_XY);
            !is_end && !is_internal && !reason.starts_with(reason::GOES_TO_SLEEP)
        }
        _ => false,
    }
}

/// Returns true if a start was automatic, by the wording of the journal.
fn is_automatic(reason: &str) -> bool {
    // Older versions wrote "last attempt".
    let prefixes = ["attempt ", "final restart attempt ", "last attempt "];
    prefixes.iter().any(|prefix| reason.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerName;
    use xy_protocol::time::Timestamp;

    use super::*;

    fn change(from: ServerState, to: ServerState, reason: &Reason) -> Change {
        Change {
            server: ServerName::new("a").unwrap(),
            holder: None,
            era: None,
            from,
            to,
            reason: reason.to_string(),
            pid: None,
            restart_count: 0,
        }
    }

    #[test]
    fn only_unrequested_ends_and_manual_starts_are_restarts() {
        use ServerState::{Failed, Restarting, Running, Starting, Stopped, Stopping};
        let retry = |attempt, of| Reason::Retry { attempt, of };
        let repaired = Reason::Repaired("self-test: it hangs".into());
        for (from, to, reason, expected) in [
            (Stopped, Starting, Reason::StartRequested, false),
            (Starting, Running, Reason::Ready, false),
            (Running, Restarting, Reason::WriteInterrupted, true),
            (Restarting, Starting, retry(1, 5), false),
            (Restarting, Starting, retry(5, 5), false),
            (Restarting, Starting, retry(7, 0), false),
            (Restarting, Starting, Reason::ReconnectAttempt { attempt: 2 }, false),
            (Running, Starting, retry(1, 5), true),
            (Restarting, Starting, Reason::StartRequested, true),
            (Failed, Starting, Reason::StartRequested, true),
            (Failed, Starting, Reason::RestartRequested, true),
            (Failed, Starting, repaired.clone(), true),
            (Running, Failed, Reason::WriteInterrupted, true),
            (Running, Stopping, Reason::RestartRequested, true),
            (Running, Stopping, repaired.clone(), true),
            (Running, Stopping, Reason::SettingsChanged, true),
            (Running, Stopping, Reason::StopRequested, false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Removed), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Unconfigured), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Replaced), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::ClientLeft), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::DaemonEnds), false),
            (Running, Stopping, Reason::RestartRequired("to speak legacy MCP".into()), false),
            (Stopping, Stopping, Reason::StopOverdue, false),
            (Stopping, Stopping, Reason::RestartRequested, true),
            (Stopping, Stopped, Reason::StopDone, false),
            (Starting, Stopping, Reason::WriteInterrupted, true),
            (Stopping, Restarting, Reason::WriteInterrupted, false),
            (Stopping, Failed, Reason::WriteInterrupted, false),
            (Stopping, Starting, Reason::RestartRequested, false),
            (Stopping, Starting, repaired, false),
        ] {
            let case = format!("{from} {to} {reason}");
            assert_eq!(is_restart(&change(from, to, &reason)), expected, "{case}");
        }
    }

    #[test]
    fn final_stop_in_an_older_journal_is_no_restart() {
        let change = Change {
            reason: "removed, or the daemon is ending".to_owned(),
            ..change(ServerState::Running, ServerState::Stopping, &Reason::StopRequested)
        };
        assert!(!is_restart(&change));
    }

    #[test]
    fn latest_restarts_are_in_order_without_last_attempts() {
        let crash =
            change(ServerState::Running, ServerState::Restarting, &Reason::WriteInterrupted);
        let entry = |seq: u64, kind| {
            let time = Timestamp::from_unix_millis(seq);
            Arc::new(Entry { time, boot: "b".into(), seq, kind })
        };
        let mut all: Vec<_> =
            (1..=9).map(|seq| entry(seq, EntryKind::Changed(crash.clone()))).collect();
        all.push(entry(10, EntryKind::LastAttempt(crash)));
        all.push(entry(11, EntryKind::Skipped { count: 3 }));
        let case: Vec<_> = restarts(&all, 3).iter().map(|it| it.timestamp).collect();
        assert_eq!(case, [7, 8, 9].map(Timestamp::from_unix_millis));
    }
}
