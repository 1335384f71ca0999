//! The latest restarts of all servers, from what each remembers of its changes.

use xy_protocol::control::RestartRecord;
use xy_protocol::server::ServerState;
use xy_protocol::time::Timestamp;
use xy_supervisor::fleet::Roster;
use xy_supervisor::instance::Transition;
use xy_supervisor::lifecycle::Reason;

/// The latest `most`, oldest first.
pub(crate) fn of(roster: &Roster, most: usize) -> Vec<RestartRecord> {
    let mut all: Vec<RestartRecord> = Vec::new();
    for (name, member) in roster {
        for instance in member.own_instances() {
            let now = instance.now();
            all.extend(now.transitions.iter().filter(|it| is_restart(it)).map(|it| {
                RestartRecord {
                    timestamp: Timestamp::from(it.at),
                    reason: it.reason.to_string(),
                    server: name.clone(),
                }
            }));
        }
    }
    all.sort_by_key(|it| it.timestamp);
    all.drain(..all.len().saturating_sub(most));
    all
}

/// Whether a life ended here that was not meant to be the last, or one began by hand. Where it
/// waits before the next it is told why it ended, so that the next need not be told too.
fn is_restart(change: &Transition) -> bool {
    use ServerState::{Failed, Restarting, Running, Starting, Stopping};
    match (change.from, change.to) {
        (_, Restarting | Failed) | (Running, Starting) => true,
        (Restarting | Failed, Starting) => change.reason == Reason::StartRequested,
        (_, Stopping) => !matches!(
            change.reason,
            Reason::StopRequested | Reason::RetireRequested | Reason::StopOverdue | Reason::Idle(_)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn ends_that_lead_to_a_new_life_are_restarts_and_what_was_asked_for_is_none() {
        use ServerState::{Failed, Restarting, Running, Starting, Stopped, Stopping};
        let retry = Reason::Retry { attempt: 1, of: 5 };
        for (from, to, reason, expected) in [
            (Stopped, Starting, Reason::StartRequested, false),
            (Starting, Running, Reason::Ready, false),
            (Running, Restarting, Reason::Torn, true),
            (Restarting, Starting, retry.clone(), false),
            (Running, Starting, retry, true),
            (Restarting, Starting, Reason::StartRequested, true),
            (Failed, Starting, Reason::StartRequested, true),
            (Running, Failed, Reason::Torn, true),
            (Running, Stopping, Reason::RestartRequested, true),
            (Running, Stopping, Reason::SettingsChanged, true),
            (Running, Stopping, Reason::StopRequested, false),
            (Stopping, Stopping, Reason::StopOverdue, false),
            (Stopping, Stopped, Reason::StopDone, false),
            (Stopping, Starting, Reason::RestartRequested, false),
        ] {
            let told = format!("{from} {to} {reason}");
            let at = SystemTime::UNIX_EPOCH;
            assert_eq!(is_restart(&Transition { from, to, reason, at }), expected, "{told}");
        }
    }
}
