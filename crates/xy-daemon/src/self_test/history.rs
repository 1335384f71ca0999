//! The latest restarts of all servers, as the journal has them: also those that an earlier
//! daemon saw, and those of servers that are not there any more.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use xy_protocol::control::RestartRecord;
use xy_protocol::server::ServerState;
use xy_supervisor::journal::{self, Change, Entry, Journal, What};
use xy_supervisor::lifecycle::{Reason, Retirement, reason};

use super::folders::within_reason;

/// How long the disk may take. Without it, what is in memory has to do.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// A disk that is gone keeps one thread, not one more for each who asks.
static READING: Semaphore = Semaphore::const_new(1);

/// The latest `most`, oldest first.
pub(crate) async fn of(journal: &Journal, most: usize) -> Vec<RestartRecord> {
    let following = journal.follow().await;
    let recent = following.recent().to_vec();
    let journal = journal.clone();
    let read = move || journal.before(&following, usize::MAX, None);
    match within_reason(READ_WITHIN, &READING, read).await {
        Ok((entries, None)) => restarts(&entries, most),
        Ok((entries, Some(problem))) => {
            tracing::warn!("some restarts of before are not told: {problem}");
            restarts(&entries, most)
        }
        Err(problem) => {
            tracing::warn!("restarts of before are not told: {problem}");
            restarts(&recent, most)
        }
    }
}

/// The same where there is no daemon. Reads the disk.
pub(crate) fn on_disk(file: &Path, most: usize) -> Vec<RestartRecord> {
    restarts(&journal::read_disk(file).0, most)
}

fn restarts(entries: &[Arc<Entry>], most: usize) -> Vec<RestartRecord> {
    let mut latest: Vec<RestartRecord> = entries
        .iter()
        .rev()
        .filter_map(|entry| match &entry.what {
            What::Changed(change) if is_restart(change) => Some(RestartRecord {
                timestamp: entry.time,
                reason: change.reason.clone(),
                server: change.server.clone(),
            }),
            _ => None,
        })
        .take(most)
        .collect();
    latest.reverse();
    latest
}

/// Whether a life ended here that was not meant to be the last, or one began by hand. Where it
/// waits before the next it is told why it ended, so that the next need not be told too. What
/// was told to stop was told when it was.
fn is_restart(change: &Change) -> bool {
    use ServerState::{Failed, Restarting, Running, Starting, Stopping};
    match (change.from, change.to) {
        (Stopping, Restarting | Failed) => false,
        (_, Restarting | Failed) | (Running, Starting) => true,
        (Restarting | Failed, Starting) => !is_by_policy(&change.reason),
        (_, Stopping) => {
            let reason = change.reason.as_str();
            let ends = [Reason::StopRequested, Reason::StopOverdue];
            let is_end = ends.iter().any(|end| end.to_string() == reason)
                || Retirement::ALL.iter().any(|end| end.to_string() == reason)
                || reason == Retirement::ANY;
            let is_ours = reason.starts_with(reason::STARTED_OVER);
            !is_end && !is_ours && !reason.starts_with(reason::GOES_TO_SLEEP)
        }
        _ => false,
    }
}

/// Whether a life began by itself, in the words of the journal.
fn is_by_policy(reason: &str) -> bool {
    reason.starts_with("attempt ") || reason.starts_with("last attempt ")
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
    fn ends_that_lead_to_a_new_life_are_restarts_and_what_was_asked_for_is_none() {
        use ServerState::{Failed, Restarting, Running, Starting, Stopped, Stopping};
        let retry = |attempt, of| Reason::Retry { attempt, of };
        let repaired = Reason::Repaired("self-test: it hangs".into());
        for (from, to, reason, expected) in [
            (Stopped, Starting, Reason::StartRequested, false),
            (Starting, Running, Reason::Ready, false),
            (Running, Restarting, Reason::Torn, true),
            (Restarting, Starting, retry(1, 5), false),
            (Restarting, Starting, retry(5, 5), false),
            (Restarting, Starting, retry(7, 0), false),
            (Restarting, Starting, Reason::TriedAgain { attempt: 2 }, false),
            (Running, Starting, retry(1, 5), true),
            (Restarting, Starting, Reason::StartRequested, true),
            (Failed, Starting, Reason::StartRequested, true),
            (Failed, Starting, Reason::RestartRequested, true),
            (Failed, Starting, repaired.clone(), true),
            (Running, Failed, Reason::Torn, true),
            (Running, Stopping, Reason::RestartRequested, true),
            (Running, Stopping, repaired.clone(), true),
            (Running, Stopping, Reason::SettingsChanged, true),
            (Running, Stopping, Reason::StopRequested, false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Removed), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Unconfigured), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::Replaced), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::ClientLeft), false),
            (Running, Stopping, Reason::RetireRequested(Retirement::DaemonEnds), false),
            (Running, Stopping, Reason::StartedOver("to speak legacy MCP".into()), false),
            (Stopping, Stopping, Reason::StopOverdue, false),
            (Stopping, Stopping, Reason::RestartRequested, true),
            (Stopping, Stopped, Reason::StopDone, false),
            (Starting, Stopping, Reason::Torn, true),
            (Stopping, Restarting, Reason::Torn, false),
            (Stopping, Failed, Reason::Torn, false),
            (Stopping, Starting, Reason::RestartRequested, false),
            (Stopping, Starting, repaired, false),
        ] {
            let told = format!("{from} {to} {reason}");
            assert_eq!(is_restart(&change(from, to, &reason)), expected, "{told}");
        }
    }

    #[test]
    fn an_end_for_good_is_no_restart_in_the_journal_of_an_older_version_either() {
        let change = Change {
            reason: "removed, or the daemon is ending".to_owned(),
            ..change(ServerState::Running, ServerState::Stopping, &Reason::StopRequested)
        };
        assert!(!is_restart(&change));
    }

    #[test]
    fn the_latest_are_told_in_order_and_a_last_attempt_is_no_second_restart() {
        let crash = change(ServerState::Running, ServerState::Restarting, &Reason::Torn);
        let entry = |seq: u64, what| {
            let time = Timestamp::from_unix_millis(seq);
            Arc::new(Entry { time, boot: "b".into(), seq, what })
        };
        let mut all: Vec<_> = (1..=9).map(|seq| entry(seq, What::Changed(crash.clone()))).collect();
        all.push(entry(10, What::LastAttempt(crash)));
        all.push(entry(11, What::Skipped { count: 3 }));
        let told: Vec<_> = restarts(&all, 3).iter().map(|it| it.timestamp).collect();
        assert_eq!(told, [7, 8, 9].map(Timestamp::from_unix_millis));
    }
}
